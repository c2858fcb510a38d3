"""What a round adds up over its chains, without keeping them all."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.types import Array, PyTree


class Tally(NamedTuple):
    """Sums over chains so far.

    The spread of the updates is kept as their number, plain mean and summed squared distance from the mean, which
    lose nothing to cancellation however close together the updates lie.

    Attributes:
        delta: weighted sum of the parameters' changes.
        stats: weighted sum of the batch statistics.
        reports: sum of the reports, by slot.
        count: chains counted, `Float[]`.
        mean: plain mean of the changes.
        spread: sum of squared distances from that mean, `Float[]`.
    """

    delta: PyTree
    stats: PyTree
    reports: PyTree
    count: Array
    mean: PyTree
    spread: Array

    @property
    def diversity(self) -> Array:
        """Mean squared distance from the mean, `Float[]`; nan where nothing was counted (ReBaFL eq. 24)."""
        return jnp.where(self.count > 0, self.spread / jnp.maximum(self.count, 1.0), jnp.nan)


def empty(delta: PyTree, stats: PyTree, reports: PyTree) -> Tally:
    """Nothing counted yet.

    Args:
        delta: zeros like one chain's change of the parameters.
        stats: zeros like its batch statistics.
        reports: zeros like its reports.

    Returns:
        The tally.
    """
    return Tally(delta, stats, reports, jnp.zeros(()), delta, jnp.zeros(()))


def add(tally: Tally, weights: Array, counted: Array, delta: PyTree, stats: PyTree, reports: PyTree) -> Tally:
    """Adds some chains.

    Args:
        tally: what was added before.
        weights: `Float[K]`, 0 for what doesn't count.
        counted: `Bool[K]`.
        delta: changes of the parameters, leaves `[K, ...]`, as are the others'.
        stats: batch statistics.
        reports: reports, zeros where not counted.

    Returns:
        The new tally.

    References:
        Chan, Golub and LeVeque: Algorithms for computing the sample variance, 1983, for the spread.
    """
    plus = lambda sums, stacked: jax.tree.map(lambda s, leaf: s + _dot(weights, leaf), sums, stacked)
    count, mean, spread = _spread(tally, counted.astype(jnp.float32), delta)
    summed = jax.tree.map(lambda total, leaf: total + leaf.sum(0), tally.reports, reports)
    return Tally(plus(tally.delta, delta), plus(tally.stats, stats), summed, count, mean, spread)


def over_devices(tally: Tally, axis: str) -> Tally:
    """The tally of all devices together.

    Args:
        tally: one device's.
        axis: the name of the devices' axis.

    Returns:
        The same on all of them.
    """
    total = lambda tree: lax.psum(tree, axis)
    count = total(tally.count)
    mean = total(jax.tree.map(lambda leaf: leaf * tally.count / jnp.maximum(count, 1.0), tally.mean))
    apart = squared_norm(jax.tree.map(jnp.subtract, tally.mean, mean))
    spread = total(tally.spread + tally.count * apart)
    return Tally(total(tally.delta), total(tally.stats), total(tally.reports), count, mean, spread)


def squared_norm(tree: PyTree) -> Array:
    """The squared Euclidean norm of a tree, `Float[]`."""
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))


def _spread(tally: Tally, share: Array, delta: PyTree) -> tuple[Array, PyTree, Array]:
    """Number, mean and squared distances with some more chains, `share: Float[K]` of them counted."""
    around = tally.mean
    if len(share) > 1:
        # Distances are taken from the mean so far or, at first, from any of the chains: never from far away.
        around = jax.tree.map(lambda mean, leaf: jnp.where(tally.count > 0, mean, leaf[0]), around, delta)
    count = tally.count + share.sum()
    away = jax.tree.map(jnp.subtract, delta, around)
    squares = sum(_dot(share, (leaf**2).reshape(len(share), -1).sum(1)) for leaf in jax.tree.leaves(away))
    part = share / jnp.maximum(count, 1.0)
    moved = jax.tree.map(lambda leaf: _dot(part, leaf), away)
    # With a single chain the mean moves along its distance, which saves adding up the squares of the move.
    back = squares * part[0] if len(share) == 1 else count * squared_norm(moved)
    return count, jax.tree.map(jnp.add, around, moved), tally.spread + squares - back


def _dot(weights: Array, stacked: Array) -> Array:
    # Not a matrix product, which accelerators round to fewer digits.
    return (weights.reshape(-1, *[1] * (stacked.ndim - 1)) * stacked).sum(0)
