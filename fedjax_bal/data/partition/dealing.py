"""Deals rows out to clients: by owner, by counts of each class, or by class laws that are fitted to the whole set."""

from collections.abc import Sequence

import numpy as np

from fedjax_bal.data.partition.sizes import apportioned
from fedjax_bal.data.row_numbers import cut
from fedjax_bal.validate import one_of, whole_number

_FITTING_STEPS = 50
_ENOUGH = 0.9  # of the usual total; below it classes that run out would change what the set is for


def shuffled(rng: np.random.Generator, by_class: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Puts the rows of each class into random order."""
    return [rng.permutation(rows) for rows in by_class]


def deal_to_owners(rows: np.ndarray, owners: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """Gives each of the rows `Int[R]` to its owner `Int[R]`; a client's rows keep their order."""
    return cut(rows[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=num_clients))


def deal_by_class(by_class: Sequence[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Deals the rows of each class to the clients in turn, `counts[c, k]` of class c to client k; others stay out."""
    clients = np.arange(counts.shape[1])
    used = [rows[: count.sum()] for rows, count in zip(by_class, counts, strict=True)]
    owners = [np.repeat(clients, count) for count in counts]
    return deal_to_owners(np.concatenate(used), np.concatenate(owners), len(clients))


def class_quotas(shares: np.ndarray, available: np.ndarray, total: int | None, usual: int | None = None) -> np.ndarray:
    """Determines the rows of each class `Int[C]` in a set of given class shares.

    With a total, exactly that many in all; a class that runs out gives all it has and the others make up for it, in
    proportion to their shares. Without, the usual total; a class that runs out gives all it has, and the set is that
    much smaller. If less than nine tenths remain, or there is no usual total, the largest set with exactly these
    shares: min_c available_c / share_c rows.
    """
    if total is None and usual is not None:
        quotas = np.minimum(apportioned(shares, usual), available)
        if quotas.sum() >= _ENOUGH * usual:
            return quotas
    owning = shares > 0
    if total is None:
        allowed = int((available[owning] / shares[owning]).min() * (1 + 1e-12))  # 100 / (1 / 75) is below 7,500
        total = allowed if usual is None else min(allowed, usual)
    total, held = whole_number("total", total), int(available[owning].sum())
    if total > held:
        raise ValueError(f"total={total} rows, but the classes that take part hold {held}; omit it or take fewer.")
    return apportioned(shares, total, most=available)


def deal_quotas(
    rng: np.random.Generator,
    by_class: Sequence[np.ndarray],
    quotas: np.ndarray,
    sizes: np.ndarray,
    local: str,
    local_skew: str,
) -> list[np.ndarray]:
    """Draws `Int[C]` rows of each class at random and deals them to clients of the sizes `Int[N]`, the same sum.

    `"even"`: every client has the classes in the shares of the whole set, to within about a row. `"iid"`: rows are
    dealt at random. `"random"`: each client has its own class law, the whole set's times independent weights.
    """
    one_of("local", local, ("even", "iid", "random"))
    drawn = [rows[:quota] for rows, quota in zip(shuffled(rng, by_class), quotas, strict=True)]
    if local == "random":
        laws = _skewed(rng, quotas, len(sizes), local_skew)
        return deal_by_class(drawn, client_counts(rng, laws, sizes, quotas).T)
    owners = _in_turn(rng, sizes) if local == "even" else rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return deal_to_owners(np.concatenate(drawn), owners, len(sizes))


def _in_turn(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """Draws an order of turns, `Int[T]`, in which each client comes at regular intervals."""
    clients = np.arange(len(sizes))
    turn = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    phase = (rng.permutation(len(sizes)) + 0.5) / len(sizes)
    return np.repeat(clients, sizes)[np.argsort((turn + np.repeat(phase, sizes)) / np.repeat(sizes, sizes))]


def _skewed(rng: np.random.Generator, quotas: np.ndarray, num_clients: int, local_skew: str) -> np.ndarray:
    """Draws the clients' class laws before they are fitted, `Float[N, C]`, not normalised."""
    one_of("local_skew", local_skew, ("uniform", "exponential"))
    shape = num_clients, len(quotas)
    # Above 0, so that every class can be fitted.
    return quotas * (1 - rng.random(shape) if local_skew == "uniform" else rng.standard_exponential(shape) + 1e-12)


def client_counts(rng: np.random.Generator, laws: np.ndarray, sizes: np.ndarray, quotas: np.ndarray) -> np.ndarray:
    """Draws each client's rows `Int[N, C]` by its own class law so that every class is used up exactly.

    No client is served before another. First the laws `Float[N, C]`, above 0 where the quota is, are fitted to the
    margins: rows and columns of the table are scaled in turn until row k sums to `sizes[k]` and column c to
    `quotas[c]`. Then each client draws its labels by its row. By chance a class is then drawn a little too often,
    another one too seldom, by about the square root of its quota; as many draws of the former, chosen at random, are
    turned into draws of the latter.
    """
    fitted = laws / laws.sum(axis=1, keepdims=True)
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
