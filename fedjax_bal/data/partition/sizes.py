"""Sizes of clients: equal or heavy-tailed, with a given sum."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from fedjax_bal.data.partition.arguments import check_clients_below_rows, checked_room
from fedjax_bal.data.row_numbers import even_sizes
from fedjax_bal.validate import finite_number, one_of, whole_number

_LARGEST_SCALE = 1e307


def apportioned(weights: Any, total: int, least: int = 0, most: np.ndarray | None = None) -> np.ndarray:
    """Apportions a total in integers by weight, each from `least` to `most`, `Int[n]`.

    The numbers are clip(s w, least, most) with the one s for which they sum to the total, rounded by the method of
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
    exact = np.clip(_scale(weights, total, least, most) * weights, least, most)
    numbers = np.floor(exact).astype(np.int64)
    missing = total - int(numbers.sum())
    numbers[np.argsort(numbers - exact, kind="stable")[:missing]] += 1
    return numbers


def _scale(weights: np.ndarray, total: int, least: int, most: np.ndarray) -> float:
    """Finds, by bisection, the largest s for which clip(s w, least, most) does not exceed the total in sum."""
    positive = weights > 0
    with np.errstate(over="ignore"):
        low, high = 0.0, min(float((most[positive] / weights[positive]).max()), _LARGEST_SCALE)
    while low < (middle := (low + high) / 2) < high:
        if np.clip(middle * weights, least, most).sum() <= total:
            low = middle
        else:
            high = middle
    return low


def client_sizes(
    rng: np.random.Generator,
    law: str,
    total: int,
    num_clients: int,
    sigma: float,
    least: int,
    values: Sequence[float] | None,
    quantiles: Mapping[float, float] | Sequence[tuple[float, float]] | None,
) -> np.ndarray:
    """Draws the clients' sizes `Int[N]`, each at least 1, by the law `"equal"`, `"lognormal"` or `"empirical"`.

    Equal sizes ignore `sigma` and `least`, which are checked all the same.
    """
    sigma, least = finite_number("sigma", sigma, 0, 20), whole_number("least", least)
    one_of("sizes", law, ("equal", "lognormal", "empirical"))
    refuse_unused(law, values, quantiles)
    if law == "empirical":
        return empirical_sizes(rng, total, num_clients, values, quantiles, least)
    if law == "lognormal":
        return lognormal_sizes(rng, total, num_clients, sigma, least)
    check_clients_below_rows(num_clients, total)
    return even_sizes(total, num_clients)


def refuse_unused(law: str, values: Any, quantiles: Any) -> None:
    """Raises for observed sizes that the law doesn't use."""
    for name, given, laws in (("values", values, ("empirical", "given")), ("quantiles", quantiles, ("empirical",))):
        if given is not None and law not in laws:
            raise ValueError(f"{name} are given, but sizes={law!r}; set sizes to {laws[0]!r}, or leave {name} out.")


def lognormal_sizes(
    rng: np.random.Generator, total: int, num_clients: int, sigma: float = 1.2, least: int = 10
) -> np.ndarray:
    """Draws sizes from a lognormal law, scaled to a total.

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
        ValueError: fewer rows than N x least, or arguments of the wrong kind.

    Example:
        >>> sizes = lognormal_sizes(np.random.default_rng(0), 117_500, 500)
        >>> sizes.sum(), sizes.min(), bool(sizes.max() > 5 * sizes.mean())
        (np.int64(117500), np.int64(10), True)

    References:
        Astraea, Table I, "Instagram uploads". That sample is not at hand; uploads of 952 public accounts have a mean
        of 71.5, a median of 31.5 and a coefficient of variation of 1.61, so sigma lies between 1.13 and 1.28.
    """
    sigma = finite_number("sigma", sigma, 0, 20)
    total, num_clients, least = checked_room(total, num_clients, least)
    return apportioned(np.exp(sigma * rng.standard_normal(num_clients)), total, least)


def empirical_sizes(
    rng: np.random.Generator,
    total: int,
    num_clients: int,
    values: Sequence[float] | None = None,
    quantiles: Mapping[float, float] | Sequence[tuple[float, float]] | None = None,
    least: int = 1,
) -> np.ndarray:
    """Draws sizes from observed ones, scaled to a total.

    Either from a list, with replacement, or from some quantiles, between which the logarithm of the size is
    interpolated linearly; beyond the outermost it is constant.

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
        ValueError: both or neither of `values` and `quantiles`, fewer rows than N x least, or arguments of the wrong
            kind.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> empirical_sizes(rng, 60, 4, values=[5, 5, 5]).tolist()
        [15, 15, 15, 15]
        >>> uploads = {0.10: 3, 0.25: 9, 0.50: 31.5, 0.75: 80, 0.90: 171, 0.99: 585, 1: 1058}
        >>> empirical_sizes(rng, 230_752, 500, quantiles=uploads, least=10).sum()
        np.int64(230752)
    """
    total, num_clients, least = checked_room(total, num_clients, least)
    if (values is None) == (quantiles is None):
        raise ValueError("values and quantiles: give one of them, and only one.")
    if values is not None:
        drawn = rng.choice(_checked_sizes("values", values), num_clients)
    else:
        levels, logs = _checked_quantiles(quantiles)
        drawn = np.exp(np.interp(rng.random(num_clients), levels, logs))
    return apportioned(drawn, total, least)


def _checked_sizes(name: str, values: Any) -> np.ndarray:
    try:
        sizes = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        sizes = np.empty(0)
    if sizes.ndim != 1 or sizes.size == 0 or not (np.isfinite(sizes) & (sizes > 0)).all():
        raise ValueError(f"{name}={values!r}; expected a list of finite numbers above 0.")
    return sizes


def _checked_quantiles(quantiles: Any) -> tuple[np.ndarray, np.ndarray]:
    pairs = list(quantiles.items()) if isinstance(quantiles, Mapping) else quantiles
    paired = isinstance(pairs, Sequence) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs)
    if not paired:
        raise ValueError(f"quantiles={quantiles!r}; expected a mapping of levels to sizes.")
    levels = [level for level, _ in pairs]
    if any(isinstance(level, bool) or not isinstance(level, Real) or not 0 <= float(level) <= 1 for level in levels):
        raise ValueError(f"quantiles has levels {levels}; expected numbers from 0 to 1.")
    if len(set(levels)) < len(levels):
        raise ValueError(f"quantiles has levels {levels}; expected each of them once.")
    sizes = _checked_sizes("quantiles", [size for _, size in pairs])
    order = np.argsort(levels)
    if (np.diff(sizes[order]) < 0).any():
        raise ValueError(f"quantiles={quantiles!r}; sizes must not fall as levels rise.")
    return np.asarray(levels, np.float64)[order], np.log(sizes[order])
