"""Draws a set of given class shares from a pool and deals it out to clients of given sizes."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_bal.data.partition.sizes import apportioned, checked_sigma, empirical_sizes, lognormal_sizes
from fedjax_bal.data.row_numbers import cut, even_sizes, rows_by_label
from fedjax_bal.validate import whole_number

_FITTING_STEPS = 50
_ENOUGH = 0.9  # of the usual total; below it classes that run out would change what the set is for


def class_quotas(shares: np.ndarray, available: np.ndarray, total: int | None, usual: int | None = None) -> np.ndarray:
    """How many rows of each class a set of given class shares has.

    With a total, exactly that many in all; a class that runs out gives all it has and the others make up for it, in
    proportion to their shares. Without, the usual total; a class that runs out gives all it has, and the set is that
    much smaller. If less than nine tenths are left so, or there is no usual total, the largest set with exactly these
    shares: min_c available_c / share_c rows.

    Args:
        shares: `Float[C]` that sum to 1.
        available: `Int[C]` rows that the pool holds.
        total: rows in all.
        usual: the total where none is asked for.

    Returns:
        `Int[C]`, nowhere above `available`.

    Raises:
        ValueError: more rows than the classes with a share hold.

    Example:
        >>> shares, available = np.array([0.8, 0.2]), np.array([100, 100])
        >>> class_quotas(shares, available, None).tolist(), class_quotas(shares, available, 150).tolist()
        ([100, 25], [100, 50])
        >>> class_quotas(shares, available, None, 130).tolist(), class_quotas(shares, available, None, 500).tolist()
        ([100, 26], [100, 25])
    """
    if total is None and usual is not None:
        quotas = np.minimum(apportioned(shares, usual), available)
        if quotas.sum() >= _ENOUGH * usual:
            return quotas
    if total is None:
        owning = shares > 0
        allowed = int((available[owning] / shares[owning]).min() * (1 + 1e-12))  # 100 / (1 / 75) is below 7,500
        total = allowed if usual is None else min(allowed, usual)
    total, held = whole_number("total", total), int(available[shares > 0].sum())
    if total > held:
        raise ValueError(f"total={total} rows, but the classes that take part hold {held}; omit it or take fewer.")
    return apportioned(shares, total, most=available)


def client_sizes(
    rng: np.random.Generator,
    law: str,
    total: int,
    num_clients: int,
    sigma: float,
    least: int,
    values: Sequence[float] | None = None,
    quantiles: Mapping[float, float] | Sequence[tuple[float, float]] | None = None,
) -> np.ndarray:
    """How many rows each client gets.

    Args:
        rng: source of randomness.
        law: `"equal"`, to within a row, `"lognormal"` or `"empirical"`.
        total: rows in all.
        num_clients: N.
        sigma: for `lognormal_sizes`; checked whatever the law.
        least: the smallest size, for `lognormal_sizes` and `empirical_sizes`; checked whatever the law.
        values: for `empirical_sizes`, and for no other law.
        quantiles: for `empirical_sizes`, and for no other law.

    Returns:
        `Int[N]`, each at least 1.

    Raises:
        ValueError: too few rows, an unknown law, values or quantiles without need, or arguments of the wrong kind.

    Example:
        >>> client_sizes(np.random.default_rng(0), "equal", 7, 2, 1.2, 10).tolist()
        [4, 3]
    """
    sigma, least = checked_sigma(sigma), whole_number("least", least)
    if law not in ("equal", "lognormal", "empirical"):
        raise ValueError(f"sizes={law!r}; expected 'equal', 'lognormal' or 'empirical'.")
    if law == "empirical":
        return empirical_sizes(rng, total, num_clients, values, quantiles, least)
    for name, given in (("values", values), ("quantiles", quantiles)):
        if given is not None:
            raise ValueError(f"{name} are given, but sizes={law!r}; set sizes to 'empirical', or leave {name} out.")
    if law == "lognormal":
        return lognormal_sizes(rng, total, num_clients, sigma, least)
    if num_clients > total:
        raise ValueError(f"{num_clients} clients for {total} rows: some would be left with nothing; take fewer.")
    return even_sizes(total, num_clients)


def deal(rng, labels: np.ndarray, quotas: np.ndarray, sizes: np.ndarray, local: str, skew: str) -> list[np.ndarray]:
    """Draws rows by class and deals them out.

    `"even"`: every client has the classes in the shares of the whole set, to within about a row. `"iid"`: rows are
    dealt at random. `"random"`: each client has its own class law, the whole set's times independent weights of the
    law `skew`; see `client_counts`.

    Args:
        rng: source of randomness.
        labels: `Int[D]`, the pool.
        quotas: `Int[C]` rows to draw of each label present.
        sizes: `Int[N]` rows of each client; the same sum.
        local: `"even"`, `"iid"` or `"random"`.
        skew: `"uniform"` or `"exponential"`, for `"random"`.

    Returns:
        N disjoint arrays of row numbers.

    Raises:
        ValueError: an unknown word.

    Example:
        >>> labels = np.repeat([0, 1], 6)
        >>> parts = deal(np.random.default_rng(0), labels, np.array([6, 3]), np.array([3, 3, 3]), "even", "uniform")
        >>> [np.bincount(labels[rows]).tolist() for rows in parts]
        [[2, 1], [2, 1], [2, 1]]
    """
    rows, _, held = rows_by_label(labels)
    drawn = [rng.permutation(mine)[:quota] for mine, quota in zip(cut(rows, held), quotas, strict=True)]
    if local == "even":
        owner = _in_turn(rng, sizes)
    elif local == "iid":
        owner = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    elif local == "random":
        counts = client_counts(rng, _skewed(rng, quotas, len(sizes), skew), sizes, quotas)
        owner = np.repeat(np.tile(np.arange(len(sizes)), len(quotas)), counts.T.ravel())
    else:
        raise ValueError(f"local={local!r}; expected 'even', 'iid' or 'random'.")
    return cut(np.concatenate(drawn)[np.argsort(owner, kind="stable")], sizes)


def deal_counts(
    rng: np.random.Generator, rows: np.ndarray, sizes: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Deals rows out by how many of each class each client gets, which of them at random.

    Args:
        rng: source of randomness.
        rows: `Int[D]`, sorted by class.
        sizes: `Int[C]`, rows of each class.
        counts: `Int[C, N]`, rows of each class for each client; for no class more than it has.

    Returns:
        Rows in the order of clients, then classes; and how many each client has, `Int[N]`.

    Example:
        >>> counts = np.array([[2, 0], [1, 1]])
        >>> deal_counts(np.random.default_rng(0), np.array([0, 1, 2, 3]), np.array([2, 2]), counts)[1].tolist()
        [3, 1]
    """
    clients = np.arange(counts.shape[1])
    used = [rng.permutation(mine)[: count.sum()] for mine, count in zip(cut(rows, sizes), counts, strict=True)]
    owner = np.concatenate([np.repeat(clients, count) for count in counts])
    return np.concatenate(used)[np.argsort(owner, kind="stable")], counts.sum(axis=0)


def _in_turn(rng, sizes: np.ndarray) -> np.ndarray:
    """An order of turns, `Int[T]`, in which each client comes at regular intervals."""
    clients = np.arange(len(sizes))
    turn = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    phase = (rng.permutation(len(sizes)) + 0.5) / len(sizes)
    return np.repeat(clients, sizes)[np.argsort((turn + np.repeat(phase, sizes)) / np.repeat(sizes, sizes))]


def _skewed(rng, quotas: np.ndarray, num_clients: int, skew: str) -> np.ndarray:
    """Class laws of the clients before they are fitted, `Float[N, C]`, not normalised."""
    shape = num_clients, len(quotas)
    if skew == "uniform":
        return quotas * (1 - rng.random(shape))  # above 0
    if skew == "exponential":
        return quotas * (rng.standard_exponential(shape) + 1e-12)
    raise ValueError(f"local_skew={skew!r}; expected 'uniform' or 'exponential'.")


def client_counts(rng, laws: np.ndarray, sizes: np.ndarray, quotas: np.ndarray) -> np.ndarray:
    r"""Draws each client's rows by its own class law so that every class is used up exactly.

    Nobody is served before anybody else. First the laws are fitted to the margins: rows and columns of the table are
    scaled in turn until row k sums to n_k and column c to q_c. Then each client draws n_k labels by its row. By chance
    a class is then drawn a little too often, another one too seldom, some sqrt(q_c) times; as many draws of the
    former, chosen at random, are turned into draws of the latter.

    Args:
        rng: source of randomness.
        laws: `Float[N, C]`, not negative, above 0 where the quota is.
        sizes: `Int[N]`, rows of each client.
        quotas: `Int[C]`, rows of each class; the same sum.

    Returns:
        `Int[N, C]` with exactly these sums of rows and columns.

    Example:
        >>> counts = client_counts(np.random.default_rng(0), np.ones((2, 3)), np.array([5, 4]), np.array([2, 3, 4]))
        >>> counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist()
        ([5, 4], [2, 3, 4])
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
