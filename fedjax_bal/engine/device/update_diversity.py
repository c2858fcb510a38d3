"""Diversity of a round's updates, computed without keeping them all."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.target import target_platform
from fedjax_bal.types import Array, PyTree


class UpdateDiversity(NamedTuple):
    """Number, plain mean and summed squared distance from the mean of the updates so far.

    Unlike sums of squares, they lose no digits to cancellation, however close together the updates lie.

    Attributes:
        count: updates counted, `Float[]`.
        mean: their plain mean, like params.
        squares: sum of squared distances from that mean, `Float[]`.

    References:
        Chan, Golub and LeVeque: Algorithms for computing the sample variance, 1983.
    """

    count: Array
    mean: PyTree
    squares: Array

    @property
    def diversity(self) -> Array:
        """Mean squared distance from the mean, `Float[]`; nan where nothing was counted (ReBaFL eq. 24)."""
        return jnp.where(self.count > 0, self.squares / jnp.maximum(self.count, 1.0), jnp.nan)


def add_updates(spread: UpdateDiversity, counted: Array, delta: PyTree) -> UpdateDiversity:
    """Adds K more updates, leaves `[K, ...]`, of which those marked by `counted`, `Bool[K]`, count."""
    share, around = counted.astype(float), spread.mean
    if len(share) > 1:
        # Distances are taken from the mean so far or, at first, from any chain's update: a reference that lies far
        # off would cost digits.
        around = jax.tree.map(lambda mean, leaf: jnp.where(spread.count > 0, mean, leaf[0]), around, delta)
    count = spread.count + share.sum()
    distance = jax.tree.map(jnp.subtract, delta, around)
    squares = weighted_sum(share, jax.vmap(squared_norm)(distance))
    part = share / jnp.maximum(count, 1.0)
    shift = jax.tree.map(lambda leaf: weighted_sum(part, leaf), distance)
    # With a single chain the mean shifts along the distance, which saves adding up the squares of the shift.
    correction = squares * part[0] if len(share) == 1 else count * squared_norm(shift)
    return UpdateDiversity(count, jax.tree.map(jnp.add, around, shift), spread.squares + squares - correction)


def diversity_over_devices(spread: UpdateDiversity, axis: str) -> UpdateDiversity:
    """The diversity over all devices, equal on each device."""
    count = lax.psum(spread.count, axis)
    shares = jax.tree.map(lambda leaf: leaf * spread.count / jnp.maximum(count, 1.0), spread.mean)
    mean = lax.psum(shares, axis)
    apart = squared_norm(jax.tree.map(jnp.subtract, spread.mean, mean))
    return UpdateDiversity(count, mean, lax.psum(spread.squares + spread.count * apart, axis))


def squared_norm(tree: PyTree) -> Array:
    """The squared Euclidean norm of a tree, `Float[]`."""
    return sum((jnp.sum(_squares(leaf)) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))


def norm(tree: PyTree) -> Array:
    """The Euclidean norm of a tree, `Float[]`, even if squares of its numbers overflow float32."""
    largest = jnp.stack([jnp.abs(leaf).max(initial=0.0) for leaf in jax.tree.leaves(tree)]).max()
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    return unit * jnp.sqrt(squared_norm(jax.tree.map(lambda leaf: leaf / unit, tree)))


def clip_to_norm(tree: PyTree, length: Array, bound: Array) -> PyTree:
    """A tree of norm `length`, scaled down to norm `bound` if it is longer.

    Example:
        >>> clip_to_norm(jnp.array([3.0, 4.0]), jnp.array(5.0), jnp.array(2.5)).tolist()
        [1.5, 2.0]
        >>> clip_to_norm(jnp.zeros(2), jnp.array(0.0), jnp.array(0.0)).tolist()
        [0.0, 0.0]
    """
    long = length > bound
    factor = jnp.where(long, bound / jnp.where(long, length, 1.0), 1.0)
    return jax.tree.map(lambda leaf: jnp.where(long, leaf * factor, leaf), tree)


def weighted_sum(weights: Array, stacked: Array) -> Array:
    """The sum of `[K, ...]` with weights `[K]`; not a matrix product, which accelerators round to fewer digits."""
    return (weights.reshape(-1, *[1] * (stacked.ndim - 1)) * stacked).sum(0)


def _squares(leaf: Array) -> Array:
    if target_platform() == "gpu":
        return leaf**2  # XLA looks for numbers that aren't finite in the same pass
    # The barrier keeps XLA from making one long sum of the two, which it computes six times as slowly on a CPU.
    return lax.optimization_barrier((leaf**2).reshape(-1, *leaf.shape[-1:]).sum(0))
