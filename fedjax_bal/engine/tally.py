"""What a round adds up over its chains, without keeping them all."""

from typing import NamedTuple

import jax
from jax import lax

from fedjax_bal.engine.spread import Spread, spread_over_devices, weighted_sum, widen
from fedjax_bal.types import Array, PyTree


class Tally(NamedTuple):
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
    spread: Spread | None = None


class Shares(NamedTuple):
    """How much some chains count.

    Attributes:
        delta: of their changes of the parameters, `Float[K]`, 0 for what doesn't count.
        stats: of their batch statistics, `Float[K]`.
        counted: whether they count at all, `Bool[K]`.
    """

    delta: Array
    stats: Array
    counted: Array


def add(tally: Tally, shares: Shares, delta: PyTree, stats: PyTree, reports: PyTree) -> Tally:
    """Adds some chains.

    Args:
        tally: what was added before.
        shares: how much they count.
        delta: changes of the parameters, leaves `[K, ...]`, as are the others'.
        stats: batch statistics.
        reports: reports, zeros where not counted.

    Returns:
        The new tally.
    """

    def plus(weights: Array, sums: PyTree, stacked: PyTree) -> PyTree:
        return jax.tree.map(lambda total, leaf: total + weighted_sum(weights, leaf), sums, stacked)

    return Tally(
        plus(shares.delta, tally.delta, delta),
        plus(shares.stats, tally.stats, stats),
        jax.tree.map(lambda total, leaf: total + leaf.sum(0), tally.reports, reports),
        None if tally.spread is None else widen(tally.spread, shares.counted, delta),
    )


def over_devices(tally: Tally, axis: str) -> Tally:
    """The tally of all devices together.

    Args:
        tally: one device's.
        axis: the name of the devices' axis.

    Returns:
        The same on all of them.
    """
    spread = None if tally.spread is None else spread_over_devices(tally.spread, axis)
    delta, stats, reports = lax.psum((tally.delta, tally.stats, tally.reports), axis)
    return Tally(delta, stats, reports, spread)
