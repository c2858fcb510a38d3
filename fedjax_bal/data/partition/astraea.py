"""Astraea's five distributed sets: balanced or with the frequencies of letters, equal or heavy-tailed clients."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedjax_bal.data.partition.arguments import checked_pool
from fedjax_bal.data.partition.dealing import class_quotas, deal_quotas
from fedjax_bal.data.partition.sizes import client_sizes
from fedjax_bal.data.readers.idx import MERGED_CHARACTERS
from fedjax_bal.validate import one_of, whole_number

_COMMON = {"e": 12.70, "t": 9.06, "a": 8.17, "o": 7.51, "i": 6.97, "n": 6.75, "s": 6.33, "h": 6.09, "r": 5.99}
_USUAL = {"d": 4.25, "l": 4.03, "c": 2.78, "u": 2.76, "m": 2.41, "w": 2.36, "f": 2.23, "g": 2.02, "y": 1.97}
_SELDOM = {"p": 1.93, "b": 1.49, "v": 0.98, "k": 0.77, "j": 0.15, "x": 0.15, "q": 0.095, "z": 0.074}
_PERCENT = _COMMON | _USUAL | _SELDOM
_DIGITS = 10  # come before the letters
_RARE = 0.015


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
    """Draws one of Astraea's five sets from a pool: imbalanced in sizes, within clients, or as a whole.

    | variant | sizes | classes of all | classes of a client | rows |
    |---|---|---|---|---|
    | BAL1 | equal | balanced | even | 117,500 |
    | BAL2 | equal | balanced | random | 117,500 |
    | INS | lognormal | balanced | random | 117,500 |
    | LTRF1 | lognormal | letters | random | 117,500 |
    | LTRF2 | lognormal | letters | random | 230,752 |

    No row goes to two clients. A class too small for its share of the published total gives all it has, and the set is
    that much smaller: BAL1 from EMNIST Balanced, with its 2,400 rows a class, has 112,800. If less than
    nine tenths of the total would remain, the set is the largest one with exactly these shares. `total` is met exactly:
    classes that run out give all they have, and the others make up for it. With letters, the set from a small pool may
    lack the rarest classes.

    Args:
        rng: source of randomness.
        labels: `Int[D]`, the pool; C is the number of different ones.
        num_clients: N; 500 in the paper.
        variant: one of the rows above; `total`, `sizes`, `classes` and `local` change single cells of it.
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
        values: observed sizes to draw from, for empirical ones, scaled to the rows in all.
        quantiles: observed sizes by level, in place of `values`; see `empirical_sizes`.

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
    num_clients, by_class, available = checked_pool(rng, labels, num_clients)
    if variant not in VARIANTS:
        raise ValueError(f"variant={variant!r}; expected one of {', '.join(VARIANTS)}.")
    wanted = VARIANTS[variant]
    shares = _shares(classes or wanted.classes, len(available), digits, case)
    quotas = class_quotas(shares, available, total, wanted.total)
    law = wanted.sizes if sizes is None else sizes
    held = client_sizes(rng, law, int(quotas.sum()), num_clients, sigma, least, values, quantiles)
    return deal_quotas(rng, by_class, quotas, held, local or wanted.local, local_skew)


def letter_shares(num_classes: int, digits: str = "uniform", case: str = "insensitive") -> np.ndarray:
    r"""Computes shares of classes that are letters, as frequent as in English text.

    For 47 classes, those of EMNIST Balanced: a letter class has its letter's frequency, whether it is a capital or
    not, and the letter classes together own 37/47, each digit 1/47. The divergence from uniform is 0.265 nats. The
    rarest classes are then Z, Q, q, J, X and K; in Astraea's Fig. 1c six classes are not learnt, and digits are.

    For any other number C of classes: the 26 frequencies in descending order, of which those at the ranks
    round(25 i / (C - 1)), i = 0..C-1, are taken and normalised (a half goes to the even rank); the first class is the
    most frequent one.

    Args:
        num_classes: C.
        digits: what the ten digits own: `"uniform"`, `"rare"` (1.5 % together) or `"none"`; the divergence from
            uniform is then 0.512 nats for rare, and 0.576 for none: 0.336 over the letters alone.
        case: `"insensitive"`, or `"split"`, where capital and small letter, if they are two classes, have half of
            their letter's frequency each.

    Returns:
        `Float[C]` that sum to 1.

    Raises:
        ValueError: an unknown word, or one of the options for a number of classes other than 47.

    Example:
        >>> shares = letter_shares(47)
        >>> float((shares * np.log(47 * shares)).sum().round(3))
        0.265
        >>> letter_shares(3).round(3).tolist()
        [0.818, 0.178, 0.005]

    References:
        Astraea, section II-B: "the frequency of the English letters, which is obtained through a corpus of the Simple
        English Wikipedia". The counts of that corpus are not published; these are common figures for English text.
    """
    num_classes = whole_number("num_classes", num_classes)
    one_of("digits", digits, ("uniform", "rare", "none"))
    one_of("case", case, ("insensitive", "split"))
    if num_classes == len(MERGED_CHARACTERS):
        return _emnist_shares(digits, case)
    if (digits, case) != ("uniform", "insensitive"):
        raise ValueError(
            f"digits={digits!r} and case={case!r} for {num_classes} classes; they are for EMNIST's 47: omit them."
        )
    return _shares_by_rank(num_classes)


def _emnist_shares(digits: str, case: str) -> np.ndarray:
    letters = [name.lower() for name in MERGED_CHARACTERS[_DIGITS:]]
    percent = np.array([_PERCENT[letter] / (letters.count(letter) if case == "split" else 1) for letter in letters])
    together = {"uniform": _DIGITS / len(MERGED_CHARACTERS), "rare": _RARE, "none": 0.0}[digits]
    return np.concatenate([np.full(_DIGITS, together / _DIGITS), (1 - together) * percent / percent.sum()])


def _shares_by_rank(num_classes: int) -> np.ndarray:
    descending = np.sort(list(_PERCENT.values()))[::-1]
    percent = descending[np.rint(np.linspace(0, len(descending) - 1, num_classes)).astype(int)]
    return percent / percent.sum()


def _shares(law: str, num_classes: int, digits: str, case: str) -> np.ndarray:
    one_of("classes", law, ("balanced", "letters"))
    if law == "letters":
        return letter_shares(num_classes, digits, case)
    return np.full(num_classes, 1 / num_classes)
