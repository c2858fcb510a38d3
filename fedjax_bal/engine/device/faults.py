"""Unusable updates, as the devices recognise them."""

import jax.numpy as jnp

from fedjax_bal.metrics import NOT_FINITE, OUTDATED
from fedjax_bal.types import Array


def fault_codes(finite: Array, outdated: Array) -> Array:
    """The fault of an update, `Int32[]`; 0 for none."""
    return jnp.where(finite, jnp.where(outdated, OUTDATED, 0), NOT_FINITE).astype(jnp.int32)


def first_faults(codes: Array) -> Array:
    """The fault that started in a chain: the codes of its clients, `Int32[L]`, with all but the first one set to 0.

    Clients after a faulty one only pass on what they received. Codes come in the order of training, `Int32[passes, L]`.

    Example:
        >>> first_faults(jnp.array([[0, 2, 1], [1, 1, 1]])).tolist()
        [0, 2, 0]
    """
    flat = codes.reshape(-1)
    only = jnp.where(jnp.cumsum(flat > 0) == 1, flat, 0)
    return only.reshape(codes.shape).max(0)
