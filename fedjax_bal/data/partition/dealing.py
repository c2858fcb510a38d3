"""Deals rows out to clients: by weight, by owner, by counts of each class, or by fitted class probabilities."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

MAX_ROWS = 2**31 - 1
"""The largest number of rows: row numbers have 32 bits on the device."""

Local = Literal["even", "iid", "random"]
Skew = Literal["uniform", "exponential"]

_FITTING_STEPS = 50
_ENOUGH = 0.9  # of the usual total: with fewer rows, classes that run out would distort the set
_LARGEST_SCALE = 1e307


def rows_by_class(labels: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the row numbers of each class present, in the order of the labels, and their counts, `Int[C]`."""
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return split_at_sizes(np.argsort(codes, kind="stable"), sizes), sizes


def split_at_sizes(rows: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Cuts an array into consecutive views of given sizes."""
    ends = np.cumsum(sizes)
    return [rows[start:end] for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]


def even_sizes(total: int, pieces: int) -> np.ndarray:
    """Divides a number into integers that differ by at most 1, the larger ones first."""
    return np.full(pieces, total // pieces) + (np.arange(pieces) < total % pieces)


def equal_sizes(total: int, num_clients: int) -> np.ndarray:
    """Returns sizes of clients that differ by at most 1, `Int[N]`; raises `ValueError` if one would be 0."""
    check_clients_below_rows(num_clients, total)
    return even_sizes(total, num_clients)


def check_clients_below_rows(num_clients: int, total: int) -> None:
    """Raises `ValueError` if there are more clients than rows."""
    if num_clients > total:
        raise ValueError(f"{num_clients} clients for {total} rows: some would be left without rows; use fewer.")


def check_room(total: int, num_clients: int, least: int, name: str = "least") -> None:
    """Raises `ValueError` unless there are enough rows for each client to have the least size."""
    if num_clients * least > total:
        raise ValueError(
            f"{num_clients} clients of {least} rows or more ({name}) need {num_clients * least} rows, but there are "
            f"{total}; use fewer clients or a smaller {name}."
        )


def apportion(weights: Any, total: int, least: int = 0, most: np.ndarray | None = None) -> np.ndarray:
    """Apportions a total in integers by weight, each from `least` to `most`, `Int[n]`.

    The numbers are clip(s w, least, most) with the scale s for which they sum to the total, rounded by the method of
    largest remainders. So a number that would fall below `least` is raised to it, one that would exceed `most` is
    lowered to it, and all others stay in proportion to their weights, which are finite, not negative and not all 0.
    """
    weights = np.asarray(weights, np.float64)
    weights = weights / weights.max()
    most = np.full(weights.shape, total) if most is None else np.minimum(most, total)
    largest = int(np.where(weights > 0, most, least).sum())
    if not len(weights) * least <= total <= largest:
        raise ValueError(
            f"total={total} can't be shared out: with at least {least} each and what each may get, "
            f"{len(weights) * least} to {largest} are possible."
        )
    # By bisection, the largest scale for which the clipped numbers don't exceed the total in sum.
    positive = weights > 0
    low = 0.0
    with np.errstate(over="ignore"):
        high = min(float((most[positive] / weights[positive]).max()), _LARGEST_SCALE)
    while low < (middle := (low + high) / 2) < high:
        if np.clip(middle * weights, least, most).sum() <= total:
            low = middle
        else:
            high = middle
    # Largest remainders: the numbers that rounding lowers most get one more.
    exact = np.clip(low * weights, least, most)
    numbers = np.floor(exact).astype(np.int64)
    missing = total - int(numbers.sum())
    numbers[np.argsort(numbers - exact, kind="stable")[:missing]] += 1
    return numbers


def shuffled(rng: np.random.Generator, by_class: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Puts the rows of each class into random order."""
    return [rng.permutation(rows) for rows in by_class]


def deal_to_owners(rows: np.ndarray, owners: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """Gives each of the rows `Int[R]` to its owner `Int[R]`; a client's rows keep their order."""
    return split_at_sizes(rows[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=num_clients))


def deal_by_class(by_class: Sequence[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Deals the rows of each class to the clients in turn, `counts[c, k]` of class c to client k; others remain."""
    clients = np.arange(counts.shape[1])
    used = [rows[: count.sum()] for rows, count in zip(by_class, counts, strict=True)]
    owners = [np.repeat(clients, count) for count in counts]
    return deal_to_owners(np.concatenate(used), np.concatenate(owners), len(clients))


def cut_counts(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Cuts each class by the clients' shares of it, `Float[C, N]` up to a factor; returns counts `Int[C, N]`.

    Cut points are floor(n_c cumsum(shares)) in the order of the clients, so all of a class's `sizes` `Int[C]` rows are
    used, and a count is less than one row away from its exact value. Each class needs a share above 0.
    """
    points = np.cumsum(shares, axis=1)
    points /= points[:, -1:]  # a sum that falls short of 1 by a rounding error would lose a row
    # Rounded first, so that an integer cut point stays one: 0.9 of 10 rows are 9 even if the sum is 0.8999....
    ends = np.floor(np.round(points * sizes[:, None], 6)).astype(np.int64)
    return np.diff(ends, axis=1, prepend=0)


def class_quotas(shares: np.ndarray, available: np.ndarray, total: int | None, usual: int | None = None) -> np.ndarray:
    """Computes the number of rows of each class `Int[C]` in a set with given class shares.

    With `total`, the set has exactly that many rows: a class that runs out gives all it has, and the others make up for
    it in proportion to their shares. Otherwise it has `usual` rows, less those that a class lacks. If less than nine
    tenths of `usual` remain, or it is None, the set is the largest one with exactly these shares:
    min_c available_c / share_c rows.
    """
    if total is None and usual is not None:
        quotas = np.minimum(apportion(shares, usual), available)
        if quotas.sum() >= _ENOUGH * usual:
            return quotas
    owning = shares > 0
    if total is None:
        allowed = int((available[owning] / shares[owning]).min() * (1 + 1e-12))  # 100 / (1 / 75) is below 7,500
        total = allowed if usual is None else min(allowed, usual)
    held = int(available[owning].sum())
    if total > held:
        raise ValueError(f"total={total} rows, but the classes that take part hold {held}; omit it or use fewer.")
    return apportion(shares, total, most=available)


def deal_quotas(
    rng: np.random.Generator,
    by_class: Sequence[np.ndarray],
    quotas: np.ndarray,
    sizes: np.ndarray,
    local: Local,
    local_skew: Skew,
) -> list[np.ndarray]:
    """Draws `quotas` `Int[C]` rows of each class at random and deals them to clients of `sizes` `Int[N]`, the same sum.

    `"even"`: every client has the classes in the shares of the whole set, to within about a row. `"iid"`: rows are
    dealt at random. `"random"`: each client has its own class shares, the whole set's times independent weights.
    """
    drawn = [rows[:quota] for rows, quota in zip(shuffled(rng, by_class), quotas, strict=True)]
    shape = len(sizes), len(quotas)
    if local == "random":
        # Weights above 0, so that every class can be fitted.
        weights = 1 - rng.random(shape) if local_skew == "uniform" else rng.standard_exponential(shape) + 1e-12
        return deal_by_class(drawn, client_counts(rng, quotas * weights, sizes, quotas).T)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    if local == "even":
        # Rows are dealt class by class, so a client whose turns come at regular intervals gets its share of each class.
        turn = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        phase = (rng.permutation(len(sizes)) + 0.5) / len(sizes)
        owners = owners[np.argsort((turn + np.repeat(phase, sizes)) / np.repeat(sizes, sizes))]
    else:
        owners = rng.permutation(owners)
    return deal_to_owners(np.concatenate(drawn), owners, len(sizes))


def client_counts(
    rng: np.random.Generator, probabilities: np.ndarray, sizes: np.ndarray, quotas: np.ndarray
) -> np.ndarray:
    """Draws each client's rows `Int[N, C]` by its own class probabilities so that every class is used up exactly.

    No client is served before another. First `probabilities`, `Float[N, C]`, above 0 where the quota is, are fitted to
    the margins: rows and columns of the table are scaled in turn until row k sums to `sizes[k]` and column c
    to `quotas[c]`. Then each client draws its labels from its row. By chance some classes are then drawn too often and
    others too rarely, by about the square root of their quotas; surplus draws, chosen at random, are moved to the
    classes that lack some.
    """
    # Iterative proportional fitting; it needn't converge fully, since the surplus is moved afterwards.
    fitted = probabilities / probabilities.sum(axis=1, keepdims=True)
    for _ in range(_FITTING_STEPS):
        column_sums = np.maximum(sizes @ fitted, np.finfo(float).tiny)
        fitted = fitted * (quotas / column_sums)
        fitted /= fitted.sum(axis=1, keepdims=True)
    counts = rng.multinomial(sizes, fitted)
    surplus = counts.sum(axis=0) - quotas
    freed = np.zeros_like(sizes)
    for label in np.flatnonzero(surplus > 0):
        given = rng.multivariate_hypergeometric(counts[:, label], surplus[label], method="marginals")
        counts[:, label] -= given
        freed += given
    givers = rng.permutation(np.repeat(np.arange(len(sizes)), freed))
    np.add.at(counts, (givers, np.repeat(np.arange(len(quotas)), np.maximum(-surplus, 0))), 1)
    return counts
