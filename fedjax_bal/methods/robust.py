"""Robust means, in which a few outlying clients have little influence: median, trimmed mean, Krum, norm clipping."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import Count, CountOrZero, Recipe, positive, recipe
from fedjax_bal.methods.roles import Reduce, part, static
from fedjax_bal.types import Array, PyTree, ServerContext
from fedjax_bal.validate import finite_number


@part
class Median(Reduce):
    """Takes the unweighted median of every coordinate over the chains whose weight isn't 0.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> deltas = jnp.array([[1.0], [9.0], [2.0], [5.0]])
        >>> jax.jit(Median().reduce)(deltas, jnp.array([0.5, 0.2, 0.3, 0.0]), None).tolist()
        [2.0]

    References:
        Yin et al., 2018, Algorithm 1, option I, on changes of the model instead of gradients. Batch statistics and
        reports are still averaged and summed: they aren't robust.
    """

    unweighted = True

    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """Returns the median, the mean of the middle two for an even number of chains; zeros if all weights are 0."""
        return _over_sorted(deltas, weights, _middle(weights))


@part
class TrimmedMean(Reduce):
    """Averages every coordinate over the chains whose weight isn't 0, unweighted and without the extreme values.

    Attributes:
        share: share of the chains removed at each end, in [0, 0.5); rounded down to whole chains.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> deltas = jnp.array([[1.0], [90.0], [2.0], [5.0], [-7.0]])
        >>> round(float(jax.jit(TrimmedMean(0.2).reduce)(deltas, jnp.ones(5), None)[0]), 4)
        2.6667

    References:
        Yin et al., 2018, Algorithm 1, option II, on changes of the model instead of gradients. Batch statistics and
        reports are still averaged and summed: they aren't robust.
    """

    share: float = 0.1

    unweighted = True

    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """Returns the trimmed mean, shaped like the parameters; zeros if all weights are 0."""
        count = (weights > 0).sum()
        # Rounding: a share of 0.29 of 100 chains is 28.99... in binary but means 29. At least one chain always remains.
        cut = jnp.minimum(jnp.floor(self.share * count + 1e-4).astype(count.dtype), jnp.maximum(count - 1, 0) // 2)
        rank = jnp.arange(len(weights))
        kept = (rank >= cut) & (rank < count - cut)
        mask = lambda ordered: kept.reshape(-1, *[1] * (ordered.ndim - 1))
        mean = lambda ordered: jnp.where(mask(ordered), ordered, 0.0).sum(0) / jnp.maximum(kept.sum(), 1)
        return _over_sorted(deltas, weights, mean)


@part
class Krum(Reduce):
    r"""Averages the updates that are nearest to their neighbours, unweighted, over the chains whose weight isn't 0.

    Of n updates $V_i$, each scores $s(i) = \sum_{i \to j} \|V_i - V_j\|^2$ over its n - f - 2 nearest others, at
    least 1; distances are over all parameters. The `kept` updates with the lowest scores are averaged.

    Attributes:
        faulty: f, the number of clients that may send anything.
        kept: m, the number of averaged updates, at most all; None for n - f, at least 1.

    References:
        Blanchard et al., 2017, Krum, and Multi-Krum of their experiments, on changes of the model instead of gradients.
        As there, of equal scores that of the client with the smallest number ranks first. The guarantee needs
        n > 2 f + 2; smaller rounds are aggregated, too, without it. Flower's code weights the kept updates by samples,
        the paper doesn't. Batch statistics and reports are still averaged and summed: they aren't robust.
    """

    faulty: int = 1
    kept: int | None = 1

    unweighted = True

    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """Returns the mean of the kept updates, shaped like the parameters; zeros if all weights are 0."""
        most = jnp.maximum((weights > 0).sum() - self.faulty, 1) if self.kept is None else self.kept
        chosen = nearest_updates(deltas, weights, server.cohort.clients[:, 0], self.faulty) < most
        chosen &= weights > 0

        def mean(leaf: Array) -> Array:
            spread = chosen.reshape(-1, *[1] * (leaf.ndim - 1))
            return jnp.where(spread, leaf, 0.0).sum(0) / jnp.maximum(chosen.sum(), 1)

        return jax.tree.map(mean, deltas)


def nearest_updates(deltas: PyTree, weights: Array, clients: Array, faulty: Array | int) -> Array:
    """Ranks updates by Krum's score, the lowest first, `Int[G]`; those of weight 0 come last.

    Args:
        deltas: leaves `[G, ...]`.
        weights: `Float[G]`.
        clients: `Int[G]`, whose order decides between equal scores.
        faulty: f, see `Krum`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> deltas = jnp.array([[1.0], [90.0], [2.0], [2.5], [-7.0]])
        >>> jax.jit(nearest_updates)(deltas, jnp.ones(5), jnp.arange(5), faulty=1).tolist()
        [2, 4, 0, 1, 3]
    """
    present = weights > 0
    count = present.sum()
    places = jnp.arange(len(weights))

    # One chain at a time: the differences of all pairs would need as many copies of all updates.
    distances = jax.lax.map(lambda chain: _squared_distances(deltas, chain), places)
    # Two updates that are each other's only neighbour must tie exactly, in whatever order each row was summed.
    distances = 0.5 * (distances + distances.T)
    # Excluded updates may contain anything, even nan.
    neighbours = present & present[:, None] & (places != places[:, None])
    nearest = jnp.sort(jnp.where(neighbours, distances, jnp.inf), axis=1)
    counted = jnp.minimum(jnp.maximum(count - faulty - 2, 1), count - 1)
    scores = jnp.where(places < counted, nearest, 0.0).sum(1)
    # A score beyond the largest number is still that of an update that counts: it comes before excluded ones.
    scores = jnp.where(present, jnp.minimum(scores, jnp.finfo(scores.dtype).max), jnp.inf)
    return jnp.argsort(jnp.lexsort((clients, scores)))


@part
class NormClipping(Reduce):
    """Scales each update down to a largest norm, over all parameters, then averages with the usual weights.

    Attributes:
        bound: the largest norm; if adaptive, in units of the median norm of the updates whose weight isn't 0 (the mean
            of the middle two for an even number).
        adaptive: whether the largest norm is relative to the median.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> deltas = jnp.array([[3.0, 4.0], [0.0, 2.0], [0.0, 0.5]])
        >>> mean = jax.jit(NormClipping(1.0).reduce)(deltas, jnp.array([0.5, 0.25, 0.25]), None)
        >>> [round(x, 4) for x in mean.tolist()]
        [0.3, 0.775]

    References:
        Sun et al., 2019, norm thresholding of updates, without noise; adaptive as in FLAME (Nguyen et al., 2022,
        Algorithm 1). Batch statistics and reports are still averaged and summed: they aren't robust. Unlike the median,
        it weights clients by their samples, as FedAvg does.
    """

    bound: float = 1.0
    adaptive: bool = static(False)

    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """Returns the mean of the clipped updates, shaped like the parameters; zeros if all weights are 0."""
        norms = jax.vmap(_norm)(deltas)
        bound = self.bound * (_over_sorted(norms, weights, _middle(weights)) if self.adaptive else 1.0)
        factors = weights * jnp.where(norms > bound, bound / jnp.where(norms > bound, norms, 1.0), 1.0)
        spread = lambda leaf: factors.reshape(-1, *[1] * (leaf.ndim - 1))
        # Excluded updates may contain anything, even nan.
        return jax.tree.map(lambda leaf: jnp.where(spread(leaf) > 0, spread(leaf) * leaf, 0.0).sum(0), deltas)


def _middle(weights: Array) -> Callable[[Array], Array]:
    """Returns a function that takes the median of a sorted leaf in which excluded chains come last."""
    count = (weights > 0).sum()
    low = jnp.maximum(count - 1, 0) // 2
    high = count // 2
    return lambda ordered: 0.5 * (ordered[low] + ordered[high])


def _squared_distances(deltas: PyTree, chain: Array) -> Array:
    """Computes the squared distances, over all parameters, between a chain's update and each chain's, `Float[G]`."""

    def of_leaf(leaf: Array) -> Array:
        return jnp.square(leaf - leaf[chain]).reshape(len(leaf), -1).sum(1)

    return sum(map(of_leaf, jax.tree.leaves(deltas)), jnp.zeros(()))


def _norm(tree: PyTree) -> Array:
    return jnp.sqrt(sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), jnp.zeros(())))


def _over_sorted(deltas: PyTree, weights: Array, mean: Callable[[Array], Array]) -> PyTree:
    """Applies a mean to each leaf, sorted along the chains; excluded chains come last."""
    counts = weights > 0

    def one(leaf: Array) -> Array:
        present = counts.reshape(-1, *[1] * (leaf.ndim - 1))
        ordered = jnp.sort(jnp.where(present, leaf, jnp.inf), axis=0)
        return jnp.where(counts.any(), mean(ordered), 0.0)

    return jax.tree.map(one, deltas)


@recipe("robust", "blanchard2017machine")
def krum(faulty: CountOrZero = 1) -> Recipe:
    """The one update that is nearest to its neighbours, instead of the mean of all.

    Args:
        faulty: the number of clients that may send anything, at least 0; a round should have more than twice as many
            and two.

    Example:
        >>> krum(2).parts
        (Krum(faulty=2, kept=1),)
    """
    return Recipe("krum", (Krum(faulty, 1),))


@recipe("robust", "blanchard2017machine")
def multi_krum(faulty: CountOrZero = 1, kept: Count | None = None) -> Recipe:
    """The mean of the updates that are nearest to their neighbours, instead of the mean of all.

    Args:
        faulty: the number of clients that may send anything, at least 0; a round should have more than twice as many
            and two.
        kept: the number of updates that are averaged, at least 1; None for all delivered ones but `faulty`.

    Example:
        >>> multi_krum(2).parts
        (Krum(faulty=2, kept=None),)
    """
    return Recipe("multi_krum", (Krum(faulty, kept),))


@recipe("robust", "yin2018robust")
def median() -> Recipe:
    """The coordinate-wise median of the updates instead of their mean.

    Example:
        >>> median().parts
        (Median(),)
    """
    return Recipe("median", (Median(),))


@recipe("robust", "sun2019can", "nguyen2022flame")
def norm_clipping(bound: float = 1.0, adaptive: bool = False) -> Recipe:
    """The mean of the updates, each scaled down to a largest norm.

    Args:
        bound: the largest norm of a client's update; above 0.
        adaptive: the largest norm is `bound` times the median norm of the round's updates instead.

    Example:
        >>> norm_clipping(0.5).parts
        (NormClipping(bound=0.5, adaptive=False),)
    """
    bound = positive("norm_clipping: bound", bound, ": at 0 nothing would change")
    return Recipe("norm_clipping", (NormClipping(bound, adaptive),))


@recipe("robust", "yin2018robust")
def trimmed_mean(share: float = 0.1) -> Recipe:
    """The coordinate-wise mean of the updates without the largest and the smallest.

    Args:
        share: share of the delivering clients removed at each end, rounded down; in [0, 0.5).

    Example:
        >>> trimmed_mean(0.2).parts
        (TrimmedMean(share=0.2),)
    """
    if finite_number("trimmed_mean: share", share, high=0.5) == 0.5:
        raise ValueError(f"trimmed_mean: share: received {share}, must be below 0.5; median leaves out all but one")
    return Recipe("trimmed_mean", (TrimmedMean(float(share)),))
