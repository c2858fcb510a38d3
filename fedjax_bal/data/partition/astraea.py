"""Astraea's five distributed sets: balanced or with the frequencies of letters, equal or heavy-tailed clients."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedjax_bal.data.checks import checked_count, checked_labels, rows_by_label
from fedjax_bal.data.partition.letters import letter_shares
from fedjax_bal.data.partition.shaped import class_quotas, client_sizes, deal


class _Variant(NamedTuple):
    sizes: str
    classes: str
    local: str
    total: int


VARIANTS = {
    "BAL1": _Variant("equal", "balanced", "even", 117_500),
    "BAL2": _Variant("equal", "balanced", "random", 117_500),
    "INS": _Variant("lognormal", "balanced", "random", 117_500),
    "LTRF1": _Variant("lognormal", "letters", "random", 117_500),
    "LTRF2": _Variant("lognormal", "letters", "random", 230_752),
}
"""Astraea's Table I: law of the clients' sizes, of the classes, of the classes within a client; rows in all."""


def astraea(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: int,
    variant: Literal["BAL1", "BAL2", "INS", "LTRF1", "LTRF2"] = "LTRF1",
    total: int | None = None,
    sizes: Literal["equal", "lognormal", "empirical"] | None = None,
    classes: Literal["balanced", "letters"] | None = None,
    local: Literal["even", "iid", "random"] | None = None,
    local_skew: Literal["uniform", "exponential"] = "uniform",
    digits: Literal["uniform", "rare", "none"] = "uniform",
    case: Literal["insensitive", "split"] = "insensitive",
    sigma: float = 1.2,
    least: int = 10,
    values: Sequence[float] | None = None,
    quantiles: Mapping[float, float] | None = None,
) -> list[np.ndarray]:
    """Draws one of Astraea's five sets from a pool: imbalance of sizes, within clients, and of the whole.

    | variant | sizes | classes of all | classes of a client | rows |
    |---|---|---|---|---|
    | BAL1 | equal | balanced | even | 117,500 |
    | BAL2 | equal | balanced | random | 117,500 |
    | INS | lognormal | balanced | random | 117,500 |
    | LTRF1 | lognormal | letters | random | 117,500 |
    | LTRF2 | lognormal | letters | random | 230,752 |

    No row goes to two clients. A class that can't give its share of the published total gives all it has, and the set
    is that much smaller: BAL1 from EMNIST Balanced, with its 2,400 rows a class, has 112,800. From a pool that would
    leave less than nine tenths, the set is the largest one with exactly these shares. A total that is asked for is met
    exactly: classes that run out give all they have, and the others make up for it.
    With letters, a small pool may have no row left of the rarest classes.

    Args:
        rng: source of randomness.
        labels: `Int[D]`, the pool; C is the number of different ones.
        num_clients: N; 500 in the paper.
        variant: one of the rows above; what follows changes single cells of it.
        total: rows in all.
        sizes: `"equal"`, `"lognormal"`, or `"empirical"`, drawn from `values` or `quantiles`.
        classes: `"balanced"`, or `"letters"`: the frequencies of English letters, see `letter_shares`; for 47 classes
            in the order of EMNIST Balanced, for another number from the most frequent class to the rarest.
        local: `"even"`, the same classes for every client, to within about a row; `"iid"`, rows dealt at random; or
            `"random"`, a class law for each client, that of all clients times independent weights.
        local_skew: law of these weights, `"uniform"` on (0, 1) or `"exponential"`.
        digits: `"uniform"`, `"rare"` or `"none"`, for letters and 47 classes.
        case: `"insensitive"` or `"split"`, for letters and 47 classes.
        sigma: standard deviation of the logarithm of the sizes, for lognormal ones.
        least: the smallest size, for lognormal and empirical ones.
        values: observed sizes to draw from, for empirical ones; they are scaled to the rows in all.
        quantiles: level in [0, 1] -> observed size, in place of `values`, as a mapping or as pairs; see
            `empirical_sizes`.

    Returns:
        N disjoint arrays of row numbers; not all rows of the pool are used.

    Raises:
        ValueError: too few rows for the clients or for the total, an unknown word, or arguments of the wrong kind.

    Example:
        >>> labels = np.repeat(np.arange(47), 2500)
        >>> parts = astraea(np.random.default_rng(0), labels, 500, "BAL1")
        >>> {tuple(np.bincount(labels[rows], minlength=47)) == (5,) * 47 for rows in parts}
        {True}

    References:
        Astraea, section II-B and Table I. How "Random" clients are drawn and the sizes ("Instagram uploads") are not
        published. With uniform weights the clients of LTRF2 are on average 0.63 nats from uniform (0.50 when weighted
        by size), with exponential ones 0.83 (0.71); section IV reports 0.550.
    """
    labels, num_clients = checked_labels(labels), checked_count("num_clients", num_clients)
    if variant not in VARIANTS:
        raise ValueError(f"variant={variant!r}; expected one of {', '.join(VARIANTS)}.")
    wanted = VARIANTS[variant]
    _, _, available = rows_by_label(labels)
    shares = _shares(classes or wanted.classes, len(available), digits, case)
    quotas = class_quotas(shares, available, total, wanted.total)
    law = wanted.sizes if sizes is None else sizes
    held = client_sizes(rng, law, int(quotas.sum()), num_clients, sigma, least, values, quantiles)
    return deal(rng, labels, quotas, held, local or wanted.local, local_skew)


def _shares(law: str, num_classes: int, digits: str, case: str) -> np.ndarray:
    if law == "letters":
        return letter_shares(num_classes, digits, case)
    if law == "balanced":
        return np.full(num_classes, 1 / num_classes)
    raise ValueError(f"classes={law!r}; expected 'balanced' or 'letters'.")
