"""Partitions where each client has a class law of its own, drawn from a Dirichlet law; sizes are given."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from fedjax_bal.data.partition.shaped import client_counts, client_sizes, deal_counts
from fedjax_bal.data.partition.sizes import checked_alpha, checked_room
from fedjax_bal.data.row_numbers import cut, even_sizes, rows_by_label
from fedjax_bal.validate import checked_labels, whole_number

_LARGEST_ALPHA, _LEAST_SHARE, _TINY = 1e12, 1e-12, 1e-300
_AT_ONCE, _CELLS = 64, 4_000_000


def client_dirichlet(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: int,
    alpha: float,
    prior: Literal["uniform", "global"] = "uniform",
    sizes: Literal["equal", "lognormal", "empirical"] = "equal",
    sigma: float = 1.2,
    least: int = 10,
    values: Sequence[float] | None = None,
    quantiles: Mapping[float, float] | None = None,
) -> list[np.ndarray]:
    r"""Lets clients of given sizes draw their rows one by one, each by a Dirichlet class law of its own.

    The law is q ~ Dirichlet(alpha C p), where p is uniform, so that q ~ Dirichlet(alpha, ..., alpha), or the law of
    all rows. One row at a time goes to a client chosen uniformly among those that are not full yet. Its class is drawn
    by the client's law over the classes that have rows left; where that law has no mass on any of them, by how many
    rows they have left. All rows are used: the last rows are what others left, and so less skewed than the law, or
    skewed otherwise.

    Clients are served in the order of N independent Poisson processes, which is the same law as choosing anew each
    time among those not full. Classes are drawn for many rows at once, up to the one that would overdraw a class.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; C is the number of different ones.
        num_clients: N.
        alpha: concentration, above 0; small means few classes a client.
        prior: p, `"uniform"` or `"global"`, the shares of the classes in all rows.
        sizes: `"equal"`, to within a row; `"lognormal"`, or `"empirical"`, drawn from `values` or `quantiles`.
        sigma: standard deviation of the logarithm of the sizes, for lognormal ones.
        least: the smallest size, for lognormal and empirical ones.
        values: observed sizes to draw from, for empirical ones; they are scaled to the number of rows.
        quantiles: level in [0, 1] -> observed size, in place of `values`, as a mapping or as pairs; see
            `empirical_sizes`.

    Returns:
        N disjoint arrays of row numbers that cover all rows.

    Raises:
        ValueError: too few rows for the clients, an unknown word, or arguments of the wrong kind.

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
    labels, num_clients = checked_labels(labels), whole_number("num_clients", num_clients)
    rows, _, quotas = rows_by_label(labels)
    if prior not in ("uniform", "global"):
        raise ValueError(f"prior={prior!r}; expected 'uniform' or 'global'.")
    shares = quotas / quotas.sum() if prior == "global" else np.full(len(quotas), 1 / len(quotas))
    concentration = min(checked_alpha(alpha), _LARGEST_ALPHA) * np.maximum(len(quotas) * shares, _LEAST_SHARE)
    held = client_sizes(rng, sizes, len(labels), num_clients, sigma, least, values, quantiles)
    laws = rng.dirichlet(np.maximum(concentration, _TINY), num_clients)
    counts = _drawn_in_turn(rng, laws, held, quotas)
    return cut(*deal_counts(rng, rows, quotas, counts))


def _drawn_in_turn(rng, laws: np.ndarray, sizes: np.ndarray, quotas: np.ndarray) -> np.ndarray:
    """How many rows of each class each client draws, `Int[C, N]`."""
    laws = np.where(laws < _TINY, 0.0, laws)
    clients, left = _served(rng, sizes), quotas.copy()
    counts = np.zeros((len(quotas), len(sizes)), np.int64)
    done, ahead, most = 0, _AT_ONCE, max(_AT_ONCE, _CELLS // len(quotas))
    while done < len(clients):
        here = clients[done : done + ahead]
        picked = _picked(rng, laws[here], left)
        taken = _before_overdraft(picked, left)
        np.add.at(counts, (picked[:taken], here[:taken]), 1)
        left -= np.bincount(picked[:taken], minlength=len(left))
        done, ahead = done + taken, int(np.clip(2 * taken, _AT_ONCE, most))
    return counts


def _served(rng, sizes: np.ndarray) -> np.ndarray:
    """Who is served at each turn, `Int[R]`: each client as often as it has rows, at the times of a Poisson process."""
    gaps = np.cumsum(rng.standard_exponential(int(sizes.sum())))
    starts = np.cumsum(sizes) - sizes
    offsets = np.where(starts > 0, gaps[starts - 1], 0.0)
    return np.repeat(np.arange(len(sizes)), sizes)[np.argsort(gaps - np.repeat(offsets, sizes), kind="stable")]


def _picked(rng, laws: np.ndarray, left: np.ndarray) -> np.ndarray:
    """A class for each turn `Int[T]`, by laws `Float[T, C]` over the classes that have rows left."""
    mass = np.where(left > 0, laws, 0.0)
    mass[mass.sum(axis=1) == 0] = left
    points = np.cumsum(mass, axis=1)
    return (points <= rng.random((len(mass), 1)) * points[:, -1:]).sum(axis=1)


def _before_overdraft(picked: np.ndarray, left: np.ndarray) -> int:
    """How many turns pass before one would take a row of a class that has none left."""
    order = np.argsort(picked, kind="stable")
    ordered = picked[order]
    nth = np.empty_like(order)
    nth[order] = np.arange(len(picked)) - np.searchsorted(ordered, ordered)
    over = nth >= left[picked]
    return int(np.argmax(over)) if over.any() else len(picked)


def balanced_dirichlet(
    rng: np.random.Generator, labels: np.ndarray, num_clients: int, alpha: float
) -> list[np.ndarray]:
    r"""Gives all clients the same number of rows, by Dirichlet class laws that are fitted to the whole set.

    Each client has a law q ~ Dirichlet(alpha, ..., alpha). The table of these N laws is scaled, by rows and columns in
    turn, until clients are of equal size and every class is used up; then each client draws its rows by its fitted
    law. So nobody is served before anybody else, as in `client_dirichlet`, where the last clients get what the others
    left; and sizes are equal, other than in `dirichlet`, where they vary with the shares.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; C is the number of different ones.
        num_clients: N, at most D.
        alpha: concentration, above 0; small means few classes a client.

    Returns:
        N disjoint arrays of row numbers that cover all rows; their sizes differ by at most 1.

    Raises:
        ValueError: fewer rows than clients, or arguments of the wrong kind.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> parts = balanced_dirichlet(np.random.default_rng(0), labels, 50, alpha=0.1)
        >>> {len(rows) for rows in parts}, len(np.unique(np.concatenate(parts)))
        ({20}, 1000)
    """
    labels = checked_labels(labels)
    total, num_clients, _ = checked_room(len(labels), num_clients, 1)
    rows, _, quotas = rows_by_label(labels)
    laws = rng.dirichlet(np.full(len(quotas), min(checked_alpha(alpha), _LARGEST_ALPHA)), num_clients)
    counts = client_counts(rng, laws + _LEAST_SHARE, even_sizes(total, num_clients), quotas)
    return cut(*deal_counts(rng, rows, quotas, counts.T))
