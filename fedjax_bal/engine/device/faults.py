"""Updates that can't be used: what the devices find, and its codes."""

import jax.numpy as jnp

from fedjax_bal.metrics import NOT_FINITE, OUTDATED
from fedjax_bal.types import Array


def fault_codes(finite: Array, outdated: Array) -> Array:
    """What is wrong with an update, `Int32[]`."""
    return jnp.where(finite, jnp.where(outdated, OUTDATED, 0), NOT_FINITE).astype(jnp.int32)


def first_faults(codes: Array) -> Array:
    """The codes of a chain without those that only pass on what another one has broken.

    Args:
        codes: of each visit, in the order of visits, `Int32[passes, L]`.

    Returns:
        Of each client, `Int32[L]`, 0 for all but the first.

    Example:
        >>> first_faults(jnp.array([[0, 2, 1], [1, 1, 1]])).tolist()
        [0, 2, 0]
    """
    flat = codes.reshape(-1)
    only = jnp.where(jnp.cumsum(flat > 0) == 1, flat, 0)
    return only.reshape(codes.shape).max(0)
