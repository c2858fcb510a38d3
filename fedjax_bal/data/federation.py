"""The federation: a partitioned data set with every image stored once."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

import numpy as np

from fedjax_bal.data.inputs import are_tokens, checked_examples, num_channels
from fedjax_bal.data.normalisation import own_constants
from fedjax_bal.data.row_numbers import MAX_ROWS
from fedjax_bal.types import ClientTests, Dataset, Federation
from fedjax_bal.validate import per_channel, whole_number

_BLOCK = 2**20  # rows sorted at a time
_NO_SETS: Mapping[str, np.ndarray] = MappingProxyType({})
_FORMS = "federate takes (dataset, rows_per_client) or (images, labels, rows_per_client, num_classes)"


@overload
def federate(
    dataset: Dataset,
    rows_per_client: Sequence[np.ndarray],
    /,
    *,
    auxiliary: Mapping[str, np.ndarray] = ...,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    tests: Sequence[np.ndarray] | None = None,
) -> Federation: ...


@overload
def federate(
    images: np.ndarray,
    labels: np.ndarray,
    rows_per_client: Sequence[np.ndarray],
    num_classes: int,
    auxiliary: Mapping[str, np.ndarray] = ...,
    *,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    tests: Sequence[np.ndarray] | None = None,
) -> Federation: ...


def federate(
    images: Any,
    labels: Any = None,
    rows_per_client: Any = None,
    num_classes: Any = None,
    auxiliary: Mapping[str, np.ndarray] = _NO_SETS,
    *,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    tests: Sequence[np.ndarray] | None = None,
) -> Federation:
    """Builds the index-based federation: one array of row numbers, cut into clients by offsets.

    Two forms: `federate(dataset, rows_per_client)` takes the training images of a data set as `load` returns it, and
    normalises with its constants, as the command line does; `federate(images, labels, rows_per_client, num_classes)`
    takes arrays, and pixels stay in [0, 1] unless `mean` and `std` say otherwise. The test images of a simulation are
    normalised with the federation's constants.

    Inputs need not be images: any floats `[D, ...]` are taken, feature vectors `[D, K]` for instance. Integers other
    than bytes are token ids, which are never normalised: pass integers that are numbers as floats.

    A client's rows are sorted by class, and keep their order within a class. A client may be empty, and two clients may
    share a row; one client can't list a row twice.

    Args:
        images: a `Dataset`; or `UInt8[D, H, W, K]`, `Float[D, ...]`, or token ids `Int[D, ...]`.
        labels: `Int[D]` in 0..C-1.
        rows_per_client: N arrays of row numbers in 0..D-1, or a mapping of the clients' numbers, 0..N-1, to them.
        num_classes: C.
        auxiliary: named arrays of row numbers that no client may own; `validation` is for evaluating the global model.
        mean: `[K]` (or one number) subtracted from pixels scaled to [0, 1], or from floats, K on their last axis; by
            default the data set's, 0 for arrays.
        std: `[K]` (or one number) that the difference is divided by; by default the data set's, 1 for arrays.
        tests: N arrays of row numbers that no client may own: each client's own test rows, see `hold_out`.

    Returns:
        The federation, in NumPy arrays, with `copy` all 0.

    Raises:
        ValueError: arguments don't fit either form or each other, images aren't finite, labels or row numbers are
            out of range, a client lists a row twice or owns an auxiliary or test row, `std` is not above 0, or token
            ids are to be normalised.

    Example:
        >>> labels = np.array([1, 0, 1, 0])
        >>> federation = federate(np.zeros((4, 2, 2, 1), np.uint8), labels, [np.array([0, 1]), np.array([2])], 2)
        >>> federation.rows, federation.offsets
        (array([1, 0, 2], dtype=int32), array([0, 2, 3], dtype=int32))
        >>> federation.class_counts.tolist()
        [[1, 1], [0, 1]]

        A data set, with its own constants and with pixels in [0, 1]:

        >>> from fedjax_bal import data
        >>> dataset = data.load("fashion_mnist_small")
        >>> rows = data.partition.iid(np.random.default_rng(0), dataset.train_labels, 10)
        >>> federate(dataset, rows).std, federate(dataset, rows, mean=0, std=1).std
        (array([0.3081], dtype=float32), array([1.], dtype=float32))
    """
    if isinstance(images, Dataset):
        rows_per_client = _rows_of_dataset(labels, rows_per_client, num_classes)
        mean, std = _constants(images, mean, std)
        images, labels, num_classes = images.train_images, images.train_labels, len(images.class_names)
    elif rows_per_client is None or num_classes is None:
        raise ValueError(f"{_FORMS}: received no {'rows_per_client' if rows_per_client is None else 'num_classes'}.")
    num_classes = whole_number("num_classes", num_classes)
    images, labels = checked_examples(images, labels, most=num_classes - 1)
    constants = _checked_constants(images, 0.0 if mean is None else mean, 1.0 if std is None else std)
    rows_per_client = _by_client("rows_per_client", rows_per_client)
    offsets = _offsets(rows_per_client)
    rows, counts = _sorted_by_class(rows_per_client, offsets, labels, num_classes)
    held = _checked_auxiliary(auxiliary, rows, len(labels))
    return Federation(
        images=images,
        labels=labels,
        rows=rows,
        offsets=offsets,
        class_counts=counts,
        copy=np.zeros(len(rows), np.int32),
        auxiliary=held,
        mean=constants[0],
        std=constants[1],
        tests=None
        if tests is None
        else _checked_tests(_by_client("tests", tests), len(offsets) - 1, [rows, *held.values()], len(labels)),
    )


def _rows_of_dataset(second: Any, third: Any, num_classes: Any) -> Sequence[np.ndarray]:
    """Returns the rows from a call with a data set: the second argument, unless they are given by name."""
    if num_classes is not None or (second is None) == (third is None):
        raise ValueError(
            f"{_FORMS}: received a data set, whose labels and classes are known; leave them out, and pass "
            "rows_per_client once."
        )
    return second if third is None else third


def _constants(dataset: Dataset, mean: Any, std: Any) -> tuple[Any, Any]:
    """Returns the constants asked for, or else the data set's, or else those of its training images."""
    mean, std = (dataset.mean if mean is None else mean), (dataset.std if std is None else std)
    if mean is None or std is None:
        own = own_constants(np.asarray(dataset.train_images))
        mean, std = (own[0] if mean is None else mean), (own[1] if std is None else std)
    return mean, std


def _checked_constants(images: np.ndarray, mean: Any, std: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation, `Float32[K]` each, after checking them."""
    channels = num_channels(images)
    checked = per_channel("mean", mean, channels), per_channel("std", std, channels, positive=True)
    if are_tokens(images) and checked != (0, 1):
        raise ValueError(
            f"mean={mean!r}, std={std!r}: integers are token ids, which aren't normalised; leave the constants out, or "
            "pass inputs that are numbers as floats: images.astype(np.float32)."
        )
    return checked


def _by_client(name: str, rows: Any) -> Sequence[np.ndarray]:
    """Returns each client's rows in the order of the clients."""
    if isinstance(rows, Mapping):
        if set(rows) != set(range(len(rows))):
            shown = ", ".join(map(repr, list(rows)[:5])) + ", ..." * (len(rows) > 5)
            raise ValueError(
                f"{name} is a mapping with the keys {shown}; expected the clients' numbers, 0..{len(rows) - 1}, or a "
                f"list of arrays: list({name}.values())."
            )
        return [rows[client] for client in range(len(rows))]
    scalar = isinstance(rows, str | bytes) or (isinstance(rows, np.ndarray) and not rows.ndim)
    if scalar or not isinstance(rows, Iterable):
        raise ValueError(f"{name} is {rows!r}; expected an array of row numbers for each client.")
    return rows if isinstance(rows, Sequence) else list(rows)


def _offsets(rows_per_client: Sequence[np.ndarray], name: str = "rows_per_client") -> np.ndarray:
    """Returns the beginning of each client's rows, and the end of the last one's, `Int32[N + 1]`."""
    if len(rows_per_client) == 0:
        raise ValueError(f"{name} is empty; a federation has at least one client.")
    for client, rows in enumerate(rows_per_client):
        array = np.asarray(rows)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(
                f"{name}[{client}] has shape {array.shape} and type {array.dtype}; expected a one-dimensional "
                "array of row numbers (turn a mask into numbers with np.flatnonzero)."
            )
    ends = np.cumsum(np.fromiter(map(len, rows_per_client), np.int64, len(rows_per_client)))
    if ends[-1] > MAX_ROWS:
        raise ValueError(f"{name} lists {ends[-1]} rows in all; at most {MAX_ROWS} are supported.")
    return np.append(0, ends).astype(np.int32)


def _sorted_by_class(
    rows_per_client: Sequence[np.ndarray], offsets: np.ndarray, labels: np.ndarray, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns all clients' rows in turn, each client's sorted by class, and their class counts, `Int32[N, C]`."""
    clients = len(rows_per_client)
    rows, counts = np.empty(offsets[-1], np.int32), np.empty((clients, num_classes), np.int32)
    first = 0
    while first < clients:  # in blocks, since sorting takes several times the memory of its result
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + _BLOCK, side="right")) - 1)
        sizes = np.diff(offsets[first : last + 1])
        block = [np.asarray(listed) for listed in rows_per_client[first:last] if len(listed)]
        listed = np.concatenate(block).astype(np.int64, copy=False) if block else np.zeros(0, np.int64)
        owner = np.repeat(np.arange(last - first), sizes)
        _check_rows(listed, owner, first, len(labels))
        keys = owner * num_classes + labels[listed]
        counts[first:last] = np.bincount(keys, minlength=(last - first) * num_classes).reshape(-1, num_classes)
        rows[offsets[first] : offsets[last]] = listed[np.argsort(keys, kind="stable")]
        first = last
    return rows, counts


def _check_rows(
    rows: np.ndarray, owner: np.ndarray, first: int, num_examples: int, name: str = "rows_per_client"
) -> None:
    """Raises `ValueError` for a row out of range, or listed twice by a client; `first` is the first client's number."""
    outside = (rows < 0) | (rows >= num_examples)
    if outside.any():
        at = int(np.argmax(outside))
        raise ValueError(f"{name}[{first + owner[at]}] lists row {rows[at]}; expected 0..{num_examples - 1}.")
    if not rows.size or np.bincount(rows).max() == 1:
        return
    pairs = np.sort(owner * num_examples + rows)
    repeated = pairs[1:] == pairs[:-1]
    if repeated.any():
        client, row = divmod(int(pairs[np.argmax(repeated)]), num_examples)
        raise ValueError(
            f"{name}[{first + client}] lists row {row} more than once; a client can hold a row only once "
            "(np.unique removes repeats)."
        )


def _checked_auxiliary(auxiliary: Mapping, rows: np.ndarray, num_examples: int) -> dict[str, np.ndarray]:
    """Returns the auxiliary sets as `Int32` arrays, after checking that no client owns their rows."""
    if not isinstance(auxiliary, Mapping):
        raise ValueError(f"auxiliary is {auxiliary!r:.60}; expected a mapping of names to arrays of row numbers.")
    owned = np.zeros(num_examples, bool)
    owned[rows] = True
    checked = {}
    for name, listed in auxiliary.items():
        array = np.asarray(listed)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(
                f"auxiliary[{name!r}] has shape {array.shape} and type {array.dtype}; expected row numbers."
            )
        array = array.astype(np.int64)
        if array.size and (array.min() < 0 or array.max() >= num_examples):
            raise ValueError(
                f"auxiliary[{name!r}] lists rows in {array.min()}..{array.max()}; expected 0..{num_examples - 1}."
            )
        if owned[array].any():
            raise ValueError(
                f"auxiliary[{name!r}] lists row {array[np.argmax(owned[array])]}, which a client owns; carve auxiliary "
                "rows out before partitioning (carve)."
            )
        if np.unique(array).size != array.size:
            raise ValueError(f"auxiliary[{name!r}] lists a row more than once; np.unique removes repeats.")
        checked[str(name)] = array.astype(np.int32)
    return checked


def _checked_tests(
    tests: Sequence[np.ndarray], clients: int, used: Sequence[np.ndarray], num_examples: int
) -> ClientTests:
    """Returns the clients' test rows in turn, after checking that they are used for nothing else."""
    if len(tests) != clients:
        raise ValueError(f"tests lists rows of {len(tests)} clients; expected {clients}, as many as rows_per_client.")
    offsets = _offsets(tests, "tests")
    listed = np.concatenate([np.asarray(own, np.int64) for own in tests])
    if not len(listed):
        raise ValueError("tests has no row for any client (a client needs two rows to hold out one); leave it out.")
    _check_rows(listed, np.repeat(np.arange(clients), np.diff(offsets)), 0, num_examples, "tests")
    taken = np.zeros(num_examples, bool)
    taken[np.concatenate(used)] = True
    if taken[listed].any():
        raise ValueError(
            f"tests lists row {listed[np.argmax(taken[listed])]}, which a client or an auxiliary set has too; take "
            "test rows out of the clients' first (hold_out)."
        )
    return ClientTests(listed.astype(np.int32), offsets)
