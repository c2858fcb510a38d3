"""Rows that nobody is trained on: a validation split, and each client's own test rows."""

from collections.abc import Sequence

import numpy as np

from fedjax_bal.data.row_numbers import cut, rows_by_label
from fedjax_bal.validate import checked_labels, whole_number


def carve_share(rng: np.random.Generator, labels: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Takes the same share of each class out of the data, before it is partitioned.

    Args:
        rng: source of randomness.
        labels: `Int[D]`.
        fraction: the share, above 0 and below 1; of each class it is rounded to whole rows, at least one and never all.

    Returns:
        The rows taken, class after class, and all the others, ascending.

    Raises:
        ValueError: a share out of range, or one that leaves nothing to take.

    Example:
        >>> labels = np.repeat([0, 1], [8, 4])
        >>> taken, rest = carve_share(np.random.default_rng(0), labels, 0.25)
        >>> labels[taken], len(rest)
        (array([0, 0, 1]), 9)
    """
    labels = checked_labels(labels)
    rows, _, sizes = rows_by_label(labels)
    counts = _share_of(sizes, fraction)
    if not counts.any():
        raise ValueError("labels has at most one row of each class; a share can be taken of two or more.")
    own = zip(cut(rows, sizes), counts, strict=True)
    taken = np.concatenate([rng.choice(mine, count, replace=False) for mine, count in own])
    left = np.ones(len(labels), bool)
    left[taken] = False
    return taken, np.flatnonzero(left)


def hold_out(
    rng: np.random.Generator, rows_per_client: Sequence[np.ndarray], fraction: float
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Splits each client's rows into those that it is trained on and those that it is tested on.

    A row that clients share and one of them holds out is trained on by none of them: it is among the test rows of all.

    Args:
        rng: source of randomness.
        rows_per_client: N arrays of row numbers.
        fraction: the share of test rows, above 0 and below 1; of each client it is rounded to whole rows, at least one
            and never all, so that a client with a single row has none.

    Returns:
        The training rows of each client and its test rows, each in the order in which they came.

    Raises:
        ValueError: a share out of range.

    Example:
        >>> training, tests = hold_out(np.random.default_rng(0), [np.arange(10), np.array([10])], 0.2)
        >>> [len(own) for own in training], [len(own) for own in tests]
        ([8, 1], [2, 0])
    """
    listed = [np.asarray(own) for own in rows_per_client]
    sizes = np.array([len(own) for own in listed])
    counts = _share_of(sizes, fraction)
    flat = np.concatenate(listed).astype(np.int64) if sizes.sum() else np.zeros(0, np.int64)
    rows, which = np.unique(flat, return_inverse=True)
    # One draw for each row, and not for each of its owners, so that owners agree on most of what they share.
    draws = rng.permutation(len(rows))[which.reshape(-1)]
    out = np.zeros(len(rows), bool)
    for own, draw, count in zip(cut(which.reshape(-1), sizes), cut(draws, sizes), counts, strict=True):
        out[own[np.argsort(draw)[:count]]] = True
    masks = cut(out[which.reshape(-1)], sizes)
    split = list(zip(listed, masks, strict=True))
    return [own[~mask] for own, mask in split], [own[mask] for own, mask in split]


def rows_by_share(
    rng: np.random.Generator, class_counts: np.ndarray, test_labels: np.ndarray, per_client: int
) -> list[np.ndarray]:
    """Draws each client rows of a common test set, in the proportions of its own classes.

    Of `per_client` rows a class gets its share, rounded down; what is left goes to the largest remainders. A class of
    which the test set has fewer gives all that it has.

    Args:
        rng: source of randomness.
        class_counts: what each client is trained on, `Int[N, C]`; a client without rows gets none.
        test_labels: `Int[T]`.
        per_client: rows to draw for each client.

    Returns:
        N arrays of row numbers of the test set, none twice in one of them; two clients may have the same.

    Raises:
        ValueError: not a whole number of at least 1, or labels that aren't integers.

    Example:
        >>> labels = np.repeat([0, 1], 5)
        >>> rows = rows_by_share(np.random.default_rng(0), np.array([[3, 1], [0, 9]]), labels, 4)
        >>> [np.bincount(labels[own], minlength=2).tolist() for own in rows]
        [[3, 1], [0, 4]]
    """
    labels, per_client = checked_labels(test_labels), whole_number("per_client", per_client)
    counts = np.asarray(class_counts, np.int64)
    pools = [np.flatnonzero(labels == label) for label in range(counts.shape[1])]
    found = []
    for own in counts:
        wanted = np.minimum(_apportioned(own, per_client), [len(pool) for pool in pools])
        drawn = [rng.choice(pool, count, replace=False) for pool, count in zip(pools, wanted, strict=True) if count]
        found.append(np.concatenate(drawn) if drawn else np.zeros(0, np.int64))
    return found


def _share_of(sizes: np.ndarray, fraction: float) -> np.ndarray:
    """How many rows of each group are taken: the share of them, at least one of two or more, never all."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction!r}; expected a number above 0 and below 1.")
    wanted = np.rint(fraction * np.asarray(sizes)).astype(np.int64)
    return np.clip(wanted, 1, np.maximum(sizes - 1, 1)) * (np.asarray(sizes) > 1)


def _apportioned(counts: np.ndarray, total: int) -> np.ndarray:
    """A number divided in the proportions of some counts, by largest remainders; zeros where there are none."""
    whole = int(counts.sum())
    if not whole:
        return np.zeros(len(counts), np.int64)
    shares, rest = np.divmod(counts * total, whole)
    shares[np.argsort(-rest, kind="stable")[: total - int(shares.sum())]] += 1
    return shares
