"""Partition where each class has a few main clients and a long tail of others."""

import math

import numpy as np

from fedjax_bal.data.partition.arguments import checked_pool
from fedjax_bal.data.partition.dealing import deal_by_class, shuffled
from fedjax_bal.validate import finite_number


def long_tail(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: int,
    alpha: float,
    quirk: bool = False,
) -> list[np.ndarray]:
    r"""Gives a share of each class to its main clients and spreads the rest evenly over all others.

    Client i is a main client of label i mod C, so a label has r = N / C of them. A main client gets m = alpha / r of
    its label, each of the N - r others t = (1 - alpha) / (N - r). Cut points are floor(n_c cumsum(shares)) in the order
    of the clients, and all rows are used. A class with few rows may leave clients without any of it.

    Args:
        rng: source of randomness: decides which rows go where; how many is fixed.
        labels: `Int[D]`; C is the number of different ones.
        num_clients: N, a multiple of C.
        alpha: share of each class that its main clients hold together, in [0, 1]; 1 / C spreads all classes evenly.
        quirk: take t = (1 - m) / (N - r) and divide all shares by their sum, as the authors' code does. With one main
            client per class the result is the same; with ten, alpha = 0.9 results in 0.497.

    Returns:
        N disjoint arrays of row numbers that cover all rows.

    Raises:
        ValueError: a number of clients that is not a multiple of C, or arguments of the wrong kind.

    Example:
        >>> labels = np.repeat([0, 1], 100)
        >>> parts = long_tail(np.random.default_rng(0), labels, 4, alpha=0.8)
        >>> [np.bincount(labels[rows]).tolist() for rows in parts]
        [[40, 10], [10, 40], [40, 10], [10, 40]]

    References:
        IWDS (Tang et al.), experiment settings, "LLT"; the procedure is only in the code, GossipFL's "long-tail",
        which allows 10 or 100 clients.
    """
    num_clients, by_class, sizes = checked_pool(rng, labels, num_clients)
    alpha = finite_number("alpha", alpha, 0, 1)
    if num_clients % len(sizes):
        raise ValueError(
            f"num_clients={num_clients} for {len(sizes)} classes; every class has the same number of main clients: "
            f"take a multiple of {len(sizes)}, as {math.ceil(num_clients / len(sizes)) * len(sizes)}."
        )
    counts = _counts(sizes, _shares(num_clients, len(sizes), alpha, quirk))
    return deal_by_class(shuffled(rng, by_class), counts)


def _shares(num_clients: int, num_labels: int, alpha: float, quirk: bool) -> np.ndarray:
    """Computes the share of each label that each client gets, `Float[C, N]`, in rows that sum to 1."""
    mains = num_clients // num_labels
    main_share = alpha / mains
    rest = 1.0 - (main_share if quirk else alpha)
    is_main = np.arange(num_clients) % num_labels == np.arange(num_labels)[:, None]
    shares = np.where(is_main, main_share, rest / max(1, num_clients - mains))
    total = shares.sum(axis=1, keepdims=True)
    return np.divide(shares, total, out=np.full(shares.shape, 1.0 / num_clients), where=total > 0)


def _counts(sizes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Computes the rows of each label that each client gets, `Int[C, N]`."""
    points = np.cumsum(shares, axis=1)
    points /= points[:, -1:]  # a sum that falls short of 1 by a rounding error would lose a row
    # Rounded first, so that a cut point that is whole stays so: 0.9 of 10 rows are 9 even if the sum is 0.8999....
    ends = np.floor(np.round(points * sizes[:, None], 6)).astype(np.int64)
    return np.diff(ends, axis=1, prepend=0)
