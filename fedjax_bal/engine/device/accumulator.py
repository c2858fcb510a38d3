"""What a round adds up over its chains, without keeping them all."""

from typing import NamedTuple

import jax
from jax import lax

from fedjax_bal.engine.device.update_diversity import UpdateDiversity, add_updates, diversity_over_devices, weighted_sum
from fedjax_bal.types import Array, PyTree


class Accumulator(NamedTuple):
    """Sums over chains so far.

    Attributes:
        delta: weighted sum of the parameters' changes.
        stats: weighted sum of the batch statistics.
        reports: sum of the reports, by slot.
        spread: how far apart the changes lie; None where nobody asks, which saves several passes over the parameters.
    """

    delta: PyTree
    stats: PyTree
    reports: PyTree
    spread: UpdateDiversity | None = None


class ChainWeights(NamedTuple):
    """How much some chains count.

    Attributes:
        delta: of their changes of the parameters, `Float[K]`, 0 for what doesn't count.
        stats: of their batch statistics, `Float[K]`.
        counted: whether they count at all, `Bool[K]`.
    """

    delta: Array
    stats: Array
    counted: Array


def add(sums: Accumulator, weights: ChainWeights, delta: PyTree, stats: PyTree, reports: PyTree) -> Accumulator:
    """Adds some chains.

    Args:
        sums: what was added before.
        weights: how much they count.
        delta: changes of the parameters, leaves `[K, ...]`, as are the others'.
        stats: batch statistics.
        reports: reports, zeros where not counted.

    Returns:
        The new sums.
    """

    def plus(weights: Array, sums: PyTree, stacked: PyTree) -> PyTree:
        return jax.tree.map(lambda total, leaf: total + weighted_sum(weights, leaf), sums, stacked)

    return Accumulator(
        plus(weights.delta, sums.delta, delta),
        plus(weights.stats, sums.stats, stats),
        jax.tree.map(lambda total, leaf: total + leaf.sum(0), sums.reports, reports),
        None if sums.spread is None else add_updates(sums.spread, weights.counted, delta),
    )


def over_devices(sums: Accumulator, axis: str) -> Accumulator:
    """The sums of all devices together.

    Args:
        sums: one device's.
        axis: the name of the devices' axis.

    Returns:
        The same on all of them.
    """
    spread = None if sums.spread is None else diversity_over_devices(sums.spread, axis)
    delta, stats, reports = lax.psum((sums.delta, sums.stats, sums.reports), axis)
    return Accumulator(delta, stats, reports, spread)
