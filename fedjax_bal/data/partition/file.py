"""Partitions given by the data set's writers or users, by a table of each client's classes, or by a file."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_bal.annotations import Count, NonNegative, checked
from fedjax_bal.data.npz_file import read_arrays
from fedjax_bal.data.partition.dealing import class_quotas, cut_counts, deal_by_class, rows_by_class, shuffled
from fedjax_bal.data.partition.pickled import MAGIC, read_pickled_integers
from fedjax_bal.data.reading import DataError, reading, shortened
from fedjax_bal.files import parse_json, read_bytes

_LARGEST_SHARE = 2**31
_AS_JSON = (  # rewrites the printed form of Python's and NumPy's objects as JSON
    (r"(?:np\.|numpy\.)?u?int\d*\((\d+)\)", r"\1"),  # a NumPy number
    (r"(?:np\.|numpy\.)?array\(([\[\]\d\s,]*)(?:,\s*dtype=[\w.']+)?\)", r"\1"),
    (r"\bset\(\)", "[]"),
    (r"\{(\s*\d[\d,\s]*)\}", r"[\1]"),  # a set
    (r"([{,]\s*)(\d+)\s*:", r'\1"\2":'),  # a key that is a number
    (r"([\d\]])\s+(?=[\d\[])", r"\1,"),  # items of an array, without commas
    ("'", '"'),
)
_FORMS = "a list for each client as JSON, a line for each client, an npz file of an array each, or a pickle of lists"


@checked
def natural(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count | None,
    owners: np.ndarray | None,
    choose: Literal["random", "largest"] = "random",
    min_size: Count = 1,
) -> list[np.ndarray]:
    """Makes a client of each writer or user of the data set, or of some of them.

    Clients are in the order of the owners' numbers, so the partition into all owners doesn't depend on the seed.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; only their number matters.
        num_clients: N, at most as many as there are owners with enough rows; None for all of these.
        owners: number of each row's writer or user, `Int[D]`; None if the data set has no such numbers.
        choose: `"random"`, N owners, all equally likely; `"largest"`, those with most rows, the first ones of a tie.
        min_size: rows that an owner must have to be chosen.

    Returns:
        N disjoint arrays of row numbers, ascending.

    Raises:
        ValueError: the data set has no owners or too few, or invalid arguments.

    Example:
        >>> owners = np.array([4, 7, 4, 9, 9, 9])
        >>> natural(np.random.default_rng(0), np.zeros(6, int), 2, owners, choose="largest")
        [array([0, 2]), array([3, 4, 5])]
    """
    if owners is None:
        raise ValueError(
            "natural needs a data set that says whose its images are: femnist, inaturalist2019, csv with "
            "clients, or npz with train_clients; use another scheme for this one."
        )
    owners = np.asarray(owners)
    if owners.shape != labels.shape or owners.dtype.kind not in "iu":
        raise ValueError(f"owners has shape {owners.shape} and type {owners.dtype}; expected {len(labels)} integers.")
    by_owner, sizes = rows_by_class(owners)
    enough = np.flatnonzero(sizes >= min_size)
    if num_clients is None:
        num_clients = len(enough)
    if not 0 < num_clients <= len(enough):
        rows_each = f"at least {min_size} rows" if min_size > 1 else "rows"
        raise ValueError(
            f"{num_clients} clients, but {len(enough)} writers or users have {rows_each}; natural gives each of them "
            "one client: use at most as many."
        )
    if choose == "random":
        chosen = rng.choice(enough, num_clients, replace=False)
    else:
        chosen = enough[np.argsort(-sizes[enough], kind="stable")[:num_clients]]
    return [by_owner[owner] for owner in np.sort(chosen).tolist()]


@checked
def class_table(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count,
    table: Sequence[Sequence[NonNegative]] | np.ndarray,
    holds: Literal["counts", "shares"] = "counts",
) -> list[np.ndarray]:
    r"""Draws each client's rows of each class as a table says, in numbers or in proportion.

    `"counts"`: client k gets `table[k][c]` rows of class c. `"shares"`: it gets s `table[k][c]`, with the largest s for
    which no class runs out. So rows of probabilities, which sum to 1, make clients of equal size, and the class counts
    of a published federation are scaled to this data set. Rounding is by cut points, floor(n_c cumsum(shares)) in the
    order of the clients. Rows are drawn at random, and the rest of them are left out.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; a column of the table is the label of its number.
        num_clients: N, the number of rows of the table.
        table: `Float[N, C]`, not negative: a list of C numbers for each client.
        holds: `"counts"` or `"shares"`.

    Returns:
        N disjoint arrays of row numbers; a client whose numbers are 0 has none.

    Raises:
        ValueError: the table isn't N lists of one length, has only zeros, asks for more rows of a class than there are,
            or holds fractions for counts; or invalid arguments.

    Example:
        >>> labels = np.repeat([0, 1, 2], [60, 40, 8])
        >>> probabilities = [[0.8, 0.2, 0], [0.1, 0.6, 0.3]]
        >>> parts = class_table(np.random.default_rng(0), labels, 2, probabilities, holds="shares")
        >>> [np.bincount(labels[rows], minlength=3).tolist() for rows in parts]
        [[21, 5, 0], [3, 16, 8]]
    """
    if len(table) != num_clients:
        raise ValueError(f"table has {len(table)} rows for {num_clients} clients; use {len(table)} clients.")
    lengths = [len(row) for row in table]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"table has rows of {min(lengths)} to {max(lengths)} numbers; expected one number for each class in each."
        )
    return _deal_table(rng, labels, np.array(table, np.float64), holds)


@checked
def file(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count,
    file: str | os.PathLike,
    holds: Literal["rows", "counts", "shares"] = "rows",
    row_numbers: np.ndarray | None = None,
    dataset_size: Count | None = None,
    official_order: bool = True,
    class_names: Sequence[str] | None = None,
) -> list[np.ndarray]:
    """Reads a partition from a file, a published one for instance.

    The file is JSON, or the printed form of Python's or NumPy's objects: a list (or set) for each client, or a mapping
    of the clients' numbers, from 0, to lists. Or it is text, with a line for each client, numbers separated by blanks
    or commas; empty lines at the end are clients without rows only if there are fewer other lines than clients. Or it
    is an npz file, with one array for each client, `numpy.savez(FILE, *rows_per_client)`, or a single array with a row
    for each client. Or it is a pickle of lists or a mapping, such as the files of github.com/junkangLiu0/FedMuon: only
    integers are read from it, Python's and NumPy's, and a file that names any other function or class is refused.
    It isn't unpickled, and nothing in any of these files is executed.

    Args:
        rng: source of randomness, for counts and shares.
        labels: `Int[R]`, of the rows that are partitioned.
        num_clients: N, the number of clients in the file.
        file: the file.
        holds: the content of the file's lists: `"rows"`, a client's row numbers in the data set, from 0, without the
            share of a file's rows that is held out for testing (numbers in `train_labels`, in Python); or `"counts"`,
            its numbers of rows of class 0, 1, ... (in JSON also a mapping of classes, by name or number, to these),
            which are then drawn; or `"shares"`, the same in proportion, see `class_table`.
        row_numbers: number in the data set of each partitioned row, `Int[R]`; None for 0..R-1. Rows that are held out,
            or thinned out by a long tail, are missing from it, and clients that list them don't get them.
        dataset_size: rows of the data set; None for the largest row number plus 1.
        official_order: whether the data set's rows are in the order of its files, which row numbers need.
        class_names: C names, which mappings of classes may use. If a name is a number itself, they must.

    Returns:
        N arrays of row numbers from 0 to R - 1, in the order of the file; clients may share rows that the file gives to
        several, and a row that a client lists twice, as some of FedMuon's do, it has once.

    Raises:
        DataError: the file can't be read or is damaged, or has the wrong number of clients, row numbers that
            the data set lacks, or more rows of a class than there are.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     published = Path(folder, "clients.txt")
        ...     _ = published.write_text("{0: [3, 1], 1: [0]}")
        ...     file(np.random.default_rng(0), np.array([0, 1, 0, 1]), 2, published)
        [array([3, 1]), array([0])]
    """
    path = Path(file)
    if holds == "rows" and not official_order:
        raise ValueError(
            f"{path} holds row numbers, but these data come from TensorFlow Datasets, whose rows are in another order: "
            "pass --data-dir with the official files."
        )
    with reading(path, f"expected {_FORMS}."):
        lists = _read_npz(path) if path.suffix == ".npz" else _read_lists(path)
        if not len(lists):
            raise ValueError("is not a partition (empty)")
        while len(lists) > num_clients and path.suffix != ".npz" and lists[-1] == []:  # empty lines at the end
            lists.pop()
        if len(lists) != num_clients:
            raise DataError(f"{path}: has {len(lists)} clients, but {num_clients} are asked for; ask for {len(lists)}.")
        if holds != "rows":
            return _deal_table(rng, labels, _as_table(lists, labels, holds, class_names or ()), holds)
        numbers = np.arange(len(labels)) if row_numbers is None else np.asarray(row_numbers)
        position = np.full(int(numbers.max()) + 1 if dataset_size is None else dataset_size, -1)
        position[numbers] = np.arange(len(numbers))
        rows = [position[_numbers(client, listed, len(position), "row")] for client, listed in enumerate(lists)]
    firsts = [np.sort(np.unique(listed, return_index=True)[1]) for listed in rows]
    return [listed[first][listed[first] >= 0] for listed, first in zip(rows, firsts, strict=True)]


def _read_lists(path: Path) -> list[Any]:
    """Reads the clients' lists, or mappings of classes to numbers."""
    content = read_bytes(path)
    if content[:1] == MAGIC:
        return _in_order(read_pickled_integers(content))
    try:
        text = content.decode("utf-8-sig")
        if re.match(r"\s*(?:[\[{]|(?:np\.|numpy\.)?array\()", text):
            for pattern, replacement in _AS_JSON:
                text = re.sub(pattern, replacement, text)
            return _in_order(parse_json(text))
        return [list(map(_number, line.replace(",", " ").split())) for line in text.splitlines()]
    except ValueError as error:
        raise ValueError(f"is not a partition ({str(error)[:100]})") from error


def _read_npz(path: Path) -> list[Any]:
    """Reads the clients' arrays."""
    arrays = read_arrays(path, None)
    with reading(path, f"expected {_FORMS}: numpy.savez(FILE, *rows)."):
        if len(arrays) == 1 and (only := next(iter(arrays.values()))).ndim == 2:
            return list(only)
        numbered = {}
        for name, rows in arrays.items():
            end = re.search(r"\d{1,9}$", name)
            if end is None:
                raise ValueError(
                    f"is not a partition (the array {name!r} has no client's number at the end of its name)"
                )
            if str(int(end[0])) in numbered:
                raise ValueError("is not a partition (two arrays have the same number at the end of their names)")
            numbered[str(int(end[0]))] = rows
        return _in_order(numbered)


def _in_order(content: Any) -> list[Any]:
    """Returns a list unchanged; for a mapping with keys 0..N-1, returns the values in the order of the keys."""
    if isinstance(content, list):
        return content
    if not isinstance(content, Mapping) or not all(_is_number(str(key)) for key in content):
        raise ValueError("is neither a list nor a mapping of numbers of clients")
    by_number = {int(key): listed for key, listed in content.items()}
    if sorted(by_number) != list(range(len(content))):
        raise ValueError("its clients aren't numbered from 0 without a gap")
    return [by_number[number] for number in range(len(by_number))]


def _is_number(key: str) -> bool:
    return key.isdecimal() and len(key) < 19


def _number(word: str) -> int | float:
    return float(word) if "." in word or "e" in word else int(word)


def _numbers(client: int, values: Any, size: int, kind: str, types: str = "iu") -> np.ndarray:
    """Converts a list to an array, and checks that it holds integers, or `types`, from 0 to `size` - 1."""
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.empty((0, 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in types):
        raise ValueError(f"client {client} has no list of {'integers' if types == 'iu' else 'numbers'}")
    wrong = ~((array >= 0) & (array < size))  # NaN is wrong too
    if wrong.any():
        raise ValueError(f"client {client} lists {kind} {array[np.argmax(wrong)]}, not from 0 to {size - 1:g}")
    return array.astype(np.int64) if types == "iu" else array.astype(np.float64)


def _as_table(lists: Sequence[Any], labels: np.ndarray, holds: str, class_names: Sequence[str]) -> np.ndarray:
    """Makes a table `Float[N, C]` from each client's list, or mapping of classes to numbers."""
    table = np.zeros((len(lists), max(int(labels.max()) + 1, len(class_names), 1)))
    class_of = {name: label for label, name in enumerate(class_names)}
    if not any(re.fullmatch(r"\s*[+-]?[\d.]+\s*", name) for name in class_names):  # else "1" may be a name or a number
        class_of |= {str(label): label for label in range(table.shape[1])}
    for client, listed in enumerate(lists):
        named = isinstance(listed, Mapping)
        values = list(listed.values()) if named else listed
        if holds == "counts":
            numbers = _numbers(client, values, len(labels) + 1, "count")
        else:
            numbers = _numbers(client, values, _LARGEST_SHARE, "share", "iuf")
        keys = range(len(numbers))
        if named:
            unknown = [key for key, number in zip(listed, numbers, strict=True) if number and str(key) not in class_of]
            if unknown:
                classes = shortened(", ".join(class_names) or f"0 to {table.shape[1] - 1}", 200)
                raise ValueError(f"client {client} lists class {str(unknown[0])!r:.99}; the classes are {classes}")
            keys = [class_of.get(str(key), 0) for key in listed]  # a class that the data lack may have 0 rows
        present = _numbers(client, np.array(keys, np.int64)[numbers > 0], table.shape[1], "class")
        if len(np.unique(present)) < len(present):
            raise ValueError(f"client {client} lists a class twice, by name and by number")
        table[client, present] = numbers[numbers > 0]
    return table


def _deal_table(rng: np.random.Generator, labels: np.ndarray, table: np.ndarray, holds: str) -> list[np.ndarray]:
    """Draws the rows that a table `Float[N, C]` asks for, see `class_table`."""
    by_class = [np.flatnonzero(labels == label) for label in range(table.shape[1])]
    available = np.array([len(rows) for rows in by_class])
    wanted = table.sum(axis=0)
    if not wanted.any():
        raise ValueError("holds only zeros, so no client has rows; expected a number above 0")
    if holds == "shares":
        asked = wanted > 0
        if (asked > (available > 0)).any():
            label = np.argmax(asked > (available > 0))
            raise ValueError(f"clients have a share of class {label}, but there are no rows of it; use 0 for it")
        quotas = class_quotas(wanted / wanted.sum(), available, None)
        counts = np.zeros(table.T.shape, np.int64)
        counts[asked] = cut_counts(table.T[asked], quotas[asked])
    else:
        fractions = table != np.floor(table)
        if fractions.any():
            client, label = np.argwhere(fractions)[0]
            raise ValueError(
                f"client {client} has {table[client, label]:g} rows of class {label}; expected integers, or use "
                "holds=shares for proportions"
            )
        counts = table.T.astype(np.int64)
    for label, (asked, rows) in enumerate(zip(counts.sum(axis=1).tolist(), available.tolist(), strict=True)):
        if asked > rows:
            raise ValueError(
                f"clients have {asked} rows of class {label}, but there are {rows} to draw from; use the data set "
                "that it is for, and hold no rows out"
            )
    return deal_by_class(shuffled(rng, by_class), counts)
