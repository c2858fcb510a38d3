"""Quantity skew: clients of very different sizes whose classes are those of the whole set, up to chance."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Literal

import numpy as np

from fedjax_bal.data.partition.sizes import (
    apportioned,
    checked_alpha,
    checked_room,
    checked_sigma,
    empirical_sizes,
    lognormal_sizes,
)
from fedjax_bal.data.row_numbers import cut
from fedjax_bal.validate import checked_labels, whole_number

_STEEPEST, _NOTHING = 1000, 1e-12


def quantity(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: int,
    sizes: Literal["dirichlet", "power", "exponential", "lognormal", "empirical", "given"] = "dirichlet",
    alpha: float = 0.5,
    exponent: float = 1.0,
    sigma: float = 1.2,
    least: int = 1,
    values: Sequence[float] | None = None,
    quantiles: Mapping[float, float] | None = None,
) -> list[np.ndarray]:
    """Deals all rows out at random, to clients whose sizes follow a law.

    | sizes | the size of client k = 0, ..., N - 1 is in proportion to |
    |---|---|
    | dirichlet | the k-th share of one draw of Dirichlet(alpha, ..., alpha) |
    | power | (k + 1)^exponent: 1 linear, 2 square, -1 Zipf's law |
    | exponential | exp(exponent k) |
    | lognormal | exp(sigma z), z standard normal |
    | empirical | a draw from observed sizes, see `empirical_sizes` |
    | given | nothing: it is `values[k]`, and rows beyond their sum are left out |

    Sizes that come out below `least` are raised to it, and the others shrink in proportion.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; only their number matters.
        num_clients: N.
        sizes: one of the laws above.
        alpha: concentration, above 0, for Dirichlet sizes; small means a few large clients.
        exponent: steepness, for sizes by power or exponential; below 0 the first clients are the large ones.
        sigma: standard deviation of the logarithm of the sizes, for lognormal ones.
        least: the smallest size; not for given ones.
        values: the sizes themselves, N of them, for given ones; or observed sizes to draw from, for empirical ones.
        quantiles: level in [0, 1] -> observed size, for empirical ones, in place of `values`.

    Returns:
        N disjoint arrays of row numbers that cover all rows, if sizes are not given.

    Raises:
        ValueError: fewer rows than clients x `least`, sizes that sum to more rows than there are, an unknown law, or
            arguments of the wrong kind.

    Example:
        >>> rng, labels = np.random.default_rng(0), np.repeat(np.arange(10), 100)
        >>> [len(rows) for rows in quantity(rng, labels, 4, "power")]
        [100, 200, 300, 400]
        >>> sum(map(len, quantity(rng, labels, 4, alpha=0.1)))
        1000

    References:
        Li, Diao, Chen, He: Federated Learning on Non-IID Data Silos, 2022, "quantity skew": Dirichlet
        sizes, drawn anew until nobody is below 10. Flower Datasets' Linear-, Square-, Exponential- and SizePartitioner.
    """
    labels, num_clients = checked_labels(labels), whole_number("num_clients", num_clients)
    if sizes == "given":
        held = _given(values, num_clients, len(labels))
    elif sizes in ("lognormal", "empirical"):
        fixed = (rng, len(labels), num_clients)
        lognormal = sizes == "lognormal"
        held = lognormal_sizes(*fixed, sigma, least) if lognormal else empirical_sizes(*fixed, values, quantiles, least)
    else:
        total, num_clients, least = checked_room(len(labels), num_clients, least)
        held = apportioned(_weights(rng, sizes, num_clients, alpha, exponent), total, least)
    _refuse_unused(sizes, values, quantiles)
    checked_sigma(sigma)
    return cut(rng.permutation(len(labels))[: held.sum()], held)


def _weights(rng, law: str, num_clients: int, alpha: float, exponent: float) -> np.ndarray:
    """What the sizes are in proportion to, `Float[N]`, the largest 1."""
    if law == "dirichlet":
        return _cleared(rng.dirichlet(np.full(num_clients, min(checked_alpha(alpha), 1e12))))
    if law not in ("power", "exponential"):
        raise ValueError(
            f"sizes={law!r}; expected 'dirichlet', 'power', 'exponential', 'lognormal', 'empirical' or 'given'."
        )
    if isinstance(exponent, bool) or not isinstance(exponent, Real) or not abs(exponent) <= _STEEPEST:
        raise ValueError(f"exponent={exponent!r}; expected a number from {-_STEEPEST} to {_STEEPEST}.")
    place = np.arange(num_clients)
    logs = float(exponent) * (np.log(place + 1) if law == "power" else place)
    return _cleared(np.exp(logs - logs.max()))


def _cleared(weights: np.ndarray) -> np.ndarray:
    """The weights relative to the largest; those that get no row of any set are 0."""
    shares = weights / weights.max()
    return np.where(shares < _NOTHING, 0.0, shares)


def _given(values, num_clients: int, total: int) -> np.ndarray:
    if values is None or np.ndim(values) != 1 or len(values) != num_clients:
        found = "no" if values is None or np.ndim(values) != 1 else len(values)
        raise ValueError(f"sizes='given' with {found} values for {num_clients} clients; expected one for each client.")
    # A configuration hands numbers on as floats.
    whole = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    held = np.array([whole_number("values", value) for value in whole])
    if held.sum() > total:
        raise ValueError(f"values sum to {held.sum()} rows, but there are {total}; make them smaller.")
    return held


def _refuse_unused(law: str, values, quantiles) -> None:
    for name, given, laws in (("values", values, ("empirical", "given")), ("quantiles", quantiles, ("empirical",))):
        if given is not None and law not in laws:
            raise ValueError(f"{name} are given, but sizes={law!r}; set sizes to {laws[0]!r}, or leave {name} out.")
