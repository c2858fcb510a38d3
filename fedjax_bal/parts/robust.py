"""Robust means: an update that a few strange clients can't move far."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Reduce
from fedjax_bal.types import Array, PyTree


@part
class Median(Reduce):
    """Takes the median of every coordinate over the chains that count, all alike.

    Example:
        >>> import jax.numpy as jnp
        >>> deltas = jnp.array([[1.0], [9.0], [2.0], [5.0]])
        >>> Median().reduce(deltas, jnp.array([0.5, 0.2, 0.3, 0.0])).tolist()
        [2.0]

    References:
        Yin et al., 2018, Algorithm 1, option I, on changes of the model instead of gradients. Batch statistics and
        reports are averaged and summed as ever: they aren't robust.
    """

    def reduce(self, deltas: PyTree, weights: Array) -> PyTree:
        """Like params; the mean of the middle two where their number is even, zeros where nobody counts."""
        count = (weights > 0).sum()
        low, high = jnp.maximum(count - 1, 0) // 2, count // 2
        return _over_sorted(deltas, weights, lambda ordered: 0.5 * (ordered[low] + ordered[high]))


@part
class TrimmedMean(Reduce):
    """Averages every coordinate over the chains that count, all alike, without the largest and smallest values.

    Attributes:
        share: of the chains cut from each end, in [0, 0.5); rounded down to whole chains.

    Example:
        >>> import jax.numpy as jnp
        >>> deltas = jnp.array([[1.0], [90.0], [2.0], [5.0], [-7.0]])
        >>> round(float(TrimmedMean(0.2).reduce(deltas, jnp.ones(5))[0]), 4)
        2.6667

    References:
        Yin et al., 2018, Algorithm 1, option II, on changes of the model instead of gradients. Batch statistics and
        reports are averaged and summed as ever: they aren't robust.
    """

    share: float = 0.1

    def reduce(self, deltas: PyTree, weights: Array) -> PyTree:
        """Like params; zeros where nobody counts."""
        count = (weights > 0).sum()
        # A share such as 0.29 of 100 chains is 28.99... in binary, and means 29; something is always left.
        cut = jnp.minimum(jnp.floor(self.share * count + 1e-4).astype(count.dtype), jnp.maximum(count - 1, 0) // 2)
        rank = jnp.arange(len(weights))
        kept = (rank >= cut) & (rank < count - cut)
        mask = lambda ordered: kept.reshape(-1, *[1] * (ordered.ndim - 1))
        mean = lambda ordered: jnp.where(mask(ordered), ordered, 0.0).sum(0) / jnp.maximum(kept.sum(), 1)
        return _over_sorted(deltas, weights, mean)


def _over_sorted(deltas: PyTree, weights: Array, mean: Callable[[Array], Array]) -> PyTree:
    """Applies a mean to each leaf, sorted along the chains, those that don't count behind all others."""
    counts = weights > 0

    def one(leaf: Array) -> Array:
        there = counts.reshape(-1, *[1] * (leaf.ndim - 1))
        ordered = jnp.sort(jnp.where(there, leaf, jnp.inf), axis=0)
        return jnp.where(counts.any(), mean(ordered), 0.0)

    return jax.tree.map(one, deltas)
