"""Partitions where each client draws its own class probabilities from a Dirichlet distribution; sizes are given."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from fedjax_bal.annotations import Count, Positive, checked
from fedjax_bal.data.partition.dealing import client_counts, deal_by_class, equal_sizes, rows_by_class, shuffled
from fedjax_bal.data.partition.quantity import Sizes, Spread, client_sizes

_LEAST_SHARE = 1e-12
_TINY = 1e-300
_AT_ONCE = 64
_CELLS = 4_000_000


@checked
def client_dirichlet(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count,
    alpha: Positive,
    prior: Literal["uniform", "global"] = "uniform",
    sizes: Sizes = "equal",
    sigma: Spread = 1.2,
    least: Count = 10,
    values: Sequence[float] | None = None,
    quantiles: Mapping[float, float] | None = None,
) -> list[np.ndarray]:
    r"""Lets clients draw their rows one by one, each with its own Dirichlet class probabilities.

    The probabilities are q ~ Dirichlet(alpha C p), where p is uniform, so that q ~ Dirichlet(alpha, ..., alpha), or the
    class shares of all rows. One row at a time goes to a client chosen uniformly among those that are not full yet. Its
    class is drawn from the client's q over the classes that have rows left; if q is 0 for all of them, in proportion to
    the rows that they have left. All rows are used: the last ones are those that others left, so they are less skewed
    than q, or skewed in another way.

    Clients are served in the order of N independent Poisson processes, which is equivalent to choosing each time among
    those that are not full. Classes are drawn for many rows at once, up to the first that would overdraw a class.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; C is the number of different ones.
        num_clients: N.
        alpha: concentration, above 0; small means few classes per client.
        prior: p, `"uniform"` or `"global"`, the shares of the classes in all rows.
        sizes: `"equal"`, to within a row; `"lognormal"`, or `"empirical"`, drawn from `values` or `quantiles`.
        sigma: standard deviation of the logarithm of the sizes, for lognormal ones.
        least: the smallest size, for lognormal and empirical ones.
        values: observed sizes to draw from, for empirical ones, scaled to the number of rows.
        quantiles: observed sizes by level, in place of `values`; see `empirical_sizes`.

    Returns:
        N disjoint arrays of row numbers that cover all rows.

    Raises:
        ValueError: too few rows for the clients, an unknown name, or invalid arguments.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> parts = client_dirichlet(np.random.default_rng(0), labels, 50, alpha=0.1)
        >>> {len(rows) for rows in parts}, len(np.unique(np.concatenate(parts)))
        ({20}, 1000)

    References:
        Acar et al.: Federated Learning Based on Dynamic Regularization, 2021, whose code draws a class again until
        it is one that has rows left, which may never end. With prior="global": Hsu, Qi, Brown: Measuring the
        Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019, where clients
        are filled one after another.
    """
    by_class, quotas = rows_by_class(labels)
    shares = quotas / quotas.sum() if prior == "global" else np.full(len(quotas), 1 / len(quotas))
    held = client_sizes(rng, sizes, len(labels), num_clients, sigma, least, values, quantiles)
    probabilities = rng.dirichlet(alpha * np.maximum(len(quotas) * shares, _LEAST_SHARE), num_clients)
    probabilities = np.where(probabilities < _TINY, 0.0, probabilities)
    clients = _served(rng, held)
    left = quotas.copy()
    counts = np.zeros((len(quotas), num_clients), np.int64)
    done = 0
    ahead = _AT_ONCE
    while done < len(clients):
        # A block is drawn as if no class ran out in it; turns from the first overdraft on are drawn again.
        here = clients[done : done + ahead]
        mass = np.where(left > 0, probabilities[here], 0.0)
        mass[mass.sum(axis=1) == 0] = left
        points = np.cumsum(mass, axis=1)
        picked = (points <= rng.random((len(mass), 1)) * points[:, -1:]).sum(axis=1)
        taken = _before_overdraft(picked, left)
        np.add.at(counts, (picked[:taken], here[:taken]), 1)
        left -= np.bincount(picked[:taken], minlength=len(left))
        done += taken
        # Blocks grow while no class runs out, up to a bounded table.
        ahead = int(np.clip(2 * taken, _AT_ONCE, max(_AT_ONCE, _CELLS // len(quotas))))
    return deal_by_class(shuffled(rng, by_class), counts)


def _served(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """Draws the client served at each turn, `Int[R]`: each once per row, at the times of a Poisson process."""
    # One long process is divided into one for each client, whose times start from 0 again.
    gaps = np.cumsum(rng.standard_exponential(int(sizes.sum())))
    starts = np.cumsum(sizes) - sizes
    offsets = np.where(starts > 0, gaps[starts - 1], 0.0)
    return np.repeat(np.arange(len(sizes)), sizes)[np.argsort(gaps - np.repeat(offsets, sizes), kind="stable")]


def _before_overdraft(picked: np.ndarray, left: np.ndarray) -> int:
    """Counts the turns before the first one that would take a row from a class without any left."""
    order = np.argsort(picked, kind="stable")
    ordered = picked[order]
    nth = np.empty_like(order)
    nth[order] = np.arange(len(picked)) - np.searchsorted(ordered, ordered)
    over = nth >= left[picked]
    return int(np.argmax(over)) if over.any() else len(picked)


@checked
def balanced_dirichlet(
    rng: np.random.Generator, labels: np.ndarray, num_clients: Count, alpha: Positive
) -> list[np.ndarray]:
    r"""Gives all clients the same number of rows, by Dirichlet class probabilities fitted to the whole set.

    Each client has class probabilities q ~ Dirichlet(alpha, ..., alpha). The table of these N vectors is scaled, by
    rows and columns in turn, until clients are of equal size and every class is used up; then each client draws its
    rows by its fitted vector. No client is served before another, unlike in `client_dirichlet`, where the last ones get
    what the others left; and sizes are equal, unlike in `dirichlet`, where they vary with the shares.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; C is the number of different ones.
        num_clients: N, at most D.
        alpha: concentration, above 0; small means few classes per client.

    Returns:
        N disjoint arrays of row numbers that cover all rows; their sizes differ by at most 1.

    Raises:
        ValueError: fewer rows than clients, or invalid arguments.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> parts = balanced_dirichlet(np.random.default_rng(0), labels, 50, alpha=0.1)
        >>> {len(rows) for rows in parts}, len(np.unique(np.concatenate(parts)))
        ({20}, 1000)
    """
    sizes = equal_sizes(len(labels), num_clients)
    by_class, quotas = rows_by_class(labels)
    probabilities = rng.dirichlet(np.full(len(quotas), alpha), num_clients)
    counts = client_counts(rng, probabilities + _LEAST_SHARE, sizes, quotas)
    return deal_by_class(shuffled(rng, by_class), counts.T)


@checked
def refilled_dirichlet(
    rng: np.random.Generator, labels: np.ndarray, num_clients: Count, alpha: Positive
) -> list[np.ndarray]:
    r"""Lets clients of equal size draw rows by Dirichlet class probabilities; a class that runs out is refilled.

    Each client has class probabilities q ~ Dirichlet(alpha, ..., alpha). A class that runs out is refilled with all its
    rows, so that every client's classes follow its q, regardless of other clients: clients share rows of popular
    classes, and some rows of other classes remain unused. No client has a row twice: a client that would exceed a class
    gets all of it, and draws the rest from q over the other classes.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; C is the number of different ones.
        num_clients: N, at most D.
        alpha: concentration, above 0; small means few classes per client.

    Returns:
        N arrays of row numbers; their sizes differ by at most 1.

    Raises:
        ValueError: fewer rows than clients, or invalid arguments.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> parts = refilled_dirichlet(np.random.default_rng(0), labels, 50, alpha=0.1)
        >>> {len(rows) for rows in parts}, len(np.unique(np.concatenate(parts))) < 1000
        ({20}, True)

    References:
        FedDyn's partition (see `client_dirichlet`) in the form of github.com/woodenchild95/FL-Simulator. There a
        client that draws on both sides of a refill may have a row twice.
    """
    left = equal_sizes(len(labels), num_clients)
    by_class, quotas = rows_by_class(labels)
    probabilities = rng.dirichlet(np.full(len(quotas), alpha), num_clients)
    probabilities = np.where(probabilities < _TINY, 0.0, probabilities)
    drawn = np.zeros(probabilities.shape, np.int64)
    while left.any():  # at most C times: each client that draws again has used up a class
        mass = np.where(drawn < quotas, probabilities, 0.0)
        without = mass.sum(axis=1) == 0
        mass[without] = (quotas - drawn)[without]
        drawn += rng.multinomial(left, mass / mass.sum(axis=1, keepdims=True))
        surplus = np.maximum(drawn - quotas, 0)
        drawn -= surplus
        left = surplus.sum(axis=1)
    counts = drawn.T
    # Consecutive rows of a repeated class are distinct, as long as they aren't more than the class has.
    repeated = [np.resize(rows, asked) for rows, asked in zip(shuffled(rng, by_class), counts.sum(axis=1), strict=True)]
    return deal_by_class(repeated, counts)
