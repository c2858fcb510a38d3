"""Quantity skew: clients of very different sizes, each with the class shares of the whole set, up to chance."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from fedjax_bal.data.partition.arguments import checked_alpha, checked_room
from fedjax_bal.data.partition.sizes import apportioned, empirical_sizes, lognormal_sizes, refuse_unused
from fedjax_bal.data.row_numbers import cut
from fedjax_bal.validate import check_generator, checked_labels, finite_number, one_of, whole_number

_STEEPEST = 1000
_NEGLIGIBLE = 1e-12  # share of the largest weight that gets no row of any set


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
    """Deals rows out at random to clients whose sizes follow a law.

    | sizes | the size of client k = 0, ..., N - 1 is in proportion to |
    |---|---|
    | dirichlet | the k-th share of one draw of Dirichlet(alpha, ..., alpha) |
    | power | (k + 1)^exponent: 1 linear, 2 square, -1 Zipf's law |
    | exponential | exp(exponent k) |
    | lognormal | exp(sigma z), z standard normal |
    | empirical | a draw from observed sizes, see `empirical_sizes` |
    | given | not a law: the size is `values[k]`, and rows beyond their sum are left out |

    Sizes below `least` are raised to it, and the others shrink in proportion.

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
        sizes, drawn again until no client is below 10. Flower Datasets' Linear-, Square-, Exponential- and
        SizePartitioner.
    """
    check_generator(rng)
    labels, num_clients = checked_labels(labels), whole_number("num_clients", num_clients)
    if sizes == "given":
        held = _given(values, num_clients, len(labels))
    elif sizes == "lognormal":
        held = lognormal_sizes(rng, len(labels), num_clients, sigma, least)
    elif sizes == "empirical":
        held = empirical_sizes(rng, len(labels), num_clients, values, quantiles, least)
    else:
        total, num_clients, least = checked_room(len(labels), num_clients, least)
        held = apportioned(_weights(rng, sizes, num_clients, alpha, exponent), total, least)
    refuse_unused(sizes, values, quantiles)
    finite_number("sigma", sigma, 0, 20)
    return cut(rng.permutation(len(labels))[: held.sum()], held)


def _weights(rng: np.random.Generator, law: str, num_clients: int, alpha: float, exponent: float) -> np.ndarray:
    """Draws the weights that the sizes are in proportion to, `Float[N]`, the largest 1."""
    if law == "dirichlet":
        return _cleared(rng.dirichlet(np.full(num_clients, checked_alpha(alpha))))
    if law not in ("power", "exponential"):
        one_of("sizes", law, ("dirichlet", "power", "exponential", "lognormal", "empirical", "given"))
    exponent = finite_number("exponent", exponent, -_STEEPEST, _STEEPEST)
    place = np.arange(num_clients)
    logs = exponent * (np.log(place + 1) if law == "power" else place)
    return _cleared(np.exp(logs - logs.max()))


def _cleared(weights: np.ndarray) -> np.ndarray:
    """Divides the weights by the largest and sets negligible ones to 0."""
    shares = weights / weights.max()
    return np.where(shares < _NEGLIGIBLE, 0.0, shares)


def _given(values, num_clients: int, total: int) -> np.ndarray:
    if values is None or np.ndim(values) != 1 or len(values) != num_clients:
        found = "no" if values is None or np.ndim(values) != 1 else len(values)
        raise ValueError(f"sizes='given' with {found} values for {num_clients} clients; expected one for each client.")
    # A configuration hands numbers on as floats.
    whole = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    held = [whole_number("values", value) for value in whole]
    if sum(held) > total:
        raise ValueError(f"values sum to {sum(held)} rows, but there are {total}; make them smaller.")
    return np.array(held)
