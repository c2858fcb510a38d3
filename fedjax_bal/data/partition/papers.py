"""Partitions from individual papers: Astraea's distributed sets, its normal density, and FL-CIR's "real world"."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Le

from fedjax_bal.annotations import Count, CountOrZero, Seed, checked
from fedjax_bal.data.partition import dealing
from fedjax_bal.data.partition.quantity import Sizes, Spread, client_sizes

Classes = Literal["balanced", "letters"]
Digits = Literal["uniform", "rare", "none"]
Case = Literal["insensitive", "split"]

_COMMON = {"e": 12.70, "t": 9.06, "a": 8.17, "o": 7.51, "i": 6.97, "n": 6.75, "s": 6.33, "h": 6.09, "r": 5.99}
_USUAL = {"d": 4.25, "l": 4.03, "c": 2.78, "u": 2.76, "m": 2.41, "w": 2.36, "f": 2.23, "g": 2.02, "y": 1.97}
_SELDOM = {"p": 1.93, "b": 1.49, "v": 0.98, "k": 0.77, "j": 0.15, "x": 0.15, "q": 0.095, "z": 0.074}
_PERCENT = _COMMON | _USUAL | _SELDOM
_DIGITS = 10  # the first classes, before the letters
_RARE = 0.015
_REDRAWS = 100
_THROWN_AWAY = -1


class _Variant(NamedTuple):
    sizes: Sizes
    classes: Classes
    local: dealing.Local
    total: int


_VARIANTS = {
    "BAL1": _Variant("equal", "balanced", "even", 117_500),
    "BAL2": _Variant("equal", "balanced", "random", 117_500),
    "INS": _Variant("lognormal", "balanced", "random", 117_500),
    "LTRF1": _Variant("lognormal", "letters", "random", 117_500),
    "LTRF2": _Variant("lognormal", "letters", "random", 230_752),
}
"""Astraea's Table I: distribution of the clients' sizes, of all classes, of a client's classes; total rows."""


@checked
def astraea(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count,
    variant: Literal["BAL1", "BAL2", "INS", "LTRF1", "LTRF2"] = "LTRF1",
    total: Count | None = None,
    sizes: Sizes | None = None,
    classes: Classes | None = None,
    local: dealing.Local | None = None,
    local_skew: dealing.Skew = "uniform",
    digits: Digits = "uniform",
    case: Case = "insensitive",
    sigma: Spread = 1.2,
    least: Count = 10,
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
        variant: the name of the set; `total`, `sizes`, `classes` and `local` change single properties of it.
        total: total number of rows.
        sizes: `"equal"`, `"lognormal"`, or `"empirical"`, drawn from `values` or `quantiles`.
        classes: `"balanced"`, or `"letters"`: the frequencies of English letters, see `letter_shares`; for 47 classes
            in the order of EMNIST Balanced, for another number from the most frequent class to the rarest.
        local: `"even"`, the same classes for every client, to within about a row; `"iid"`, rows dealt at random; or
            `"random"`, class shares for each client, those of all clients times independent weights.
        local_skew: distribution of these weights, `"uniform"` on (0, 1) or `"exponential"`.
        digits: `"uniform"`, `"rare"` or `"none"`, for letters and 47 classes.
        case: `"insensitive"` or `"split"`, for letters and 47 classes.
        sigma: standard deviation of the logarithm of the sizes, for lognormal ones.
        least: the smallest size, for lognormal and empirical ones.
        values: observed sizes to draw from, for empirical ones, scaled to the rows in all.
        quantiles: observed sizes by level, in place of `values`; see `empirical_sizes`.

    Returns:
        N disjoint arrays of row numbers; not all rows of the pool are used.

    Raises:
        ValueError: too few rows for the clients or for the total, an unknown name, or invalid arguments.

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
    by_class, available = dealing.rows_by_class(labels)
    table = _VARIANTS[variant]
    shares = np.full(len(available), 1 / len(available))
    if (classes or table.classes) == "letters":
        shares = letter_shares(len(available), digits, case)
    quotas = dealing.class_quotas(shares, available, total, table.total)
    held = client_sizes(rng, sizes or table.sizes, int(quotas.sum()), num_clients, sigma, least, values, quantiles)
    return dealing.deal_quotas(rng, by_class, quotas, held, local or table.local, local_skew)


@checked
def letter_shares(num_classes: Count, digits: Digits = "uniform", case: Case = "insensitive") -> np.ndarray:
    r"""Computes shares of classes that are letters, as frequent as in English text.

    For 47 classes, those of EMNIST Balanced: a letter class has its letter's frequency, whether it is a capital or
    not, and the letter classes together own 37/47, each digit 1/47. The divergence from uniform is 0.265 nats. The
    rarest classes are then Z, Q, q, J, X and K; in Astraea's Fig. 1c six classes are not learnt, and digits are.

    For any other number C of classes: the 26 frequencies in descending order, of which those at the ranks
    round(25 i / (C - 1)), i = 0..C-1, are taken and normalised (a half goes to the even rank); the first class is the
    most frequent one.

    Args:
        num_classes: C.
        digits: the share of the ten digits: `"uniform"`, `"rare"` (1.5 % together) or `"none"`; the divergence from
            uniform is then 0.512 nats for rare, and 0.576 for none: 0.336 over the letters alone.
        case: `"insensitive"`, or `"split"`, where capital and small letter, if they are two classes, have half of
            their letter's frequency each.

    Returns:
        `Float[C]` that sum to 1.

    Raises:
        ValueError: an unknown name, or one of the options for a number of classes other than 47.

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
    from fedjax_bal.data.sources.idx import MERGED_CHARACTERS  # imported here, because sources split rows, too

    if num_classes == len(MERGED_CHARACTERS):
        letters = [name.lower() for name in MERGED_CHARACTERS[_DIGITS:]]
        percent = np.array([_PERCENT[letter] / (letters.count(letter) if case == "split" else 1) for letter in letters])
        together = {"uniform": _DIGITS / len(MERGED_CHARACTERS), "rare": _RARE, "none": 0.0}[digits]
        return np.concatenate([np.full(_DIGITS, together / _DIGITS), (1 - together) * percent / percent.sum()])
    if (digits, case) != ("uniform", "insensitive"):
        raise ValueError(
            f"digits={digits!r} and case={case!r} for {num_classes} classes; they are for EMNIST's 47: omit them."
        )
    descending = np.sort(list(_PERCENT.values()))[::-1]
    percent = descending[np.rint(np.linspace(0, len(descending) - 1, num_classes)).astype(int)]
    return percent / percent.sum()


@checked
def normal_shares(num_classes: Count, span: Annotated[float, Gt(0), Le(10)] = 3.0) -> np.ndarray:
    r"""Computes shares of the classes in proportion to the normal density.

    share_c is proportional to exp(-x_c^2 / 2), x_c the middle of the c-th of C equal bins of [-span, span]: for ten
    classes -2.7, -2.1, ..., 2.7, so the largest is e^3.6 = 36.6 times the smallest.

    Args:
        num_classes: C.
        span: half the width, above 0 and at most 10.

    Returns:
        `Float[C]` that sum to 1; the first and the last are the smallest.

    Raises:
        ValueError: invalid arguments.

    Example:
        >>> shares = normal_shares(10)
        >>> round(float(shares.max() / shares.min()), 1)
        36.6
    """
    middles = span * ((2 * np.arange(num_classes) + 1) / num_classes - 1)
    density = np.exp(-(middles**2) / 2)
    return density / density.sum()


@checked
def normal_density(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count,
    total: Count | None = None,
    sizes: Sizes = "equal",
    local: dealing.Local = "random",
    local_skew: dealing.Skew = "uniform",
    span: Annotated[float, Gt(0), Le(10)] = 3.0,
    sigma: Spread = 1.2,
    least: Count = 10,
    values: Sequence[float] | None = None,
    quantiles: Mapping[float, float] | None = None,
) -> list[np.ndarray]:
    """Draws a set whose class sizes follow the normal density and deals it to the clients.

    The set is the largest one with exactly these shares, or has `total` rows; then other classes make up for those that
    run out. No row goes to two clients.

    Args:
        rng: source of randomness.
        labels: `Int[D]`, the pool; C is the number of different ones, which follow the density in their order.
        num_clients: N; 100 in the paper.
        total: total number of rows.
        sizes: `"equal"`, to within a row, `"lognormal"`, or `"empirical"`, drawn from `values` or `quantiles`.
        local: `"even"`, the same classes for every client, to within about a row; `"iid"`, rows dealt at random; or
            `"random"`, class shares for each client, those of all clients times independent weights.
        local_skew: distribution of these weights, `"uniform"` on (0, 1) or `"exponential"`.
        span: half the width of the interval that the classes divide.
        sigma: standard deviation of the logarithm of the sizes, for lognormal ones.
        least: the smallest size, for lognormal and empirical ones.
        values: observed sizes to draw from, for empirical ones, scaled to the rows in all.
        quantiles: observed sizes by level, in place of `values`; see `empirical_sizes`.

    Returns:
        N disjoint arrays of row numbers; not all rows of the pool are used.

    Raises:
        ValueError: too few rows for the clients or for the total, an unknown name, or invalid arguments.

    Example:
        >>> labels = np.repeat(np.arange(10), 9000)
        >>> parts = normal_density(np.random.default_rng(0), labels, 100)
        >>> np.bincount(labels[np.concatenate(parts)]).tolist()
        [246, 1038, 3056, 6279, 9000, 9000, 6279, 3056, 1038, 246]

    References:
        Astraea, section IV-A: CINIC-10 with "its global distribution following the standard normal distribution".
        The bins, the size of the set and the clients' class shares and sizes are not published.
    """
    by_class, available = dealing.rows_by_class(labels)
    quotas = dealing.class_quotas(normal_shares(len(available), span), available, total)
    held = client_sizes(rng, sizes, int(quotas.sum()), num_clients, sigma, least, values, quantiles)
    return dealing.deal_quotas(rng, by_class, quotas, held, local, local_skew)


@checked
def flcir_realworld(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Annotated[int, Ge(2)],
    discard: bool = True,
    discarded: Sequence[int] = (1, 5, 7),
    kept: CountOrZero = 3,
    published_seed: Seed | None = None,
) -> list[np.ndarray]:
    r"""Cuts classes into slices of different size and lets each client take a few of them.

    1. The classes are put into a random order.
    2. Client k wants a_k ~ uniform{1, ..., C - 1} slices, A = sum_k a_k in all.
    3. A is split into C positive numbers: all start at 1, and A - C times a uniformly drawn one grows by 1. In
       descending order, they go to the classes in their order.
    4. Each class is cut into its number of slices, which differ by at most a row, the larger ones first.
    5. The clients come in turn; each takes the last slice of the first a_k classes that have one left. After each
       client the classes are sorted again by the slices that they have left, most first.
    6. A slice of one of the `discarded` classes is thrown away instead, but counts as taken, as long as more than
       `kept` slices of that class remain.

    By step 6, which only the authors' code has, the training set is globally imbalanced: with the published seed, 100
    clients and 5,000 rows of each of ten classes, classes 1, 5 and 7 keep 315, 308 and 315 rows and the others 5,000.
    No client is left without rows: one that would be swaps its a_k with the next client whose number is large enough,
    which changes only the order of the numbers; if there is none, steps 2 to 5 are repeated.

    Args:
        rng: source of randomness; untouched with a published seed.
        labels: `Int[D]`; C is the number of different ones, at least 2.
        num_clients: N, at least 2.
        discard: whether step 6 takes place; without it the partition is the paper's, and all rows are used.
        discarded: labels whose slices are thrown away, each of which must occur; ignored without `discard`.
        kept: the number of slices of each of these classes that are not thrown away, at least 0.
        published_seed: draw with the generators that the authors' code uses, both seeded with this number, and leave
            the rows in their order; 43 is theirs.

    Returns:
        N disjoint arrays of row numbers, none of them empty.

    Raises:
        ValueError: fewer than two classes or clients, fewer rows than clients, a class to discard that doesn't occur,
            no partition found without an empty client, or invalid arguments.

    Example:
        >>> labels = np.repeat(np.arange(10), 5000)
        >>> parts = flcir_realworld(np.random.default_rng(0), labels, 100, published_seed=43)
        >>> np.bincount(labels[np.concatenate(parts)]).tolist()
        [5000, 315, 5000, 5000, 5000, 308, 5000, 315, 5000, 5000]

    References:
        FL-CIR, section 4, says "random amount of classes and random amount of data samples"; the steps are in its code.
        There a client may be left without rows.
    """
    by_class, sizes = dealing.rows_by_class(labels)
    classes = len(sizes)
    if classes < 2:
        raise ValueError(f"labels has {classes} class; each client gets 1 to C - 1 of C classes: use at least 2.")
    dealing.check_clients_below_rows(num_clients, len(labels))
    present = np.unique(labels)
    absent = np.setdiff1d(discarded, present)
    if discard and absent.size:
        raise ValueError(
            f"discarded={list(discarded)}, but no row has label {absent[0]}; there are {present.tolist()}: name "
            "some of these, or set discard=False."
        )
    cut_down = np.isin(present, discarded) & discard
    if published_seed is None:
        order = rng.permutation(classes)
        draw = _any_draw(rng, num_clients, classes)
        by_class = dealing.shuffled(rng, by_class)
    else:
        order, draw = _published_draw(published_seed, num_clients, classes)
    for _ in range(_REDRAWS):
        wanted, slices = draw()
        pieces = np.empty_like(slices)
        pieces[order] = -np.sort(-slices)
        owners = _taken(order, wanted, pieces, sizes, cut_down, kept)
        if owners is not None:
            break
    else:
        raise ValueError(
            f"{_REDRAWS} draws for {num_clients} clients, {sizes.sum()} rows and kept={kept} each left a client with "
            "nothing; use fewer clients, more rows, or discard=False."
        )
    # Each class is cut into its slices, which differ by at most a row, the larger ones first.
    owner = [
        np.repeat(row[:count], dealing.even_sizes(len(rows), int(count)))
        for rows, row, count in zip(by_class, owners, pieces, strict=True)
    ]
    owner = np.concatenate(owner)
    used = owner != _THROWN_AWAY
    return dealing.deal_to_owners(np.concatenate(by_class)[used], owner[used], num_clients)


SliceDraw = Callable[[], tuple[list[int], np.ndarray]]


def _any_draw(rng: np.random.Generator, num_clients: int, num_classes: int) -> SliceDraw:
    """Returns a function that draws steps 2 and 3: the clients' a_k, and the numbers of slices, not sorted yet."""

    def draw() -> tuple[list[int], np.ndarray]:
        wanted = rng.integers(1, num_classes, num_clients)
        extra = max(int(wanted.sum()) - num_classes, 0)
        return wanted.tolist(), 1 + rng.multinomial(extra, np.full(num_classes, 1 / num_classes))

    return draw


def _published_draw(seed: int, num_clients: int, num_classes: int) -> tuple[np.ndarray, SliceDraw]:
    """Returns the order of the classes, and steps 2 and 3 as published.

    The order and the a_k come from NumPy's old generator, the numbers of slices from Python's.
    """
    numpy_words = np.random.RandomState(seed)
    python_words = random.Random(seed)
    order = np.arange(num_classes)
    numpy_words.shuffle(order)

    def draw() -> tuple[list[int], np.ndarray]:
        wanted = [int(numpy_words.randint(1, num_classes)) for _ in range(num_clients)]
        extra = [python_words.randint(0, num_classes - 1) for _ in range(sum(wanted) - num_classes)]
        return wanted, 1 + np.bincount(np.asarray(extra, np.int64), minlength=num_classes)

    return order, draw


def _taken(
    order: np.ndarray, wanted: list[int], slices: np.ndarray, sizes: np.ndarray, cut_down: np.ndarray, kept: int
) -> np.ndarray | None:
    """Takes steps 5 and 6; returns the owner of each slice, `Int[C, most slices]`, or None without a solution."""
    if sum(wanted) != slices.sum():
        return None  # fewer slices are wanted than there are classes
    wanted = list(wanted)
    left = slices.copy()
    owners = np.full((len(slices), slices.max()), _THROWN_AWAY)
    for client in range(len(wanted)):
        line = order[left[order] > 0]
        last = left[line] - 1
        stays = ~cut_down[line] | (last < kept)
        filled = stays & (last < sizes[line])  # with more slices than rows, the last slices are empty
        if not filled.any():
            return None
        # A client that wants fewer slices than it needs to get a row swaps its number with a later client's.
        needed = int(np.argmax(filled)) + 1
        other = next((other for other in range(client, len(wanted)) if wanted[other] >= needed), None)
        if other is None:
            return None
        wanted[client], wanted[other] = wanted[other], wanted[client]
        if wanted[client] > len(line):
            return None  # too few classes have slices left
        chosen = slice(wanted[client])
        owners[line[chosen], last[chosen]] = np.where(stays[chosen], client, _THROWN_AWAY)
        left[line[chosen]] -= 1
        order = order[np.argsort(-left[order], kind="stable")]
    return owners
