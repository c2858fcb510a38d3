"""A globally imbalanced set: class sizes along the standard normal density."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from fedjax_bal.data.partition.arguments import checked_number, checked_pool
from fedjax_bal.data.partition.dealing import class_quotas, deal_quotas
from fedjax_bal.data.partition.sizes import client_sizes
from fedjax_bal.validate import whole_number


def normal_shares(num_classes: int, span: float = 3.0) -> np.ndarray:
    r"""Computes shares of the classes in proportion to the normal density.

    share_c is proportional to exp(-x_c^2 / 2), x_c the middle of the c-th of C equal bins of [-span, span]: for ten
    classes -2.7, -2.1, ..., 2.7, so the largest is e^3.6 = 36.6 times the smallest.

    Args:
        num_classes: C.
        span: half the width, above 0 and at most 10.

    Returns:
        `Float[C]` that sum to 1; the first and the last are the smallest.

    Raises:
        ValueError: arguments of the wrong kind.

    Example:
        >>> shares = normal_shares(10)
        >>> round(float(shares.max() / shares.min()), 1)
        36.6
    """
    num_classes = whole_number("num_classes", num_classes)
    span = checked_number("span", span, lambda value: 0 < value <= 10, "a number above 0 and of at most 10")
    middles = span * ((2 * np.arange(num_classes) + 1) / num_classes - 1)
    density = np.exp(-(middles**2) / 2)
    return density / density.sum()


def normal_density(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: int,
    total: int | None = None,
    sizes: Literal["equal", "lognormal", "empirical"] = "equal",
    local: Literal["even", "iid", "random"] = "random",
    local_skew: Literal["uniform", "exponential"] = "uniform",
    span: float = 3.0,
    sigma: float = 1.2,
    least: int = 10,
    values: Sequence[float] | None = None,
    quantiles: Mapping[float, float] | None = None,
) -> list[np.ndarray]:
    """Draws a set whose class sizes follow the normal density and deals it out.

    The set is the largest one with exactly these shares, or has `total` rows; then other classes make up for those that
    run out. No row goes to two clients.

    Args:
        rng: source of randomness.
        labels: `Int[D]`, the pool; C is the number of different ones, which follow the density in their order.
        num_clients: N; 100 in the paper.
        total: rows in all.
        sizes: `"equal"`, to within a row, `"lognormal"`, or `"empirical"`, drawn from `values` or `quantiles`.
        local: `"even"`, the same classes for every client, to within about a row; `"iid"`, rows dealt at random; or
            `"random"`, a class law for each client, that of all clients times independent weights.
        local_skew: law of these weights, `"uniform"` on (0, 1) or `"exponential"`.
        span: half the width of the interval that the classes divide.
        sigma: standard deviation of the logarithm of the sizes, for lognormal ones.
        least: the smallest size, for lognormal and empirical ones.
        values: observed sizes to draw from, for empirical ones, scaled to the rows in all.
        quantiles: observed sizes by level, in place of `values`; see `empirical_sizes`.

    Returns:
        N disjoint arrays of row numbers; not all rows of the pool are used.

    Raises:
        ValueError: too few rows for the clients or for the total, an unknown word, or arguments of the wrong kind.

    Example:
        >>> labels = np.repeat(np.arange(10), 9000)
        >>> parts = normal_density(np.random.default_rng(0), labels, 100)
        >>> np.bincount(labels[np.concatenate(parts)]).tolist()
        [246, 1038, 3056, 6279, 9000, 9000, 6279, 3056, 1038, 246]

    References:
        Astraea, section IV-A: CINIC-10 with "its global distribution following the standard normal distribution".
        The bins, the size of the set and the clients' own laws and sizes are not published.
    """
    num_clients, by_class, available = checked_pool(rng, labels, num_clients)
    quotas = class_quotas(normal_shares(len(available), span), available, total)
    held = client_sizes(rng, sizes, int(quotas.sum()), num_clients, sigma, least, values, quantiles)
    return deal_quotas(rng, by_class, quotas, held, local, local_skew)
