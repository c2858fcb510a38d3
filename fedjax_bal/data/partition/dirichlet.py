"""Partitions where each class is divided among the clients by a Dirichlet law."""

import math
from typing import Literal

import numpy as np

from fedjax_bal.data.partition.arguments import Concentration, checked_alpha, checked_pool, checked_room
from fedjax_bal.data.partition.dealing import deal_by_class, deal_to_owners, shuffled
from fedjax_bal.validate import one_of, whole_number

_MAX_REDRAWS, _MAX_SHARES_DRAWN = 100, 3 * 10**7
_CBFL_THRESHOLD = 5


def dirichlet(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: int,
    alpha: Concentration,
    form: Literal["balanced", "plain", "cbfl"] = "balanced",
    min_size: int = 10,
) -> list[np.ndarray]:
    r"""Divides each class among the clients in proportions q ~ Dirichlet(alpha, ..., alpha).

    `"balanced"`: class by class, clients that already hold D / N rows or more are left out. Of a Dirichlet vector the
    remaining entries, renormalised, are again Dirichlet, so q is drawn over the remaining clients at once; the usual
    way (zero the entries, divide by the sum) has the same law but divides 0 by 0 for small alpha. Cut points are
    floor(n_c cumsum(q)) and all rows are used. The draw is repeated until every client has `min_size` rows, up to 100
    times (fewer where clients x classes exceeds 300,000). For small alpha no draw may succeed; then the one that lacks
    the fewest rows is repaired: the largest clients are levelled down to a common height and their rows, taken at
    random and handed on in runs of one class, fill up the clients below `min_size`, which stay skewed.

    `"plain"`: the same with all clients taking part in every class.

    `"cbfl"`: shares n_c q are rounded and taken in the order of the clients while rows last; for alpha < 0.1 or more
    than 200 clients they are first clipped to [5, n_c - 5]. Rows may be left over and clients may be empty.

    Args:
        rng: source of randomness.
        labels: `Int[D]`.
        num_clients: N.
        alpha: concentration, above 0; small means few classes per client.
        form: `"balanced"`, `"plain"` or `"cbfl"`.
        min_size: rows that every client gets at least, not for form `"cbfl"`; N times this at most D.

    Returns:
        N disjoint arrays of row numbers.

    Raises:
        ValueError: fewer than N x min_size rows, no client gets a row (form `"cbfl"`), or arguments of the wrong kind.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> parts = dirichlet(np.random.default_rng(0), labels, 50, alpha=0.05)
        >>> sum(map(len, parts)), min(map(len, parts)) >= 10
        (1000, True)

    References:
        Form "plain": Yurochkin et al.: Bayesian Nonparametric Federated Learning of Neural Networks, 2019.
        Form "balanced": Wang et al.: Federated Learning with Matched Averaging, 2020, section 5, as in NIID-Bench;
        the repair is new here. Form "cbfl": CBFL, section on the experimental setup.
    """
    num_clients, by_class, sizes = checked_pool(rng, labels, num_clients)
    whole_number("min_size", min_size, low=0)
    alpha = checked_alpha(alpha)
    one_of("form", form, ("balanced", "plain", "cbfl"))
    if form == "cbfl":
        counts = _draw_cbfl(rng, sizes, num_clients, alpha)
        return deal_by_class(shuffled(rng, by_class), counts)
    _, _, min_size = checked_room(int(sizes.sum()), num_clients, min_size, "min_size")
    counts = draw_counts(rng, sizes, num_clients, alpha, min_size, level=form == "balanced")
    return _repaired(rng, deal_by_class(shuffled(rng, by_class), counts), min_size)


def draw_counts(
    rng: np.random.Generator, sizes: np.ndarray, num_clients: int, alpha: float, min_size: int, level: bool
) -> np.ndarray:
    """Draws counts `Int[C, N]` until every client has `min_size`, or else keeps those that lack the fewest rows.

    `level` leaves clients out that hold the mean share already.
    """
    best, fewest = np.zeros((len(sizes), num_clients), np.int64), math.inf
    for _ in range(min(_MAX_REDRAWS, max(1, _MAX_SHARES_DRAWN // (len(sizes) * num_clients)))):
        counts = np.zeros_like(best)
        held = np.zeros(num_clients, np.int64)
        for label, size in enumerate(sizes):
            open_clients = np.flatnonzero(held * num_clients < sizes.sum()) if level else np.arange(num_clients)
            if not len(open_clients):
                break  # everybody has the mean share, so that no class has rows left
            points = np.cumsum(rng.dirichlet(np.full(len(open_clients), alpha)))
            points /= points[-1]  # a sum that falls short of 1 by a rounding error would lose a row
            counts[label, open_clients] = np.diff(np.floor(points * size).astype(np.int64), prepend=0)
            held += counts[label]
        lacking = int(np.maximum(min_size - held, 0).sum())
        if lacking < fewest:
            best, fewest = counts, lacking
        if lacking == 0:
            break
    return best


def _draw_cbfl(rng, sizes: np.ndarray, num_clients: int, alpha: float) -> np.ndarray:
    """Draws counts `Int[C, N]` of form "cbfl"."""
    counts = np.empty((len(sizes), num_clients), np.int64)
    for label, size in enumerate(sizes):
        shares = size * rng.dirichlet(np.full(num_clients, alpha))
        if alpha < 0.1 or num_clients > 200:
            shares = np.clip(shares, _CBFL_THRESHOLD, max(_CBFL_THRESHOLD, size - _CBFL_THRESHOLD))
        ends = np.minimum(np.cumsum(np.rint(shares).astype(np.int64)), size)
        counts[label] = np.diff(ends, prepend=0)
    if counts.any():
        return counts
    raise ValueError(
        f"no client gets a row: with {num_clients} clients and {sizes.max()} rows in the largest class every share "
        "rounds to 0; take fewer clients."
    )


def _repaired(rng: np.random.Generator, parts: list[np.ndarray], min_size: int) -> list[np.ndarray]:
    """Moves rows from the largest clients to those below `min_size`, if there are any."""
    rows, sizes = np.concatenate(parts), np.array([len(part) for part in parts])
    lacking = np.maximum(min_size - sizes, 0)
    if not lacking.any():
        return parts
    given = _levelled_off(sizes, int(lacking.sum()))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    by_word = np.lexsort((rng.random(len(rows)), owner))
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = np.sort(by_word[rank < given[owner]])  # ascending: donor by donor, class by class
    owner[moved] = np.repeat(np.arange(len(sizes)), lacking)
    return deal_to_owners(rows, owner, len(sizes))


def _levelled_off(sizes: np.ndarray, amount: int) -> np.ndarray:
    """Lowers the largest sizes to one height until `amount` rows are free; returns how many each client gives."""
    low, high = 0, int(sizes.max())
    while low < high:  # the greatest height at which enough sticks out
        middle = (low + high + 1) // 2
        if np.maximum(sizes - middle, 0).sum() >= amount:
            low = middle
        else:
            high = middle - 1
    given = np.maximum(sizes - low, 0)
    surplus = int(given.sum()) - amount
    given[np.flatnonzero(given)[:surplus]] -= 1
    return given
