"""Arithmetic on pytrees: rows by number, weighted sums, norms, and tests for finite numbers."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.target import target_platform
from fedjax_bal.types import Array, PyTree

# Shapes never change, so a list of clients, chains or rows that is shorter than its array ends in empty places. An
# empty place holds a number beyond the last: N for clients, G for chains. `take` reads some row for it, and `put` or a
# mask drops the results for that row. A branch would save nothing, as `vmap` computes both sides.


def take(tree: PyTree, numbers: Array | tuple[Array, ...]) -> PyTree:
    """Takes rows by number from every leaf; a number beyond the last row takes the last row."""
    return jax.tree.map(lambda leaf: leaf.at[numbers].get(mode="clip"), tree)


def put(tree: PyTree, numbers: Array | tuple[Array | slice, ...], rows: PyTree) -> PyTree:
    """Replaces rows of every leaf by number; a row whose number is beyond the last is dropped."""
    return jax.tree.map(lambda leaf, new: leaf.at[numbers].set(new, mode="drop"), tree, rows)


def zeros_of(shapes: PyTree, *leading: int) -> PyTree:
    """Makes zeros in the shapes and types of a tree's leaves, with the `leading` axes in front."""
    return jax.tree.map(lambda leaf: jnp.zeros((*leading, *leaf.shape), leaf.dtype), shapes)


def weighted_sum(weights: Array, stacked: Array) -> Array:
    """Computes the sum of `[K, ...]` with weights `[K]`."""
    # Not a matrix product, because accelerators round the operands of products to fewer digits.
    return (weights.reshape(-1, *[1] * (stacked.ndim - 1)) * stacked).sum(0)


def squared_norm(tree: PyTree) -> Array:
    """Computes the squared Euclidean norm of a tree, `Float[]`."""
    return sum((jnp.sum(_squares(leaf)) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))


def _squares(leaf: Array) -> Array:
    if target_platform() == "gpu":
        return leaf**2  # in the same pass, XLA tests the numbers for being finite
    # The barrier keeps XLA from merging the two sums into a long one, which takes a CPU six times as long.
    return lax.optimization_barrier((leaf**2).reshape(-1, *leaf.shape[-1:]).sum(0))


def norm(tree: PyTree) -> Array:
    """Computes the Euclidean norm of a tree, `Float[]`, even if squares of its numbers overflow float32."""
    largest = jnp.stack([jnp.abs(leaf).max(initial=0.0) for leaf in jax.tree.leaves(tree)]).max()
    # Scaled by the largest number before squaring; a tree of zeros, or one that isn't finite, isn't scaled.
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    return unit * jnp.sqrt(squared_norm(jax.tree.map(lambda leaf: leaf / unit, tree)))


def clip_to_norm(tree: PyTree, length: Array, bound: Array) -> PyTree:
    """Scales a tree of norm `length` down to norm `bound` if it is longer.

    Example:
        >>> clip_to_norm(jnp.array([3.0, 4.0]), jnp.array(5.0), jnp.array(2.5)).tolist()
        [1.5, 2.0]
        >>> clip_to_norm(jnp.zeros(2), jnp.array(0.0), jnp.array(0.0)).tolist()
        [0.0, 0.0]
    """
    long = length > bound
    factor = jnp.where(long, bound / jnp.where(long, length, 1.0), 1.0)
    # Selected a second time, so that a tree that isn't too long keeps its bits and an infinite one doesn't become nan.
    return jax.tree.map(lambda leaf: jnp.where(long, leaf * factor, leaf), tree)


def inexact_leaves(tree: PyTree) -> list[Array]:
    """Returns the leaves that hold floating-point numbers."""
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def all_finite(tree: PyTree) -> Array:
    """Returns whether all numbers of a tree are finite, `Bool[]`."""
    return surely_finite(squared_norm(inexact_leaves(tree)), tree)


def surely_finite(squares: Array, tree: PyTree) -> Array:
    """Returns whether all numbers of a tree are finite, `Bool[]`; exact even if their squares overflow.

    `squares`, `Float[]`, must be non-finite if any number is, as the sum of squares is.

    Example:
        >>> bool(surely_finite(jnp.array(jnp.inf), [jnp.array([1e30])]))
        True
    """

    def test_every_number() -> Array:
        return jnp.stack([jnp.isfinite(leaf).all() for leaf in inexact_leaves(tree)]).all()

    # Summing squares is much faster than testing every number, so the test runs only if the sum isn't finite.
    return lax.cond(jnp.isfinite(squares), lambda: jnp.array(True), test_every_number)
