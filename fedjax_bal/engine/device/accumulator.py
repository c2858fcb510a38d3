"""Sums over the chains of a round, built up bucket by bucket so that the chains' updates need not be kept."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device.update_diversity import UpdateDiversity, add_updates, diversity_over_devices, weighted_sum
from fedjax_bal.types import Array, PyTree


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


class ChainWeights(NamedTuple):
    """Weights of K chains in the sums of parameter changes and of batch statistics, 0 if a chain isn't `counted`."""

    delta: Array
    stats: Array
    counted: Array


def weights_left(weights: ChainWeights, sizes: Array, broken: Array) -> ChainWeights:
    """The weights of K chains, each in proportion to the rows of those of its clients that aren't broken.

    `sizes`, `Int[K, L]`, are 0 for clients that don't deliver; `broken`, `Int[K, L]`, are codes of faults.
    """
    left = jnp.where(broken == 0, sizes, 0).sum(1)
    share = left / jnp.maximum(sizes.sum(1), 1)
    return ChainWeights(weights.delta * share, weights.stats * share, weights.counted & (left > 0))


def add(sums: Accumulator, weights: ChainWeights, delta: PyTree, stats: PyTree, reports: PyTree) -> Accumulator:
    """Adds K more chains, leaves `[K, ...]`; the reports of chains that don't count are zeros."""

    def plus(weights: Array, sums: PyTree, stacked: PyTree) -> PyTree:
        return jax.tree.map(lambda total, leaf: total + weighted_sum(weights, leaf), sums, stacked)

    return Accumulator(
        plus(weights.delta, sums.delta, delta),
        plus(weights.stats, sums.stats, stats),
        jax.tree.map(lambda total, leaf: total + leaf.sum(0), sums.reports, reports),
        None if sums.spread is None else add_updates(sums.spread, weights.counted, delta),
    )


def over_devices(sums: Accumulator, axis: str) -> Accumulator:
    """The sums over all devices, equal on each device."""
    spread = None if sums.spread is None else diversity_over_devices(sums.spread, axis)
    delta, stats, reports = lax.psum((sums.delta, sums.stats, sums.reports), axis)
    return Accumulator(delta, stats, reports, spread)
