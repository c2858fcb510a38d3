"""Partitions where each class is divided among the clients by a Dirichlet distribution."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedjax_bal.annotations import Count, CountOrZero, Positive, checked
from fedjax_bal.data.partition import dealing
from fedjax_bal.data.partition.pathological import classes_of_clients, draw_owners

_MAX_REDRAWS = 100
_MAX_SHARES_DRAWN = 3 * 10**7
_CBFL_THRESHOLD = 5
_GROUP = 10
_LEAST_SHARE = 1e-12


@checked
def dirichlet(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count,
    alpha: Positive,
    form: Literal["balanced", "plain", "cbfl"] = "balanced",
    min_size: CountOrZero = 10,
) -> list[np.ndarray]:
    r"""Divides each class among the clients in proportions q ~ Dirichlet(alpha, ..., alpha).

    `"balanced"`: for each class, clients that already hold D / N rows or more are left out. The other entries of a
    Dirichlet vector, renormalised, are again Dirichlet, so q is drawn over the remaining clients only; the usual way
    (zero the entries, divide by the sum) has the same distribution but divides 0 by 0 for small alpha. Cut points are
    floor(n_c cumsum(q)) and all rows are used. The draw is repeated until every client has `min_size` rows, up to 100
    times (fewer if clients x classes exceeds 300,000). For small alpha no draw may succeed; then the one that lacks
    the fewest rows is repaired: the largest clients are cut down to a common size, and the rows taken from them, chosen
    at random and passed on in runs of one class, fill up the clients below `min_size`, which stay skewed.

    `"plain"`: the same with all clients taking part in every class.

    `"cbfl"`: shares n_c q are rounded and taken in the order of the clients while rows last; for alpha < 0.1 or more
    than 200 clients they are first clipped to [5, n_c - 5]. Rows may be left over and clients may be empty.

    Args:
        rng: source of randomness.
        labels: `Int[D]`.
        num_clients: N.
        alpha: concentration, above 0; small means few classes per client.
        form: `"balanced"`, `"plain"` or `"cbfl"`.
        min_size: the least number of rows of a client, ignored by form `"cbfl"`; N times this must not exceed D.

    Returns:
        N disjoint arrays of row numbers.

    Raises:
        ValueError: fewer than N x min_size rows, no client gets a row (form `"cbfl"`), or invalid arguments.

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
    by_class, sizes = dealing.rows_by_class(labels)
    if form == "cbfl":
        counts = np.empty((len(sizes), num_clients), np.int64)
        for label, size in enumerate(sizes):
            shares = size * rng.dirichlet(np.full(num_clients, alpha))
            if alpha < 0.1 or num_clients > 200:
                shares = np.clip(shares, _CBFL_THRESHOLD, max(_CBFL_THRESHOLD, size - _CBFL_THRESHOLD))
            ends = np.minimum(np.cumsum(np.rint(shares).astype(np.int64)), size)
            counts[label] = np.diff(ends, prepend=0)
        if not counts.any():
            raise ValueError(
                f"no client gets a row: with {num_clients} clients and {sizes.max()} rows in the largest class every "
                "share rounds to 0; use fewer clients."
            )
        return dealing.deal_by_class(dealing.shuffled(rng, by_class), counts)
    dealing.check_room(len(labels), num_clients, min_size, "min_size")
    counts = _draw_counts(rng, sizes, num_clients, alpha, min_size, level=form == "balanced")
    parts = dealing.deal_by_class(dealing.shuffled(rng, by_class), counts)
    held = np.array([len(part) for part in parts])
    lacking = np.maximum(min_size - held, 0)
    if not lacking.any():
        return parts
    # No draw succeeded: the largest clients, cut to a common size, give random rows to those below `min_size`.
    given = held - dealing.apportion(np.ones(num_clients), int(held.sum() - lacking.sum()), most=held)
    rows = np.concatenate(parts)
    owner = np.repeat(np.arange(num_clients), held)
    # Rows are in random order within each owner, and the first `given` ones are moved.
    shuffled_order = np.lexsort((rng.random(len(rows)), owner))
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(held) - held, held)
    moved = np.sort(shuffled_order[rank < given[owner]])  # ascending: donor by donor, class by class
    owner[moved] = np.repeat(np.arange(num_clients), lacking)
    return dealing.deal_to_owners(rows, owner, num_clients)


def _draw_counts(
    rng: np.random.Generator, sizes: np.ndarray, num_clients: int, alpha: float, min_size: int, level: bool
) -> np.ndarray:
    """Draws counts `Int[C, N]` until every client has `min_size` rows; if none succeeds, keeps the nearest draw.

    `level` leaves out clients that already hold the mean share.
    """
    best = np.zeros((len(sizes), num_clients), np.int64)
    fewest = math.inf
    for _ in range(min(_MAX_REDRAWS, max(1, _MAX_SHARES_DRAWN // (len(sizes) * num_clients)))):
        counts = np.zeros_like(best)
        held = np.zeros(num_clients, np.int64)
        for label, size in enumerate(sizes):
            open_clients = np.flatnonzero(held * num_clients < sizes.sum()) if level else np.arange(num_clients)
            if not len(open_clients):
                break  # every client has the mean share, so that no class has rows left
            points = np.cumsum(rng.dirichlet(np.full(len(open_clients), alpha)))
            points /= points[-1]  # a sum that falls short of 1 by a rounding error would lose a row
            counts[label, open_clients] = np.diff(np.floor(points * size).astype(np.int64), prepend=0)
            held += counts[label]
        lacking = int(np.maximum(min_size - held, 0).sum())
        if lacking < fewest:
            best = counts
            fewest = lacking
        if lacking == 0:
            break
    return best


@checked
def equal_cut_dirichlet(
    rng: np.random.Generator, labels: np.ndarray, num_clients: Count, alpha: Positive
) -> list[np.ndarray]:
    """Divides classes by Dirichlet shares within groups of ten, joins the rows, and cuts them into equal parts.

    There are ceil(N / 10) groups of ten members, the last one perhaps smaller; rows are divided at random among the
    groups in proportion to their members. Within a group each class is divided among the members as in `dirichlet`,
    form "balanced". That draw is repeated until every member has at least half of its mean share, up to 100 times; then
    the draw that lacks the fewest rows is kept. The members' rows, each member's sorted by class, are joined and cut
    into N parts whose sizes differ by at most 1. So a client may have the last classes of one member and the first ones
    of the next.

    Args:
        rng: source of randomness.
        labels: `Int[D]`.
        num_clients: N, at most D.
        alpha: concentration, above 0; small means few classes per client.

    Returns:
        N disjoint arrays of row numbers that cover all rows.

    Raises:
        ValueError: fewer rows than clients, or invalid arguments.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> parts = equal_cut_dirichlet(np.random.default_rng(0), labels, 40, alpha=0.1)
        >>> {len(rows) for rows in parts}, len(np.unique(np.concatenate(parts)))
        ({25}, 1000)

    References:
        Lin et al.: Ensemble Distillation for Robust Model Fusion in Federated Learning (FedDF), 2020, the authors'
        code, which leaves out the remainder; Shang et al.: Federated Learning on Heterogeneous and Long-Tailed
        Data via Classifier Re-Training with Federated Features (CReFF), 2022, the authors' code. Both need at least
        ten clients, and draw until it succeeds, which may never end.
    """
    total = len(labels)
    sizes = dealing.equal_sizes(total, num_clients)
    by_class, _ = dealing.rows_by_class(labels)
    members = [min(_GROUP, num_clients - first) for first in range(0, num_clients, _GROUP)]
    ends = int(_GROUP / num_clients * total) * np.arange(1, len(members))
    group_of_row = np.empty(total, np.int64)
    group_of_row[rng.permutation(total)] = np.searchsorted(ends, np.arange(total), side="right")
    # Each class is sorted by group once: searching it for each of many groups would take their product.
    sorted_classes = [dealing.deal_to_owners(rows, group_of_row[rows], len(members)) for rows in by_class]
    line = []
    for count, *of_group in zip(members, *sorted_classes, strict=True):
        in_group = [rng.permutation(rows) for rows in of_group]
        held = np.array([len(rows) for rows in in_group])
        counts = _draw_counts(rng, held, count, alpha, int(0.5 * held.sum() / count), level=True)
        line += dealing.deal_by_class(in_group, counts)
    return dealing.split_at_sizes(np.concatenate(line), sizes)


@checked
def extended_dirichlet(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count,
    classes_per_client: Count | Sequence[Count],
    alpha: Positive,
) -> list[np.ndarray]:
    """Limits the classes of each client, and divides each class among its owners in unequal proportions.

    Client i owns label i mod C and others at random. The shares of a label's owners are drawn from
    Dirichlet(alpha, ..., alpha); each gets at least one row. With a large alpha it is `pathological` in the form
    "niid_bench", with all classes for every client it is like `dirichlet`. A label without an owner is left out.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; C is the number of different ones.
        num_clients: N.
        classes_per_client: the number of labels that each client holds, or a sequence of such numbers that the clients
            cycle through.
        alpha: concentration, above 0; small means that a few owners hold most of a class.

    Returns:
        N disjoint arrays of row numbers.

    Raises:
        ValueError: more classes per client than there are, a label with fewer rows than owners, or arguments of the
            wrong kind.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> parts = extended_dirichlet(np.random.default_rng(0), labels, 20, 2, alpha=0.5)
        >>> {len(np.unique(labels[rows])) for rows in parts}, sum(map(len, parts))
        ({2}, 1000)

    References:
        Li, Lyu: Convergence Analysis of Sequential Federated Learning on Heterogeneous Data, 2023, which
        allots the classes evenly, and may leave an owner without rows.
    """
    by_class, sizes = dealing.rows_by_class(labels)
    owners, _ = draw_owners(rng, classes_of_clients(classes_per_client, num_clients, len(sizes)), len(sizes))
    counts = np.zeros((len(sizes), num_clients), np.int64)
    for label, size in enumerate(sizes.tolist()):
        members = np.flatnonzero(owners[:, label])
        if len(members) > size:
            raise ValueError(
                f"a label with {size} rows has {len(members)} owners, who get at least one row each; use fewer "
                "clients or fewer classes per client."
            )
        if len(members):
            shares = rng.dirichlet(np.full(len(members), alpha))
            counts[label, members] = dealing.apportion(np.where(shares < _LEAST_SHARE, 0.0, shares), size, least=1)
    return dealing.deal_by_class(dealing.shuffled(rng, by_class), counts)
