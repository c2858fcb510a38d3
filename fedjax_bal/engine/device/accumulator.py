"""Sums over the chains of a round, built up bucket by bucket so that the chains' updates need not be kept."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device.trees import squared_norm, weighted_sum
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

    def add(self, counted: Array, delta: PyTree) -> "UpdateDiversity":
        """Adds K more updates, leaves `[K, ...]`, of which those marked by `counted`, `Bool[K]`, count."""
        share = counted.astype(float)
        around = self.mean
        if len(share) > 1:
            # Distances are taken from the mean so far or, at first, from any chain's update: a reference that lies far
            # off would cost digits.
            around = jax.tree.map(lambda mean, leaf: jnp.where(self.count > 0, mean, leaf[0]), around, delta)
        count = self.count + share.sum()
        distance = jax.tree.map(jnp.subtract, delta, around)
        squares = weighted_sum(share, jax.vmap(squared_norm)(distance))
        part = share / jnp.maximum(count, 1.0)
        shift = jax.tree.map(lambda leaf: weighted_sum(part, leaf), distance)
        # With a single chain the mean shifts along the distance, which saves adding up the squares of the shift.
        correction = squares * part[0] if len(share) == 1 else count * squared_norm(shift)
        return UpdateDiversity(count, jax.tree.map(jnp.add, around, shift), self.squares + squares - correction)

    def over_devices(self, axis: str) -> "UpdateDiversity":
        """The diversity over all devices, equal on each device."""
        count = lax.psum(self.count, axis)
        shares = jax.tree.map(lambda leaf: leaf * self.count / jnp.maximum(count, 1.0), self.mean)
        mean = lax.psum(shares, axis)
        distance = squared_norm(jax.tree.map(jnp.subtract, self.mean, mean))
        return UpdateDiversity(count, mean, lax.psum(self.squares + self.count * distance, axis))


class ChainWeights(NamedTuple):
    """Weights of K chains in the sums of parameter changes and of batch statistics, 0 if a chain isn't `counted`."""

    delta: Array
    stats: Array
    counted: Array


class Accumulator(NamedTuple):
    """Weighted sums over the chains trained so far.

    Attributes:
        delta: weighted sum of the parameters' changes.
        stats: weighted sum of the batch statistics.
        reports: sum of the reports, by slot.
        spread: diversity of the updates; None if it isn't asked for, as it takes several passes over the parameters.
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
        """The sums over all devices, equal on each device."""
        spread = None if self.spread is None else self.spread.over_devices(axis)
        delta, stats, reports = lax.psum((self.delta, self.stats, self.reports), axis)
        return Accumulator(delta, stats, reports, spread)


def weights_left(weights: ChainWeights, sizes: Array, broken: Array) -> ChainWeights:
    """The weights of K chains, each in proportion to the rows of those of its clients that aren't broken.

    `sizes`, `Int[K, L]`, are 0 for clients that don't deliver; `broken`, `Int[K, L]`, are codes of faults.
    """
    left = jnp.where(broken == 0, sizes, 0).sum(1)
    share = left / jnp.maximum(sizes.sum(1), 1)
    return ChainWeights(weights.delta * share, weights.stats * share, weights.counted & (left > 0))
