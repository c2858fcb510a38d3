"""FL-CIR's "real world" partition: a random number of classes and of rows for each client, some classes cut down."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from fedjax_bal.data.partition.arguments import check_clients_below_rows, checked_pool
from fedjax_bal.data.partition.dealing import deal_to_owners, shuffled
from fedjax_bal.data.row_numbers import even_sizes
from fedjax_bal.validate import switch, whole_number

_REDRAWS = 100
_THROWN_AWAY = -1


def flcir_realworld(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: int,
    discard: bool = True,
    discarded: Sequence[int] = (1, 5, 7),
    kept: int = 3,
    published_seed: int | None = None,
) -> list[np.ndarray]:
    r"""Cuts classes into slices of different size and lets each client take a few of them.

    1. The classes are put into a random order.
    2. Client k wants a_k ~ uniform{1, ..., C - 1} slices, A = sum_k a_k in all.
    3. A is split into C positive numbers, all 1 and then A - C times one more for a uniform class; they go, in
       descending order, to the classes in theirs.
    4. Each class is cut into its number of slices, which are equal to a row, the larger ones first.
    5. The clients come in turn; each takes the last slice of the first a_k classes that have one left. After each
       client the classes are sorted again by the slices that they have left, most first.
    6. A slice of one of the `discarded` classes is thrown away instead, but counts as taken, as long as more than
       `kept` slices of that class remain.

    By step 6, which only the authors' code has, the training set is globally imbalanced: with the published seed, 100
    clients and 5,000 rows of each of ten classes, classes 1, 5 and 7 keep 315, 308 and 315 rows and the others 5,000.
    No client is left with nothing: one that would be swaps its a_k with the next client whose number is large enough,
    which changes the order of the numbers only; if there is none, steps 2 to 5 are drawn again.

    Args:
        rng: source of randomness; untouched with a published seed.
        labels: `Int[D]`; C is the number of different ones, at least 2.
        num_clients: N, at least 2.
        discard: whether step 6 takes place; without it the partition is the paper's, and all rows are used.
        discarded: labels whose slices are thrown away, each of which must occur; ignored without `discard`.
        kept: how many slices of these classes are not, at least 0.
        published_seed: draw with the generators that the authors' code uses, both seeded with this number, and leave
            the rows in their order; 43 is theirs.

    Returns:
        N disjoint arrays of row numbers, none of them empty.

    Raises:
        ValueError: fewer than two classes or clients, fewer rows than clients, a class to discard that doesn't occur,
            no partition found without an empty client, or arguments of the wrong kind.

    Example:
        >>> labels = np.repeat(np.arange(10), 5000)
        >>> parts = flcir_realworld(np.random.default_rng(0), labels, 100, published_seed=43)
        >>> np.bincount(labels[np.concatenate(parts)]).tolist()
        [5000, 315, 5000, 5000, 5000, 308, 5000, 315, 5000, 5000]

    References:
        FL-CIR, section 4, says "random amount of classes and random amount of data samples"; the steps are in its code.
        There a client may be left with nothing.
    """
    num_clients, by_class, sizes = checked_pool(rng, labels, num_clients)
    kept = whole_number("kept", kept, low=0)
    _check_solvable(num_clients, len(sizes), int(sizes.sum()))
    cut_down = _cut_down(np.unique(labels), _checked_classes(discarded), switch("discard", discard))
    if published_seed is None:
        order, draw = rng.permutation(len(sizes)), _any_draw(rng, num_clients, len(sizes))
        by_class = shuffled(rng, by_class)
    else:
        order, draw = _published_draw(published_seed, num_clients, len(sizes))
    for _ in range(_REDRAWS):
        wanted, slices = draw()
        pieces = np.empty_like(slices)
        pieces[order] = -np.sort(-slices)
        owners = _taken(order, wanted, pieces, sizes, cut_down, kept)
        if owners is not None:
            return _cut_by_owner(by_class, pieces, owners, num_clients)
    raise ValueError(
        f"{_REDRAWS} draws for {num_clients} clients, {sizes.sum()} rows and kept={kept} each left a client with "
        "nothing; take fewer clients, more rows, or discard=False."
    )


def _check_solvable(num_clients: int, num_classes: int, num_rows: int) -> None:
    if num_classes < 2:
        raise ValueError(f"labels has {num_classes} class; each client gets 1 to C - 1 of C classes: take at least 2.")
    if num_clients < 2:
        raise ValueError("num_clients=1 can't take a slice of every class, as it gets at most C - 1; take at least 2.")
    check_clients_below_rows(num_clients, num_rows)


def _checked_classes(discarded) -> np.ndarray:
    classes = np.asarray(discarded)
    if classes.ndim != 1 or (classes.size and classes.dtype.kind not in "iu"):
        raise ValueError(f"discarded={discarded!r}; expected a list of labels, as (1, 5, 7).")
    return classes


def _cut_down(present: np.ndarray, discarded: np.ndarray, discard: bool) -> np.ndarray:
    """Marks the classes present that step 6 cuts down."""
    absent = np.setdiff1d(discarded, present)
    if discard and absent.size:
        raise ValueError(
            f"discarded={discarded.tolist()}, but no row has label {absent[0]}; there are {present.tolist()}: name "
            "some of these, or set discard=False."
        )
    return np.isin(present, discarded) & discard


def _any_draw(rng, num_clients: int, num_classes: int) -> Callable[[], tuple[list[int], np.ndarray]]:
    """Steps 2 and 3: how many slices each client wants, and how many the classes have, not yet sorted."""

    def draw():
        wanted = rng.integers(1, num_classes, num_clients)
        extra = max(int(wanted.sum()) - num_classes, 0)
        return wanted.tolist(), 1 + rng.multinomial(extra, np.full(num_classes, 1 / num_classes))

    return draw


def _published_draw(seed: int, num_clients: int, num_classes: int):
    """Order of the classes, and steps 2 and 3: the order by NumPy's old generator, then a_k, then Python's slices."""
    if whole_number("published_seed", seed, low=0) >= 2**32:
        raise ValueError(f"published_seed={seed!r}; expected at most {2**32 - 1}, the most that NumPy takes.")
    numpy_words, python_words = np.random.RandomState(seed), random.Random(int(seed))
    order = np.arange(num_classes)
    numpy_words.shuffle(order)

    def draw():
        wanted = [int(numpy_words.randint(1, num_classes)) for _ in range(num_clients)]
        extra = [python_words.randint(0, num_classes - 1) for _ in range(sum(wanted) - num_classes)]
        return wanted, 1 + np.bincount(np.asarray(extra, np.int64), minlength=num_classes)

    return order, draw


def _taken(order, wanted: list[int], slices, sizes, cut_down, kept: int) -> np.ndarray | None:
    """Steps 5 and 6: the owner of each slice, `Int[C, most slices]`; None where the draw has no solution."""
    if sum(wanted) != slices.sum():
        return None  # fewer wishes than classes
    wanted, left = list(wanted), slices.copy()
    owners = np.full((len(slices), slices.max()), _THROWN_AWAY)
    for client in range(len(wanted)):
        line = order[left[order] > 0]
        last = left[line] - 1
        stays = ~cut_down[line] | (last < kept)
        filled = stays & (last < sizes[line])  # of more slices than rows the last are empty
        if not filled.any() or not _satisfied(wanted, client, int(np.argmax(filled)) + 1):
            return None
        if wanted[client] > len(line):
            return None  # slices are left, but of too few classes
        chosen = slice(wanted[client])
        owners[line[chosen], last[chosen]] = np.where(stays[chosen], client, _THROWN_AWAY)
        left[line[chosen]] -= 1
        order = order[np.argsort(-left[order], kind="stable")]
    return owners


def _satisfied(wanted: list[int], client: int, needed: int) -> bool:
    """Tells whether a client wants as many slices as it needs for a row, if need be after a swap with a later one."""
    later = (other for other in range(client, len(wanted)) if wanted[other] >= needed)
    other = next(later, None)
    if other is None:
        return False
    wanted[client], wanted[other] = wanted[other], wanted[client]
    return True


def _cut_by_owner(by_class: list[np.ndarray], slices, owners, num_clients: int) -> list[np.ndarray]:
    """Steps 4 and 5: the rows of each client."""
    owner = np.concatenate(
        [
            np.repeat(mine[:count], even_sizes(len(rows), int(count)))
            for rows, mine, count in zip(by_class, owners, slices, strict=True)
        ]
    )
    used = owner != _THROWN_AWAY
    return deal_to_owners(np.concatenate(by_class)[used], owner[used], num_clients)
