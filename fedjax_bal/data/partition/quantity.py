"""Sizes of clients, equal or random, and quantity skew: clients differ in size, and in classes only by chance."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from fedjax_bal.annotations import Count, CountOrZero, Positive, checked
from fedjax_bal.data.partition.dealing import apportion, check_room, equal_sizes, split_at_sizes
from fedjax_bal.validate import whole_number

Sizes = Literal["equal", "lognormal", "empirical"]
Spread = Annotated[float, Ge(0), Le(20)]
Steepness = Annotated[float, Ge(-1000), Le(1000)]

_USED_BY = {
    "values": ("empirical", "given"),
    "quantiles": ("empirical",),
    "alpha": ("dirichlet",),
    "exponent": ("power", "exponential"),
    "sigma": ("lognormal",),
}
"""The laws of sizes that use an option."""
_NEGLIGIBLE = 1e-12  # a smaller share of the largest weight gets no row of any set


@checked
def quantity(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count,
    sizes: Literal["dirichlet", "power", "exponential", "lognormal", "empirical", "given"] = "dirichlet",
    alpha: Positive = 0.5,
    exponent: Steepness = 1.0,
    sigma: Spread = 1.2,
    least: CountOrZero = 1,
    values: Sequence[float] | None = None,
    quantiles: Mapping[float, float] | None = None,
) -> list[np.ndarray]:
    """Deals rows out at random to clients whose sizes follow a distribution.

    | sizes | the size of client k = 0, ..., N - 1 is in proportion to |
    |---|---|
    | dirichlet | the k-th share of one draw of Dirichlet(alpha, ..., alpha) |
    | power | (k + 1)^exponent: 1 linear, 2 square, -1 Zipf's law |
    | exponential | exp(exponent k) |
    | lognormal | exp(sigma z), z standard normal |
    | empirical | a draw from observed sizes, see `empirical_sizes` |
    | given | not scaled: the size is `values[k]`, and rows beyond their sum are left out |

    Sizes below `least` are raised to it, and the others shrink in proportion.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; only their number matters.
        num_clients: N.
        sizes: the distribution of the sizes.
        alpha: concentration, above 0, for Dirichlet sizes; small means a few large clients.
        exponent: steepness, for sizes by power or exponential; below 0 the first clients are the large ones.
        sigma: standard deviation of the logarithm of the sizes, for lognormal ones.
        least: the smallest size; not for given ones.
        values: the sizes themselves, N of them, for given ones; or observed sizes to draw from, for empirical ones.
        quantiles: level in [0, 1] -> observed size, for empirical ones, in place of `values`.

    Returns:
        N disjoint arrays of row numbers that cover all rows, if sizes are not given.

    Raises:
        ValueError: fewer rows than clients x `least`, sizes that sum to more rows than there are, an unknown name, or
            invalid arguments.

    Example:
        >>> rng, labels = np.random.default_rng(0), np.repeat(np.arange(10), 100)
        >>> [len(rows) for rows in quantity(rng, labels, 4, "power")]
        [100, 200, 300, 400]
        >>> sum(map(len, quantity(rng, labels, 4, alpha=0.1)))
        1000

    References:
        Li, Diao, Chen, He: Federated Learning on Non-IID Data Silos, 2022, "quantity skew": Dirichlet
        sizes, drawn again until no client is below 10. Flower Datasets' Linear-, Square-, Exponential- and
        SizePartitioner.
    """
    num_rows = len(labels)
    _refuse_unused(sizes, values=values, quantiles=quantiles, alpha=alpha, exponent=exponent, sigma=sigma)
    if sizes == "given":
        if values is None or len(values) != num_clients:
            count = "no" if values is None else len(values)
            raise ValueError(
                f"sizes='given' with {count} values for {num_clients} clients; expected one for each client."
            )
        # Numbers from a configuration are floats.
        whole = [whole_number("values", int(value) if value.is_integer() else value) for value in map(float, values)]
        if sum(whole) > num_rows:
            raise ValueError(f"values sum to {sum(whole)} rows, but there are {num_rows}; make them smaller.")
        held = np.array(whole)
    elif sizes in ("lognormal", "empirical"):
        held = client_sizes(rng, sizes, num_rows, num_clients, sigma, least, values, quantiles)
    else:
        check_room(num_rows, num_clients, least)
        if sizes == "dirichlet":
            weights = rng.dirichlet(np.full(num_clients, alpha))
        else:
            number = np.arange(num_clients)
            logs = exponent * (np.log(number + 1) if sizes == "power" else number)
            weights = np.exp(logs - logs.max())
        shares = weights / weights.max()
        held = apportion(np.where(shares < _NEGLIGIBLE, 0.0, shares), num_rows, least)
    return split_at_sizes(rng.permutation(num_rows)[: held.sum()], held)


def client_sizes(
    rng: np.random.Generator,
    law: Sizes,
    total: int,
    num_clients: int,
    sigma: float,
    least: int,
    values: Sequence[float] | None,
    quantiles: Any,
) -> np.ndarray:
    """Draws the clients' sizes `Int[N]`, each at least 1; equal sizes ignore `least`."""
    _refuse_unused(law, values=values, quantiles=quantiles, sigma=sigma)
    if law == "empirical":
        return empirical_sizes(rng, total, num_clients, values, quantiles, least)
    if law == "lognormal":
        return lognormal_sizes(rng, total, num_clients, sigma, least)
    return equal_sizes(total, num_clients)


@checked
def lognormal_sizes(
    rng: np.random.Generator, total: Count, num_clients: Count, sigma: Spread = 1.2, least: CountOrZero = 10
) -> np.ndarray:
    """Draws sizes from a lognormal distribution, scaled to a total.

    Sizes are proportional to exp(sigma z), z standard normal; those below `least` are raised to it and the others
    shrink in proportion.

    Args:
        rng: source of randomness.
        total: the sum of the sizes.
        num_clients: N.
        sigma: standard deviation of the logarithm, from 0 to 20.
        least: the smallest size.

    Returns:
        `Int[N]`.

    Raises:
        ValueError: fewer rows than N x least, or invalid arguments.

    Example:
        >>> sizes = lognormal_sizes(np.random.default_rng(0), 117_500, 500)
        >>> sizes.sum(), sizes.min(), bool(sizes.max() > 5 * sizes.mean())
        (np.int64(117500), np.int64(10), True)

    References:
        Astraea, Table I, "Instagram uploads". That sample is not available; uploads of 952 public accounts have a mean
        of 71.5, a median of 31.5 and a coefficient of variation of 1.61, so sigma lies between 1.13 and 1.28.
    """
    check_room(total, num_clients, least)
    return apportion(np.exp(sigma * rng.standard_normal(num_clients)), total, least)


@checked
def empirical_sizes(
    rng: np.random.Generator,
    total: Count,
    num_clients: Count,
    values: Sequence[float] | None = None,
    quantiles: Mapping[float, float] | None = None,
    least: CountOrZero = 1,
) -> np.ndarray:
    """Draws sizes from observed ones, scaled to a total.

    They come either from a list, with replacement, or from quantiles, between which the logarithm of the size is
    interpolated linearly; beyond the outermost ones it is constant.

    Args:
        rng: source of randomness.
        total: the sum of the sizes.
        num_clients: N.
        values: observed sizes, above 0.
        quantiles: level in [0, 1] -> observed size above 0, ascending; as a mapping or as pairs.
        least: the smallest size.

    Returns:
        `Int[N]`.

    Raises:
        ValueError: both or neither of `values` and `quantiles`, fewer rows than N x least, or invalid arguments.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> empirical_sizes(rng, 60, 4, values=[5, 5, 5]).tolist()
        [15, 15, 15, 15]
        >>> uploads = {0.10: 3, 0.25: 9, 0.50: 31.5, 0.75: 80, 0.90: 171, 0.99: 585, 1: 1058}
        >>> empirical_sizes(rng, 230_752, 500, quantiles=uploads, least=10).sum()
        np.int64(230752)
    """
    check_room(total, num_clients, least)
    if values is not None and quantiles is None:
        _check_positive("values", values)
        drawn = rng.choice(np.asarray(values, np.float64), num_clients)
    elif quantiles is not None and values is None:
        pairs = sorted(quantiles.items() if isinstance(quantiles, Mapping) else quantiles)
        levels = np.array([level for level, _ in pairs])
        observed = [size for _, size in pairs]
        if levels.min() < 0 or levels.max() > 1 or (np.diff(levels) == 0).any():
            raise ValueError(
                f"quantiles has levels {levels.tolist()}; expected numbers from 0 to 1, each of them once."
            )
        _check_positive("quantiles", observed)
        if (np.diff(observed) < 0).any():
            raise ValueError(f"quantiles={quantiles!r}; sizes must not fall as levels rise.")
        drawn = np.exp(np.interp(rng.random(num_clients), levels, np.log(observed)))
    else:
        raise ValueError("values and quantiles: give one of them, and only one.")
    return apportion(drawn, total, least)


def _check_positive(name: str, sizes: Sequence[float]) -> None:
    if min(sizes) <= 0:
        raise ValueError(f"{name}={list(sizes)}; expected a list of finite numbers above 0.")


def _refuse_unused(law: str, **options: Any) -> None:
    """Raises `ValueError` for options that `law` doesn't use, if they differ from their defaults."""
    for name, value in options.items():
        default, laws = inspect.signature(quantity).parameters[name].default, _USED_BY[name]
        if law not in laws and value is not None and (default is None or value != default):
            given = f"{name} are given" if default is None else f"{name}={value:g} is given"
            raise ValueError(f"{given}, but sizes={law!r}; set sizes to {laws[0]!r}, or leave {name} out.")
