"""From a table to a data set: columns by name, of a data frame or of a CSV file, become inputs, labels and clients."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.data.arrays import as_dataset, without_objects
from fedjax_bal.data.reading import DataError, shortened
from fedjax_bal.types import Dataset
from fedjax_bal.validate import check_unmasked


class Table(NamedTuple):
    """Columns of one length.

    Attributes:
        source: where they come from; messages begin with it.
        columns: `[D]` each, by name: whatever NumPy converts to an array.
        place: describes a row in messages, given its number.
    """

    source: str
    columns: Mapping[str, Any]
    place: Callable[[int], str] = "row {}".format


def table_dataset(
    table: Table,
    test: float | Table,
    label: str,
    clients: str | None = None,
    inputs: str | Sequence[str] | None = None,
    test_seed: int = 0,
) -> Dataset:
    """Makes a data set from a table, see `fedjax_bal.data.from_pandas`."""
    names = input_names(table.source, table.columns, label, clients, inputs)
    halves = {"train": table}
    if isinstance(test, Table):
        halves["test"] = test
        for name in (label, *names):
            _check_column(test.source, name, test.columns)
    arrays = {f"{half}_images": input_matrix(part, names) for half, part in halves.items()}

    labels = [_keys(part, label, "a class") for part in halves.values()]
    if any(half.dtype.kind == "U" for half in labels):
        labels = [half.astype(str) for half in labels]  # "2" in one file may be 2 in another, where all are numbers
    classes, codes = np.unique(np.concatenate(labels), return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"{table.source}: column {label!r} is {classes[0].item()!r} in every row; expected classes.")
    arrays["class_names"] = classes.astype(str)
    for half, numbers in zip(halves, np.split(codes, [len(labels[0])]), strict=False):
        arrays[f"{half}_labels"] = numbers
    if clients is not None:
        arrays["train_clients"] = _keys(table, clients, "a client")
    share = None if isinstance(test, Table) else test
    return as_dataset(table.source, arrays, share, test_seed, "check the columns for label, clients and inputs.")


def input_names(
    source: str,
    columns: Iterable[str],
    label: str,
    clients: str | None = None,
    inputs: str | Sequence[str] | None = None,
) -> list[str]:
    """Returns the columns that are inputs: the given ones, or all but those of labels and clients.

    Raises `DataError` for a column that doesn't exist, for an input that is the label, and for one without a name.
    """
    columns = list(columns)
    for name in (label, *([] if clients is None else [clients])):
        _check_column(source, name, columns)
    if label == clients:
        raise DataError(f"{source}: column {label!r} is named for labels and for clients; give two columns.")
    if inputs is None:
        names = [name for name in columns if name not in (label, clients)]
        # A table that pandas wrote with its index: the number of a row would be learnt.
        unnamed = [name for name in names if not name or name.startswith("Unnamed: ")]
        if unnamed:
            raise DataError(
                f"{source}: column {columns.index(unnamed[0]) + 1} has no name, as pandas writes its index: write the "
                "file with index=False, name the column, or list the inputs, inputs=[...]."
            )
    else:
        names = [inputs] if isinstance(inputs, str) else [str(name) for name in inputs]
        for name in names:
            _check_column(source, name, columns)
        if label in names:
            raise DataError(f"{source}: inputs include {label!r}, the label; leave it out.")
        if len(set(names)) < len(names):
            raise DataError(f"{source}: inputs name a column twice: {', '.join(names)}; name each once.")
    if not names:
        raise DataError(f"{source}: has no columns for inputs, only {shortened(', '.join(columns))}; add some.")
    return names


def input_matrix(table: Table, names: Sequence[str]) -> np.ndarray:
    """Returns columns of numbers as vectors, `Float32[D, F]`, since integers would be token ids.

    Raises `DataError` for a column with texts, missing values, or numbers that aren't finite.
    """
    columns = []
    for name in names:
        array = _column(table, name)
        if array.dtype.kind not in "biuf":
            raise not_a_number(table.source, name, array[0].item(), table.place(0))
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float32)
        refuse_missing(table, name, np.isnan(numbers))
        finite = np.isfinite(numbers)
        if not finite.all():
            row = int(np.argmin(finite))
            raise DataError(
                f"{table.source}: column {name!r} holds {array[row]} in {table.place(row)}; expected numbers that are "
                "finite in 32 bits: leave such rows out."
            )
        columns.append(numbers)
    return np.stack(columns, axis=1)


def not_a_number(source: str, name: str, value: Any, place: str) -> DataError:
    """Returns the error for an input that isn't a number."""
    return DataError(
        f"{source}: column {name!r} holds {shortened(repr(value), 40)} in {place}, and inputs are numbers: encode the "
        "column as numbers, name it as clients if it holds users, or list the inputs, inputs=[...]."
    )


def refuse_missing(table: Table, name: str, missing: np.ndarray) -> None:
    """Raises `DataError` if values of a column are missing, `Bool[D]`."""
    if missing.any():
        count = int(missing.sum())
        raise DataError(
            f"{table.source}: column {name!r} has {count:,} missing value{'s' * (count > 1)} in {len(missing):,} rows, "
            f"the first in {table.place(int(np.argmax(missing)))}: fill them, or leave these rows out."
        )


def _keys(table: Table, name: str, what: str) -> np.ndarray:
    """Returns a column of classes or clients: integers, or texts."""
    array = _column(table, name)
    if array.dtype.kind == "f":
        refuse_missing(table, name, np.isnan(array))
        whole = (array == np.rint(array)) & (np.abs(array) < 2**53)
        if not whole.all():
            row = int(np.argmin(whole))
            raise DataError(
                f"{table.source}: column {name!r} holds {array[row]} in {table.place(row)}; expected texts or "
                f"integers, each the name of {what}."
            )
        return array.astype(np.int64)  # integers that had gaps once
    if array.dtype.kind == "b":
        return array.astype(str)
    if array.dtype.kind not in "iuU":
        kinds = ", ".join(sorted({type(value).__name__ for value in array.tolist()}))
        raise DataError(
            f"{table.source}: column {name!r} holds values of type {kinds}; expected texts or integers, each the name "
            f"of {what}."
        )
    if array.dtype.kind == "U":
        refuse_missing(table, name, array == "")
    return array


def _column(table: Table, name: str) -> np.ndarray:
    """Returns a column as an array `[D]`, of objects only if they are of several types."""
    values = table.columns[name]
    check_unmasked(f"{table.source}: column {name!r}", values)
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(
            f"{table.source}: column {name!r} holds arrays of shape {array.shape[1:]}; expected a number or a text in "
            "each row."
        )
    if not len(array):
        raise DataError(f"{table.source}: column {name!r} is empty; expected at least one row.")
    if array.dtype == object:
        refuse_missing(table, name, np.fromiter(map(_is_missing, array), bool, len(array)))
    return without_objects(array)


def _is_missing(value: Any) -> bool:
    """Returns whether a value is None, NaN, or what pandas has in their place."""
    return value is None or (not isinstance(value, str) and str(value) in ("nan", "NaT", "<NA>"))


def _check_column(source: str, name: str, columns: Iterable[str]) -> None:
    """Raises `DataError`, which suggests the nearest name, for a column that doesn't exist."""
    columns = list(columns)
    if name not in columns:
        near = difflib.get_close_matches(str(name), columns, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise DataError(f"{source}: has no column {name!r}, but {shortened(', '.join(columns), 200)}{hint}")
