"""Recognises unusable updates on the devices."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device.update_diversity import squared_norm
from fedjax_bal.metrics import HUGE, NOT_FINITE, OUTDATED
from fedjax_bal.types import Array, PyTree


def fault_code(finite: Array, outdated: Array, huge: Array | bool) -> Array:
    """The fault of an update, `Int32[]`, the gravest if it has several; 0 for none."""
    return jnp.select([~finite, outdated, huge], [NOT_FINITE, OUTDATED, HUGE], 0).astype(jnp.int32)


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


def all_finite(tree: PyTree) -> Array:
    """True if all numbers of a tree are finite, `Bool[]`."""
    return surely_finite(squared_norm(inexact_leaves(tree)), tree)


def surely_finite(squares: Array, tree: PyTree) -> Array:
    """True if all numbers of a tree are finite, `Bool[]`; exact even if their squares overflow.

    `squares`, `Float[]`, must be non-finite if any number is, as the sum of squares is. Summing squares is much faster
    than testing every number, which is done only if the sum isn't finite.

    Example:
        >>> bool(surely_finite(jnp.array(jnp.inf), [jnp.array([1e30])]))
        True
    """
    exactly = lambda: jnp.stack([jnp.isfinite(leaf).all() for leaf in inexact_leaves(tree)]).all()
    return lax.cond(jnp.isfinite(squares), lambda: jnp.array(True), exactly)


def inexact_leaves(tree: PyTree) -> list[Array]:
    """The leaves that hold floating-point numbers."""
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
