"""The federation: a partitioned data set with every image stored once."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

import numpy as np

from fedjax_bal.data.inputs import are_tokens, checked_examples, compute_constants, num_channels
from fedjax_bal.data.partition.dealing import MAX_ROWS
from fedjax_bal.types import ClientTests, Dataset, Federation, Names
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

    The names of a data set's classes and input columns are kept. If each client's rows are of one user of the data set
    whom no other client has, as in the natural partition, it has the user's name and, unless `tests` are given, the
    user's rows of the test set: the test images are appended to the images, and training is the same as without them.

    Args:
        images: a `Dataset`; or `UInt8[D, H, W, K]`, `Float[D, ...]`, or token ids `Int[D, ...]`.
        labels: `Int[D]` in 0..C-1.
        rows_per_client: N arrays of row numbers in 0..D-1, or a mapping of the clients' numbers, 0..N-1, to them.
        num_classes: C.
        auxiliary: named arrays of row numbers that no client may own; `validation` is for evaluating the global model.
        mean: `[K]` (or one number) subtracted from pixels scaled to [0, 1], or from floats, K on their last axis; by
            default the data set's, 0 for arrays.
        std: `[K]` (or one number) that the difference is divided by; by default the data set's, 1 for arrays.
        tests: N arrays of row numbers that no client may own: each client's test rows, see `hold_out`; by default those
            of the test set that are its user's, if these are known.

    Returns:
        The federation, in NumPy arrays, with `copy` all 0.

    Raises:
        ValueError: arguments don't fit either form or each other, images aren't finite, labels or row numbers are
            out of range, a client lists a row twice or owns an auxiliary or test row, `std` is not above 0, token ids
            are to be normalised, or the arrays of the data set don't fit each other.

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

        Clients that are the users of a data set:

        >>> train, test = (np.eye(4, 2), np.arange(4) % 2), (np.eye(3, 2), np.arange(3) % 2)
        >>> users = {"train_clients": np.array([0, 0, 1, 1]), "test_clients": np.array([1, 1, 0])}
        >>> patients = Dataset(*train, *test, ("ill", "well"), **users, client_names=("Ada", "Bo"))
        >>> federation = federate(patients, [np.array([2, 3]), np.array([0, 1])])
        >>> federation.client_names, federation.tests.rows, federation.tests.offsets
        (('Bo', 'Ada'), array([4, 5, 6], dtype=int32), array([0, 2, 3], dtype=int32))
    """
    dataset = None
    if isinstance(images, Dataset):
        dataset = images
        if num_classes is not None or (labels is None) == (rows_per_client is None):
            raise ValueError(
                f"{_FORMS}: received a data set, whose labels and classes are known; leave them out, and pass "
                "rows_per_client once."
            )
        rows_per_client = labels if rows_per_client is None else rows_per_client
        images = dataset.train_images
        labels = dataset.train_labels
        num_classes = len(dataset.class_names)
        for name, times in Counter(str(name).strip() for name in dataset.class_names).items():
            if times > 1:
                raise ValueError(
                    f"class_names: received {name!r} {times} times, must be a different name for each class."
                )
        mean = dataset.mean if mean is None else mean
        std = dataset.std if std is None else std
        if mean is None or std is None:
            constants = compute_constants(np.asarray(images))
            mean = constants[0] if mean is None else mean
            std = constants[1] if std is None else std
    elif rows_per_client is None or num_classes is None:
        raise ValueError(f"{_FORMS}: received no {'rows_per_client' if rows_per_client is None else 'num_classes'}.")
    num_classes = whole_number("num_classes", num_classes)
    images, labels = checked_examples(images, labels, most=num_classes - 1)
    means = per_channel("mean", 0.0 if mean is None else mean, num_channels(images))
    stds = per_channel("std", 1.0 if std is None else std, num_channels(images), positive=True)
    if images.dtype == np.uint8 and max(means.max(), stds.max()) > 1:
        raise ValueError(
            f"mean={means.tolist()}, std={stds.tolist()}: bytes are scaled to [0, 1] before they are normalised: "
            "divide constants for the scale from 0 to 255 by 255."
        )
    if are_tokens(images) and (means, stds) != (0, 1):
        raise ValueError(
            f"mean={means.tolist()}, std={stds.tolist()}: integers are token ids, which aren't normalised; leave the "
            "constants out, or pass inputs that are numbers as floats: images.astype(np.float32)."
        )

    rows_per_client = _by_client("rows_per_client", rows_per_client)
    clients = range(len(rows_per_client))
    offsets = _offsets("rows_per_client", clients, rows_per_client)
    rows = np.empty(offsets[-1], np.int32)
    counts = np.empty((len(clients), num_classes), np.int32)
    first = 0
    while first < len(clients):  # in blocks, since sorting takes several times the memory of its result
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + _BLOCK, side="right")) - 1)
        block = rows_per_client[first:last]
        listed, owner = _checked_rows("rows_per_client", clients[first:last], block, len(labels))
        # One stable sort by client and class keeps the order of rows within a class.
        keys = owner * num_classes + labels[listed]
        counts[first:last] = np.bincount(keys, minlength=(last - first) * num_classes).reshape(-1, num_classes)
        rows[offsets[first] : offsets[last]] = listed[np.argsort(keys, kind="stable")]
        first = last

    if not isinstance(auxiliary, Mapping):
        raise ValueError(f"auxiliary is {auxiliary!r:.60}; expected a mapping of names to arrays of row numbers.")
    taken = np.zeros(len(labels), bool)
    taken[rows] = True
    sets = {}
    for name, listed in auxiliary.items():
        listed, _ = _checked_rows("auxiliary", [name], [listed], len(labels), taken)
        sets[str(name)] = listed.astype(np.int32)
    client_tests = None
    if tests is not None:
        for listed in sets.values():
            taken[listed] = True
        tests = _by_client("tests", tests)
        if len(tests) != len(clients):
            raise ValueError(
                f"tests lists rows of {len(tests)} clients; expected {len(clients)}, as many as rows_per_client."
            )
        listed, _ = _checked_rows("tests", clients, tests, len(labels), taken)
        if not len(listed):
            raise ValueError("tests has no row for any client (a client needs two rows to hold out one); leave it out.")
        client_tests = ClientTests(listed.astype(np.int32), _offsets("tests", clients, tests))
    names = None
    if dataset is not None:
        users = users_of_clients(dataset, rows_per_client)
        if users is not None and tests is None:
            images, labels, client_tests = _with_own_tests(dataset, users, images, labels, num_classes)
        names = Names(tuple(dataset.class_names), dataset.input_names, client_names(dataset, users))
    return Federation(
        images=images,
        labels=labels,
        rows=rows,
        offsets=offsets,
        class_counts=counts,
        copy=np.zeros(len(rows), np.int32),
        auxiliary=sets,
        mean=means,
        std=stds,
        tests=client_tests,
        names=names,
    )


def users_of_clients(dataset: Dataset, rows_per_client: Sequence[np.ndarray]) -> np.ndarray | None:
    """Returns the number of each client's user, `Int[N]`; None unless the clients are users of the data set.

    They are if all of a client's rows belong to one user, and no user's rows to two clients; -1 for one without rows.

    Args:
        dataset: the data set.
        rows_per_client: N arrays of row numbers.

    Example:
        >>> dataset = Dataset(None, None, None, None, ("a", "b"), np.array([5, 6, 6]))
        >>> users_of_clients(dataset, [np.array([1, 2]), np.array([], int), np.array([0])])
        array([ 6, -1,  5])
        >>> users_of_clients(dataset, [np.array([1]), np.array([0, 2])]), users_of_clients(dataset, [[1], [2]])
        (None, None)
    """
    sizes = np.fromiter(map(len, rows_per_client), np.int64, len(rows_per_client))
    if dataset.train_clients is None or not sizes.any():
        return None
    owners = np.asarray(dataset.train_clients)
    rows = np.concatenate([np.asarray(listed, np.int64) for listed in rows_per_client])
    if rows.max() >= len(owners):  # rows of the server's that follow the data set's own
        return None
    of_row = owners[rows]
    full = sizes > 0
    known = of_row[(np.cumsum(sizes) - sizes)[full]]
    if len(np.unique(known)) < len(known) or not np.array_equal(of_row, np.repeat(known, sizes[full])):
        return None
    users = np.full(len(sizes), -1)
    users[full] = known
    return users


def client_names(dataset: Dataset, users: np.ndarray | None) -> tuple[str, ...] | None:
    """Returns the names of N clients, those of their users, see `users_of_clients`; None if they are unknown.

    Raises:
        ValueError: a user has no name.

    Example:
        >>> client_names(Dataset(None, None, None, None, ("a", "b"), client_names=("Ada", "Bo")), np.array([1, -1, 0]))
        ('Bo', '1 (no rows)', 'Ada')
    """
    if users is None or dataset.client_names is None:
        return None
    if users.max() >= len(dataset.client_names):
        raise ValueError(
            f"client_names: received {len(dataset.client_names)} names, but train_clients has number {users.max()}; "
            "expected the name of each user, in the order of the numbers from 0."
        )
    names = dataset.client_names
    return tuple(str(names[user]) if user >= 0 else f"{client} (no rows)" for client, user in enumerate(users))


def _with_own_tests(
    dataset: Dataset, users: np.ndarray, images: np.ndarray, labels: np.ndarray, num_classes: int
) -> tuple[np.ndarray, np.ndarray, ClientTests | None]:
    """Appends the test set to images and labels, and finds the rows there of each client's user.

    Returns them unchanged, and None, if no client has such rows.
    """
    if dataset.test_clients is None:
        return images, labels, None
    test_images, test_labels = checked_examples(dataset.test_images, dataset.test_labels, "test ", num_classes - 1)
    owners = np.asarray(dataset.test_clients)
    if owners.shape != test_labels.shape or owners.dtype.kind not in "iu":
        raise ValueError(
            f"test_clients has shape {owners.shape} and type {owners.dtype}; expected {len(test_labels)} integers, the "
            "user of each test row."
        )
    if (test_images.dtype, test_images.shape[1:]) != (images.dtype, images.shape[1:]):
        raise ValueError(
            f"test_images are {test_images.dtype}{list(test_images.shape)}, and train_images {images.dtype}"
            f"{list(images.shape)}; expected one type, and one shape of an input."
        )
    order = np.argsort(users)
    place = np.searchsorted(users, owners, sorter=order).clip(max=len(users) - 1)
    client = np.where(users[order[place]] == owners, order[place], len(users))
    rows = np.argsort(client, kind="stable")[: np.count_nonzero(client < len(users))]
    if not len(rows):
        return images, labels, None
    sizes = np.bincount(client[rows], minlength=len(users))
    tests = ClientTests((len(labels) + rows).astype(np.int32), np.append(0, np.cumsum(sizes)).astype(np.int32))
    # The whole test set, not the clients' rows alone, so that all partitions into users share one array of images.
    return np.concatenate([images, test_images]), np.concatenate([labels, test_labels]), tests


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


def _offsets(name: str, keys: Sequence[Any], lists: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the position where each list's rows begin, and where the last one's end, `Int32[N + 1]`."""
    if len(lists) == 0:
        raise ValueError(f"{name} is empty; a federation has at least one client.")
    for key, rows in zip(keys, lists, strict=True):
        array = np.asarray(rows)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(
                f"{name}[{key!r}] has shape {array.shape} and type {array.dtype}; expected a one-dimensional "
                "array of row numbers (turn a mask into numbers with np.flatnonzero)."
            )
    ends = np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)))
    if ends[-1] > MAX_ROWS:
        raise ValueError(f"{name} lists {ends[-1]} rows in all; at most {MAX_ROWS} are supported.")
    return np.append(0, ends).astype(np.int32)


def _checked_rows(
    name: str, keys: Sequence[Any], lists: Sequence[np.ndarray], num_examples: int, taken: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Concatenates lists of rows; returns the rows, and the position of each row's list, both `Int64[R]`.

    Raises `ValueError` for a row that is out of range, repeated within a list, or `taken`, `Bool[D]`.
    """
    sizes = np.diff(_offsets(name, keys, lists))
    rows = np.concatenate([np.asarray(listed, np.int64) for listed in lists])
    owner = np.repeat(np.arange(len(lists)), sizes)
    outside = (rows < 0) | (rows >= num_examples)
    if outside.any():
        at = int(np.argmax(outside))
        raise ValueError(f"{name}[{keys[owner[at]]!r}] lists row {rows[at]}; expected 0..{num_examples - 1}.")
    if rows.size and np.bincount(rows).max() > 1:
        pairs = np.sort(owner * num_examples + rows)
        repeated = pairs[1:] == pairs[:-1]
        if repeated.any():
            at, row = divmod(int(pairs[np.argmax(repeated)]), num_examples)
            raise ValueError(
                f"{name}[{keys[at]!r}] lists row {row} more than once; it can hold a row only once (np.unique removes "
                "repeats)."
            )
    if taken is not None and taken[rows].any():
        at = int(np.argmax(taken[rows]))
        raise ValueError(
            f"{name}[{keys[owner[at]]!r}] lists row {rows[at]}, which a client or an auxiliary set has too; take such "
            "rows out before partitioning (carve), or out of the clients' rows (hold_out)."
        )
    return rows, owner
