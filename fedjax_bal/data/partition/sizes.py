"""How many rows each client holds: heavy-tailed sizes that sum to a given total."""

from collections.abc import Mapping, Sequence
from numbers import Real

import numpy as np

from fedjax_bal.validate import whole_number

_LARGEST_SCALE = 1e307


def apportioned(weights, total: int, least: int = 0, most=None) -> np.ndarray:
    r"""Shares a total out in whole numbers by weight, between bounds.

    The numbers are clip(s w, least, most) with the one s for which they sum to the total, rounded by the method of
    largest remainders. So whoever would fall below `least` gets that, whoever would exceed `most` gets that, and all
    others stay in proportion to their weights.

    Args:
        weights: `Float[n]`, finite, not negative, not all 0.
        total: what is shared out.
        least: the smallest number anybody gets.
        most: the largest number each may get, `Int[n]`, not below `least`; none by default.

    Returns:
        `Int[n]` that sum to `total`.

    Raises:
        ValueError: no such numbers exist.

    Example:
        >>> apportioned([1, 1, 8], 100).tolist(), apportioned([1, 1, 8], 100, least=20).tolist()
        ([10, 10, 80], [20, 20, 60])
        >>> apportioned([1, 1, 8], 100, most=np.array([50, 50, 40])).tolist()
        [30, 30, 40]
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
    """The largest s for which clip(s w, least, most) does not exceed the total in sum, found by halving."""
    positive = weights > 0
    with np.errstate(over="ignore"):
        low, high = 0.0, min(float((most[positive] / weights[positive]).max()), _LARGEST_SCALE)
    while low < (middle := (low + high) / 2) < high:
        if np.clip(middle * weights, least, most).sum() <= total:
            low = middle
        else:
            high = middle
    return low


def lognormal_sizes(
    rng: np.random.Generator, total: int, num_clients: int, sigma: float = 1.2, least: int = 10
) -> np.ndarray:
    """Draws sizes from a lognormal law, scaled to a total.

    Sizes are proportional to exp(sigma z), z standard normal; those that come out below `least` are raised to it and
    the others shrink in proportion.

    Args:
        rng: source of randomness.
        total: what the sizes sum to.
        num_clients: N.
        sigma: standard deviation of the logarithm, at least 0.
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
    sigma = checked_sigma(sigma)
    total, num_clients, least = checked_room(total, num_clients, least)
    return apportioned(np.exp(sigma * rng.standard_normal(num_clients)), total, least)


def checked_sigma(sigma: float) -> float:
    """The standard deviation of a lognormal law's logarithm.

    Args:
        sigma: from 0 to 20.

    Returns:
        The same.

    Raises:
        ValueError: something else.

    Example:
        >>> checked_sigma(1.2)
        1.2
    """
    if isinstance(sigma, bool) or not isinstance(sigma, Real) or not 0 <= sigma <= 20:
        raise ValueError(f"sigma={sigma!r}; expected a number from 0 to 20, the standard deviation of the logarithm.")
    return sigma


def checked_alpha(alpha: float) -> float:
    """The concentration of a Dirichlet law.

    Args:
        alpha: finite and above 0.

    Returns:
        The same.

    Raises:
        ValueError: something else.

    Example:
        >>> checked_alpha(0.1)
        0.1
    """
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < alpha < np.inf:
        raise ValueError(f"alpha={alpha!r}; expected a finite number above 0.")
    return float(alpha)


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
        total: what the sizes sum to.
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


def checked_room(total: int, num_clients: int, least: int) -> tuple[int, int, int]:
    """Whether there are enough rows for everybody.

    Args:
        total: rows in all.
        num_clients: N.
        least: the smallest size.

    Returns:
        The three numbers.

    Raises:
        ValueError: fewer rows than N x least, or arguments of the wrong kind.

    Example:
        >>> checked_room(100, 10, 10)
        (100, 10, 10)
    """
    num_clients, least = whole_number("num_clients", num_clients), whole_number("least", least, low=0)
    total = whole_number("total", total)
    if num_clients * least > total:
        raise ValueError(
            f"{num_clients} clients with at least least={least} rows need {num_clients * least} rows, but there are "
            f"{total}; take fewer clients or a smaller least."
        )
    return total, num_clients, least


def _checked_sizes(name: str, values) -> np.ndarray:
    try:
        sizes = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        sizes = np.empty(0)
    if sizes.ndim != 1 or sizes.size == 0 or not (np.isfinite(sizes) & (sizes > 0)).all():
        raise ValueError(f"{name}={values!r}; expected a list of finite numbers above 0.")
    return sizes


def _checked_quantiles(quantiles) -> tuple[np.ndarray, np.ndarray]:
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
