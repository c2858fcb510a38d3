"""Sums over the chains of a round, accumulated bucket by bucket so that the chains' updates need not be kept."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device.trees import squared_norm, weighted_sum
from fedjax_bal.types import Array, PyTree


class UpdateDiversity(NamedTuple):
    """The number of updates so far, their plain mean, and the sum of their squared distances from it.

    Unlike sums of squares, these lose no digits to cancellation, even if the updates are close to each other.

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
        """Mean squared distance from the mean, `Float[]`; nan if nothing was counted (ReBaFL eq. 24)."""
        return jnp.where(self.count > 0, self.squares / jnp.maximum(self.count, 1.0), jnp.nan)

    def add(self, counted: Array, delta: PyTree) -> "UpdateDiversity":
        """Adds the updates, leaves `[K, ...]`, that `counted`, `Bool[K]`, marks."""
        share = counted.astype(float)
        around = self.mean
        if len(share) > 1:
            # Distances are taken from the mean so far or, at first, from the first chain's update, because distances
            # from a remote point would lose digits.
            around = jax.tree.map(lambda mean, leaf: jnp.where(self.count > 0, mean, leaf[0]), around, delta)
        count = self.count + share.sum()
        distance = jax.tree.map(jnp.subtract, delta, around)
        squares = weighted_sum(share, jax.vmap(squared_norm)(distance))
        part = share / jnp.maximum(count, 1.0)
        shift = jax.tree.map(lambda leaf: weighted_sum(part, leaf), distance)
        # With a single chain the mean shifts along the distance, so the squares of the shift need not be summed.
        correction = squares * part[0] if len(share) == 1 else count * squared_norm(shift)
        return UpdateDiversity(count, jax.tree.map(jnp.add, around, shift), self.squares + squares - correction)

    def over_devices(self, axis: str) -> "UpdateDiversity":
        """Computes the diversity over all devices, equal on each device."""
        count = lax.psum(self.count, axis)
        # A device without any counted update has zeros, and so has a share of 0.
        shares = jax.tree.map(lambda leaf: leaf * self.count / jnp.maximum(count, 1.0), self.mean)
        mean = lax.psum(shares, axis)
        distance = squared_norm(jax.tree.map(jnp.subtract, self.mean, mean))
        return UpdateDiversity(count, mean, lax.psum(self.squares + self.count * distance, axis))


class ChainWeights(NamedTuple):
    """Weights of K chains in the sums of parameter changes and of batch statistics; 0 for chains not `counted`."""

    delta: Array
    stats: Array
    counted: Array


class Accumulator(NamedTuple):
    """Weighted sums over the chains trained so far.

    Attributes:
        delta: weighted sum of the parameters' changes.
        stats: weighted sum of the batch statistics.
        reports: sum of the reports, by slot.
        spread: diversity of the updates; None unless requested, as it takes several passes over the parameters.
    """

    delta: PyTree
    stats: PyTree
    reports: PyTree
    spread: UpdateDiversity | None = None

    def add(self, weights: ChainWeights, delta: PyTree, stats: PyTree, reports: PyTree) -> "Accumulator":
        """Adds K more chains, leaves `[K, ...]`; the reports of chains that don't count are zeros."""

        def plus(weights: Array, sums: PyTree, stacked: PyTree) -> PyTree:
            return jax.tree.map(lambda total, leaf: total + weighted_sum(weights, leaf), sums, stacked)

        return Accumulator(
            plus(weights.delta, self.delta, delta),
            plus(weights.stats, self.stats, stats),
            jax.tree.map(lambda total, leaf: total + leaf.sum(0), self.reports, reports),
            None if self.spread is None else self.spread.add(weights.counted, delta),
        )

    def over_devices(self, axis: str) -> "Accumulator":
        """Computes the sums over all devices, equal on each device."""
        spread = None if self.spread is None else self.spread.over_devices(axis)
        delta, stats, reports = lax.psum((self.delta, self.stats, self.reports), axis)
        return Accumulator(delta, stats, reports, spread)


def weights_left(weights: ChainWeights, sizes: Array, broken: Array) -> ChainWeights:
    """Scales the weight of each of K chains by the fraction of its rows that belong to clients that aren't broken.

    `sizes`, `Int[K, L]`, are 0 for clients that don't deliver; `broken`, `Int[K, L]`, are codes of faults.
    """
    left = jnp.where(broken == 0, sizes, 0).sum(1)
    share = left / jnp.maximum(sizes.sum(1), 1)
    return ChainWeights(weights.delta * share, weights.stats * share, weights.counted & (left > 0))
