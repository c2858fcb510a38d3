"""Rows and clients held out of training: auxiliary sets, a validation split, clients' test rows, and new clients."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedjax_bal.annotations import Count, ProperShare, checked
from fedjax_bal.data.partition.dealing import rows_by_class, split_at_sizes
from fedjax_bal.types import ClientTests, Federation
from fedjax_bal.validate import checked_labels


@checked
def carve(rng: np.random.Generator, labels: np.ndarray, per_class: Count) -> tuple[np.ndarray, np.ndarray]:
    """Draws the same number of rows of each class present, for an auxiliary set, before the data are partitioned.

    Partition `labels[rest]`; the resulting row numbers then index `rest`.

    Args:
        rng: source of randomness.
        labels: `Int[D]`.
        per_class: rows to take from each class.

    Returns:
        The rows taken, `Int[per_class * classes present]`, class after class, and the others, ascending.

    Raises:
        ValueError: a class has too few rows, or an argument is invalid.

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
    groups, sizes = rows_by_class(labels)
    if sizes.min() < per_class:
        rarest = int(np.argmin(sizes))
        raise ValueError(
            f"per_class={per_class}, but class {labels[groups[rarest][0]]} has only {sizes[rarest]} rows; use at "
            "most as many."
        )
    return _draw(rng, groups, np.full(len(sizes), per_class))


@checked
def carve_share(rng: np.random.Generator, labels: np.ndarray, fraction: ProperShare) -> tuple[np.ndarray, np.ndarray]:
    """Draws the same share of each class, before the data are partitioned.

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
    groups, sizes = rows_by_class(labels)
    counts = _share_of(sizes, fraction)
    if not counts.any():
        raise ValueError("labels has at most one row of each class; a share can be taken of two or more.")
    return _draw(rng, groups, counts)


def split_test_rows(labels: np.ndarray, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Splits the rows of a data set that has no test set: training rows and test rows, both ascending.

    The same share of each class is drawn for testing by `carve_share`, so the split depends on labels, share and seed
    alone. A class with a single row is in the training set only.

    Raises:
        ValueError: no class has two rows.

    Example:
        >>> training, testing = split_test_rows(np.repeat([0, 1], [10, 5]), 0.2)
        >>> len(training), np.repeat([0, 1], [10, 5])[testing]
        (12, array([0, 0, 1]))
    """
    if len(np.unique(labels)) == len(labels):
        raise ValueError(
            f"{len(labels)} rows have {len(labels)} different labels, and a test set is drawn from classes of two rows "
            "or more; check the labels, or give a test set."
        )
    testing, training = carve_share(np.random.default_rng(seed), labels, share)
    return training, np.sort(testing)


def split_test_users(
    labels: np.ndarray, users: np.ndarray, share: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Splits the rows of a data set that has no test set, so that no user has rows in both parts.

    The users who are held out are drawn at random, a share of all: at least one, never all. Classes aren't balanced.

    Args:
        labels: `Int[D]`.
        users: who each row belongs to, `[D]`.
        share: the share of users, above 0 and below 1.
        seed: the seed of the draw.

    Returns:
        Training rows and test rows, both ascending.

    Raises:
        ValueError: there is one user, or a class has no rows but those of users held out.

    Example:
        >>> users = np.array(list("aabbccdd"))
        >>> training, testing = split_test_users(np.arange(8) % 2, users, 0.25)
        >>> users[testing]
        array(['d', 'd'], dtype='<U1')
    """
    names, owners = np.unique(users, return_inverse=True)
    if len(names) < 2:
        raise ValueError("test_by: received 'clients', but all rows belong to one user; use 'classes'")
    (count,) = _share_of(np.array([len(names)]), share)
    held = np.isin(owners, np.random.default_rng(seed).choice(len(names), count, replace=False))
    lost = np.setdiff1d(labels, labels[~held])
    if len(lost):
        raise ValueError(
            f"{len(lost)} of {len(np.unique(labels))} classes have no rows but those of users held out ({count} of "
            f"{len(names)}) for testing: give another test_seed, or a smaller share"
        )
    return np.flatnonzero(~held), np.flatnonzero(held)


@checked
def hold_out(
    rng: np.random.Generator, rows_per_client: Sequence[np.ndarray], fraction: ProperShare
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Splits each client's rows into training and test rows.

    A shared row that one client holds out is a test row of all clients that have it. So a client with shared rows may
    have more test rows than its share, and no training rows in the worst case.

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
        >>> list(map(len, training)), list(map(len, tests))
        ([8, 1], [2, 0])
    """
    listed = [np.asarray(rows) for rows in rows_per_client]
    sizes = np.array(list(map(len, listed)))
    counts = _share_of(sizes, fraction)
    flat = np.concatenate(listed).astype(np.int64) if sizes.sum() else np.zeros(0, np.int64)
    distinct, which = np.unique(flat, return_inverse=True)
    # One draw per row, not per owner of it, so that owners of shared rows hold out mostly the same ones.
    draws = rng.permutation(len(distinct))[which]
    out = np.zeros(len(distinct), bool)
    for rows, draw, count in zip(split_at_sizes(which, sizes), split_at_sizes(draws, sizes), counts, strict=True):
        out[rows[np.argsort(draw)[:count]]] = True
    masks = split_at_sizes(out[which], sizes)
    training = [rows[~mask] for rows, mask in zip(listed, masks, strict=True)]
    return training, [rows[mask] for rows, mask in zip(listed, masks, strict=True)]


@checked
def hold_out_clients(
    rng: np.random.Generator, federation: Federation, share: ProperShare
) -> tuple[Federation, Federation]:
    """Splits a federation into the clients that train and new ones, which join when training is over.

    The two share images, labels, auxiliary sets and constants of normalisation. Clients keep their order and names. A
    row that a new client shares with another client stays a training row of the other one.

    Args:
        rng: source of randomness.
        federation: N clients.
        share: the share of new clients, above 0 and below 1; rounded to whole clients, at least one and never all.

    Returns:
        The federation to train on, and that of the new clients, for `fedjax_bal.fine_tune`.

    Raises:
        ValueError: the share is out of range, or there is only one client.

    Example:
        >>> from fedjax_bal.data import federate
        >>> labels = np.arange(10) % 2
        >>> whole = federate(np.zeros((10, 3), np.float32), labels, np.arange(10).reshape(5, 2), num_classes=2)
        >>> federation, new = hold_out_clients(np.random.default_rng(0), whole, 0.4)
        >>> federation.num_clients, new.num_clients, federation.rows, new.rows
        (3, 2, array([0, 1, 2, 3, 4, 5], dtype=int32), array([6, 7, 8, 9], dtype=int32))
    """
    clients = federation.num_clients
    count = num_new_clients(clients, share)
    if not count:
        raise ValueError(f"received {share} and a federation of one client; at least one must be left to train")
    new = np.zeros(clients, bool)
    new[rng.choice(clients, count, replace=False)] = True
    return _with_clients(federation, ~new), _with_clients(federation, new)


def num_new_clients(clients: int, share: float) -> int:
    """Returns how many of some clients are new ones: their share, at least one but never all.

    Example:
        >>> num_new_clients(20, 0.2), num_new_clients(3, 0.01), num_new_clients(3, 0.99), num_new_clients(1, 0.5)
        (4, 1, 2, 0)
    """
    return int(_share_of(np.array([clients]), share)[0])


def _with_clients(federation: Federation, kept: np.ndarray) -> Federation:
    """Leaves out the clients that aren't `kept`, `Bool[N]`."""
    rows, offsets = _spans(federation.rows, federation.offsets, kept)
    tests = None
    if federation.tests is not None:
        tests = ClientTests(*_spans(*federation.tests, kept))
    names = federation.names
    if names is not None and names.clients is not None:
        clients = tuple(name for name, keep in zip(names.clients, kept, strict=True) if keep)
        names = dataclasses.replace(names, clients=clients)
    return federation._replace(
        rows=rows,
        offsets=offsets,
        class_counts=np.asarray(federation.class_counts)[kept],
        copy=_spans(federation.copy, federation.offsets, kept)[0],
        tests=None if tests is None or not len(tests.rows) else tests,
        names=names,
    )


def _spans(rows: np.ndarray, offsets: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the clients that are `kept`, and their offsets."""
    sizes = np.diff(offsets)
    return np.asarray(rows)[np.repeat(kept, sizes)], np.append(0, np.cumsum(sizes[kept])).astype(np.int32)


@checked
def rows_by_share(
    rng: np.random.Generator, class_counts: np.ndarray, test_labels: np.ndarray, per_client: Count
) -> list[np.ndarray]:
    """Draws test rows for each client from a common test set, in the class proportions of its training rows.

    Each class gets its share of `per_client` rows, rounded by largest remainders with ties broken at random, or all its
    test rows if these are fewer.

    Args:
        rng: source of randomness.
        class_counts: each client's training rows by class, `Int[N, C]`; a client without rows gets none.
        test_labels: `Int[T]`.
        per_client: rows to draw for each client.

    Returns:
        N arrays of row numbers in the test set, distinct within a client; clients may share rows.

    Raises:
        ValueError: `per_client` is not an integer of at least 1, or labels aren't integers.

    Example:
        >>> labels = np.repeat([0, 1], 5)
        >>> rows = rows_by_share(np.random.default_rng(0), np.array([[3, 1], [0, 9]]), labels, 4)
        >>> [np.bincount(labels[own], minlength=2).tolist() for own in rows]
        [[3, 1], [0, 4]]
    """
    labels = checked_labels(test_labels)
    counts = np.asarray(class_counts, np.int64)
    pools = [np.flatnonzero(labels == label) for label in range(counts.shape[1])]
    rows = []
    for of_client in counts:
        total = int(of_client.sum())
        if not total:
            rows.append(np.zeros(0, np.int64))
            continue
        wanted, rest = np.divmod(of_client * per_client, total)
        by_rest = np.lexsort((rng.random(len(rest)), -rest))
        wanted[by_rest[: per_client - int(wanted.sum())]] += 1
        wanted = np.minimum(wanted, [len(pool) for pool in pools])
        drawn = [rng.choice(pool, count, replace=False) for pool, count in zip(pools, wanted, strict=True) if count]
        rows.append(np.concatenate(drawn) if drawn else np.zeros(0, np.int64))
    return rows


def _draw(rng: np.random.Generator, groups: Sequence[np.ndarray], counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draws `counts` rows from each group; returns them, and the others in ascending order."""
    drawn = [rng.choice(rows, count, replace=False) for rows, count in zip(groups, counts, strict=True)]
    taken = np.concatenate(drawn)
    return taken, np.delete(np.arange(sum(map(len, groups))), taken)


def _share_of(sizes: np.ndarray, fraction: float) -> np.ndarray:
    """Returns the number of rows to take from each group: its share, at least one but never all; 0 of a single row."""
    wanted = np.rint(fraction * sizes).astype(np.int64)
    return np.clip(wanted, 1, np.maximum(sizes - 1, 1)) * (sizes > 1)
