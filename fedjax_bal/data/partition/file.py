"""A partition read from a file: each client's row numbers, or its number of rows of each class."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_bal.data.errors import DataError
from fedjax_bal.data.partition.dealing import deal_by_class, shuffled
from fedjax_bal.data.readers.npz import read_arrays
from fedjax_bal.files import parse_json, read_bytes
from fedjax_bal.validate import check_generator, checked_labels, one_of, whole_number

_LARGEST_TEXT = 2**24  # bytes; an npz file holds more in less
_AS_JSON = (  # rewrites what Python and NumPy print as JSON
    (r"(?:np\.|numpy\.)?u?int\d*\((\d+)\)", r"\1"),  # a number of NumPy's
    (r"(?:np\.|numpy\.)?array\(([\[\]\d\s,]*)(?:,\s*dtype=[\w.']+)?\)", r"\1"),
    (r"\bset\(\)", "[]"),
    (r"\{(\s*\d[\d,\s]*)\}", r"[\1]"),  # a set
    (r"([{,]\s*)(\d+)\s*:", r'\1"\2":'),  # a key that is a number
    (r"([\d\]])\s+(?=[\d\[])", r"\1,"),  # items of an array, without commas
    ("'", '"'),
)
_FORMS = "a list for each client as JSON, a line for each client, or an npz file of an array for each client"


def file(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: int,
    file: str | os.PathLike,
    holds: Literal["rows", "counts"] = "rows",
    row_numbers: np.ndarray | None = None,
    dataset_size: int | None = None,
) -> list[np.ndarray]:
    """Reads a partition from a file, a published one for instance.

    The file is JSON, or what Python or NumPy prints: a list (or set) for each client, or a mapping of the clients'
    numbers, from 0, to lists. Or it is text, with a line for each client, numbers separated by blanks or commas; empty
    lines at the end are clients without rows only if there are fewer other lines than clients. Or an
    npz file, `numpy.savez(FILE, *rows_per_client)`, or with a single array that has a line for each client. Nothing in
    it is unpickled or run.

    Args:
        rng: source of randomness, for counts.
        labels: `Int[R]`, of the rows that are partitioned.
        num_clients: N, as many clients as the file has.
        file: the file.
        holds: what the file's lists are: `"rows"`, a client's row numbers in the data set, from 0; or `"counts"`, how
            many rows of class 0, 1, ... it has (in JSON also a mapping of classes to numbers), which are then drawn.
        row_numbers: number in the data set of each partitioned row, `Int[R]`; None for 0..R-1. Rows that are held out,
            or thinned out by a long tail, are missing there, and clients that list them go without.
        dataset_size: rows of the data set; None for the largest row number plus 1.

    Returns:
        N arrays of row numbers from 0 to R - 1; clients may share rows that the file gives to several.

    Raises:
        DataError: a file that can't be read, is too large or damaged, has another number of clients, row numbers that
            the data set lacks, or more rows of a class than there are.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     published = Path(folder, "clients.txt")
        ...     _ = published.write_text("{0: [3, 1], 1: [0]}")
        ...     file(np.random.default_rng(0), np.array([0, 1, 0, 1]), 2, published)
        [array([3, 1]), array([0])]
    """
    check_generator(rng)
    labels, num_clients = checked_labels(labels), whole_number("num_clients", num_clients)
    one_of("holds", holds, ("rows", "counts"))
    path = Path(file)
    lists = _read_npz(path) if path.suffix == ".npz" else _read_text(path, num_clients)
    if not len(lists):
        raise DataError(f"{path}: is no partition (empty); expected {_FORMS}.")
    while len(lists) > num_clients and path.suffix != ".npz" and lists[-1] == []:
        lists = lists[:-1]
    if len(lists) != num_clients:
        raise DataError(f"{path}: has {len(lists)} clients, but {num_clients} are asked for; ask for {len(lists)}.")
    if holds == "counts":
        return _draw_counts(rng, path, lists, labels)
    numbers = np.arange(len(labels)) if row_numbers is None else np.asarray(row_numbers)
    places = np.full(int(numbers.max()) + 1 if dataset_size is None else dataset_size, -1)
    places[numbers] = np.arange(len(numbers))
    found = [places[_checked_integers(path, client, own, len(places))] for client, own in enumerate(lists)]
    return [own[own >= 0] for own in found]


def _read_text(path: Path, num_clients: int) -> Sequence[Any]:
    """Returns the list, or mapping, of each client."""
    try:
        text = read_bytes(path, _LARGEST_TEXT).decode("utf-8-sig")
        if re.match(r"\s*(?:[\[{]|(?:np\.|numpy\.)?array\()", text):
            for pattern, replacement in _AS_JSON:
                text = re.sub(pattern, replacement, text)
            return _in_order(parse_json(text))
        lines = text.splitlines()
        while len(lines) > num_clients and not lines[-1].strip():  # or else an empty line is a client without rows
            lines.pop()
        return [list(map(int, line.replace(",", " ").split())) for line in lines]
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}); check the path and its rights.") from error
    except ValueError as error:
        raise DataError(f"{path}: is no partition ({str(error)[:100]}); expected {_FORMS}.") from error


def _in_order(content: Any) -> Sequence[Any]:
    """Returns a list as it is, or the values of a mapping whose keys are 0..N-1 in the order of the keys."""
    if isinstance(content, Mapping):
        if not all(map(_is_number, content)):
            raise ValueError("keys that are no numbers of clients")
        by_number = {int(key): own for key, own in content.items()}
        if sorted(by_number) != list(range(len(content))):
            raise ValueError("clients aren't numbered from 0 without a gap")
        return [by_number[number] for number in range(len(by_number))]
    if not isinstance(content, list):
        raise ValueError("neither a list nor a mapping")
    return content


def _is_number(key: str) -> bool:
    return key.isdecimal() and len(key) < 19


def _read_npz(path: Path) -> Sequence[np.ndarray]:
    """Returns the array of each client."""
    arrays = read_arrays(path, None)
    if len(arrays) == 1 and (only := next(iter(arrays.values()))).ndim == 2:
        return list(only)
    numbered = [(str(int(end[0])), own) for name, own in arrays.items() if (end := re.search(r"\d{1,9}$", name))]
    try:
        if len(dict(numbered)) < len(numbered):
            raise ValueError("two arrays have the same number at the end of their names")
        return _in_order(dict(numbered) or None)
    except ValueError as error:
        raise DataError(f"{path}: is no partition ({error}); expected {_FORMS}: numpy.savez(FILE, *rows).") from error


def _checked_integers(path: Path, client: int, values: Any, size: int, kind: str = "row") -> np.ndarray:
    """Returns a list as an array, after checking that it holds integers from 0 to `size` - 1."""
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.empty((0, 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(f"{path}: client {client} has no list of integers; expected {_FORMS}.")
    wrong = (array < 0) | (array >= size)
    if wrong.any():
        raise DataError(
            f"{path}: client {client} lists {kind} {array[np.argmax(wrong)]}; expected numbers from 0 to {size - 1}."
        )
    return array.astype(np.int64)


def _draw_counts(rng: np.random.Generator, path: Path, lists: Sequence[Any], labels: np.ndarray) -> list[np.ndarray]:
    """Draws the rows of each class that each client asks for."""
    classes = max(int(labels.max()), 0) + 1
    counts = np.zeros((len(lists), classes), np.int64)
    for client, own in enumerate(lists):
        named = isinstance(own, Mapping)
        numbers = _checked_integers(path, client, list(own.values()) if named else own, len(labels) + 1, "count")
        keys = [int(key) if _is_number(key) else -1 for key in own] if named else range(len(numbers))
        held = _checked_integers(path, client, np.array(keys, np.int64)[numbers > 0], classes, "class")
        counts[client, held] = numbers[numbers > 0]
    by_class = [np.flatnonzero(labels == label) for label in range(classes)]
    for label, (asked, own) in enumerate(zip(counts.sum(axis=0).tolist(), by_class, strict=True)):
        if asked > len(own):
            raise DataError(
                f"{path}: clients have {asked} rows of class {label}, but there are {len(own)} to draw from; take the "
                "data set that it is for, and hold no rows out."
            )
    return deal_by_class(shuffled(rng, by_class), counts.T)
