"""Rows held out of training: auxiliary sets, a validation split, and each client's own test rows."""

from collections.abc import Sequence

import numpy as np

from fedjax_bal.data.row_numbers import cut, rows_by_label
from fedjax_bal.validate import check_generator, checked_labels, whole_number


def carve(rng: np.random.Generator, labels: np.ndarray, per_class: int) -> tuple[np.ndarray, np.ndarray]:
    """Takes the same number of rows of each class present out of the data, before it is partitioned.

    The rows make an auxiliary set of the server. Partition `labels[rest]`; its row numbers then point into `rest`.

    Args:
        rng: source of randomness.
        labels: `Int[D]`.
        per_class: rows to take from each class.

    Returns:
        The rows taken, `Int[per_class * classes present]`, class after class, and the others, ascending.

    Raises:
        ValueError: a class has too few rows, or an argument is of the wrong kind.

    Example:
        >>> from fedjax_bal.data import federate
        >>> labels = np.array([0, 1, 0, 1, 0])
        >>> auxiliary, rest = carve(np.random.default_rng(0), labels, 1)
        >>> labels[auxiliary], len(rest)
        (array([0, 1]), 3)
        >>> clients = [rest[np.array([0, 2])], rest[np.array([1])]]
        >>> federate(np.zeros((5, 2, 2, 1)), labels, clients, 2, {"server": auxiliary}).num_clients
        2
    """
    check_generator(rng)
    labels, per_class = checked_labels(labels), whole_number("per_class", per_class)
    rows, starts, sizes = rows_by_label(labels)
    if sizes.min() < per_class:
        rarest = int(np.argmin(sizes))
        raise ValueError(
            f"per_class={per_class}, but class {labels[rows[starts[rarest]]]} has only {sizes[rarest]} rows; take at "
            "most as many."
        )
    return _draw(rng, cut(rows, sizes), np.full(len(sizes), per_class))


def carve_share(rng: np.random.Generator, labels: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Takes the same share of each class out of the data, before it is partitioned.

    Args:
        rng: source of randomness.
        labels: `Int[D]`.
        fraction: the share, above 0 and below 1; in each class rounded to whole rows, at least one and never all.

    Returns:
        The rows taken, class after class, and the others, ascending.

    Raises:
        ValueError: the share is out of range, or no class has two rows.

    Example:
        >>> labels = np.repeat([0, 1], [8, 4])
        >>> taken, rest = carve_share(np.random.default_rng(0), labels, 0.25)
        >>> labels[taken], len(rest)
        (array([0, 0, 1]), 9)
    """
    check_generator(rng)
    labels = checked_labels(labels)
    rows, _, sizes = rows_by_label(labels)
    counts = _share_of(sizes, fraction)
    if not counts.any():
        raise ValueError("labels has at most one row of each class; a share can be taken of two or more.")
    return _draw(rng, cut(rows, sizes), counts)


def hold_out(
    rng: np.random.Generator, rows_per_client: Sequence[np.ndarray], fraction: float
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Splits each client's rows into training and test rows.

    A row that several clients share is a test row of all of them if one of them holds it out. So a client that shares
    rows may have more test rows than its share, and no training row in the worst case.

    Args:
        rng: source of randomness.
        rows_per_client: N arrays of row numbers.
        fraction: the share of test rows, above 0 and below 1; for each client rounded to whole rows, at least one and
            never all, so that a client with a single row has none.

    Returns:
        The training rows of each client, and its test rows, in the given order.

    Raises:
        ValueError: the share is out of range.

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
    # One draw for each row, and not for each of its owners, so that owners hold out mostly the same shared rows.
    draws = rng.permutation(len(rows))[which]
    out = np.zeros(len(rows), bool)
    for own, draw, count in zip(cut(which, sizes), cut(draws, sizes), counts, strict=True):
        out[own[np.argsort(draw)[:count]]] = True
    split = list(zip(listed, cut(out[which], sizes), strict=True))
    return [own[~mask] for own, mask in split], [own[mask] for own, mask in split]


def rows_by_share(
    rng: np.random.Generator, class_counts: np.ndarray, test_labels: np.ndarray, per_client: int
) -> list[np.ndarray]:
    """Draws each client rows of a common test set, in the proportions of its own classes.

    Each class gets its share of `per_client` rows, rounded by largest remainders, equal ones in random order, or all
    its test rows if these are fewer.

    Args:
        rng: source of randomness.
        class_counts: each client's training rows by class, `Int[N, C]`; a client without rows gets none.
        test_labels: `Int[T]`.
        per_client: rows to draw for each client.

    Returns:
        N arrays of row numbers of the test set, different ones within a client; clients may share rows.

    Raises:
        ValueError: `per_client` is not an integer of at least 1, or labels aren't integers.

    Example:
        >>> labels = np.repeat([0, 1], 5)
        >>> rows = rows_by_share(np.random.default_rng(0), np.array([[3, 1], [0, 9]]), labels, 4)
        >>> [np.bincount(labels[own], minlength=2).tolist() for own in rows]
        [[3, 1], [0, 4]]
    """
    check_generator(rng)
    labels, per_client = checked_labels(test_labels), whole_number("per_client", per_client)
    counts = np.asarray(class_counts, np.int64)
    pools = [np.flatnonzero(labels == label) for label in range(counts.shape[1])]
    found = []
    for own in counts:
        wanted = np.minimum(_apportioned(rng, own, per_client), [len(pool) for pool in pools])
        drawn = [rng.choice(pool, count, replace=False) for pool, count in zip(pools, wanted, strict=True) if count]
        found.append(np.concatenate(drawn) if drawn else np.zeros(0, np.int64))
    return found


def _draw(rng: np.random.Generator, groups: Sequence[np.ndarray], counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draws a number of rows from each group; returns them and the others, ascending."""
    own = zip(groups, counts, strict=True)
    taken = np.concatenate([rng.choice(rows, count, replace=False) for rows, count in own])
    return taken, np.delete(np.arange(sum(map(len, groups))), taken)


def _share_of(sizes: np.ndarray, fraction: float) -> np.ndarray:
    """Returns the number of rows to take from each group: its share, at least one of two or more, and never all."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction!r}; expected a number above 0 and below 1.")
    wanted = np.rint(fraction * np.asarray(sizes)).astype(np.int64)
    return np.clip(wanted, 1, np.maximum(sizes - 1, 1)) * (np.asarray(sizes) > 1)


def _apportioned(rng: np.random.Generator, counts: np.ndarray, total: int) -> np.ndarray:
    """Divides a number in the proportions of some counts, by largest remainders; zeros if all counts are 0."""
    whole = int(counts.sum())
    if not whole:
        return np.zeros(len(counts), np.int64)
    shares, rest = np.divmod(counts * total, whole)
    by_rest = np.lexsort((rng.random(len(rest)), -rest))
    shares[by_rest[: total - int(shares.sum())]] += 1
    return shares
