"""From a table to a data set: columns by name, of a data frame or of a CSV file, become inputs, labels and clients."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.data.arrays import MISSING, as_dataset, as_read, as_shown, without_objects
from fedjax_bal.data.reading import DataError, reading, shortened
from fedjax_bal.types import Dataset
from fedjax_bal.validate import check_unmasked, suggestion

_FEWEST = 100  # rows in which different integers are hardly chance
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_THOUSANDS = re.compile(
    r"[+-]?[1-9]\d{0,2}(?P<sign>[,._' \u00a0\u202f\u2019])\d{3}(?:(?P=sign)\d{3})*(?P<rest>[.,]\d+)?"
)


class InputTable(NamedTuple):
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
    table: InputTable,
    test: float | InputTable,
    label: str,
    clients: str | None = None,
    inputs: str | Sequence[str] | None = None,
    test_seed: int = 0,
    test_by: str = "classes",
) -> Dataset:
    """Makes a data set from a table, see `fedjax_bal.data.from_pandas`."""
    names = input_names(table.source, table.columns, label, clients, inputs)
    halves = {"train": table}
    if isinstance(test, InputTable):
        halves["test"] = test
        for name in (label, *names):
            _check_column(test.source, name, test.columns)
    arrays = {}
    for half, part in halves.items():
        users = {clients: "a client"} if clients is not None and clients in part.columns else {}
        arrays[f"{half}_images"] = input_matrix(part, names, {label: "a class", **users})
    if inputs is None:
        for name in names:
            _refuse_record_numbers(table.source, name, _column(table, name))

    with reading(table.source, "write the column in one way in both tables."):
        labels = as_read(f"column {label!r}", [_keys(part, label, "a class") for part in halves.values()])
    classes, codes = np.unique(labels[0], return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"{table.source}: column {label!r} is {classes[0].item()!r} in every row; expected classes.")
    arrays |= {"class_names": classes.astype(str), "train_labels": codes}
    if isinstance(test, InputTable):
        _refuse_untrained(test, label, labels[1], classes)
        arrays["test_labels"] = np.searchsorted(classes, labels[1])
    if clients is not None:
        known = {half: part for half, part in halves.items() if clients in part.columns}
        arrays |= {f"{half}_clients": _keys(part, clients, "a client") for half, part in known.items()}
    share = None if isinstance(test, InputTable) else test
    remedy = "check the columns for label, clients and inputs."
    dataset = as_dataset(table.source, arrays, share, test_seed, remedy, test_by)
    return dataset._replace(input_names=tuple(names))


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


def input_matrix(table: InputTable, names: Sequence[str], keys: Mapping[str, str] | None = None) -> np.ndarray:
    """Returns columns of numbers as vectors, `Float32[D, F]`, since integers would be token ids.

    Raises `DataError` for a column with texts, missing values, or numbers that aren't finite. Missing values in the
    columns of `keys`, see `refuse_missing`, are reported with those of the inputs.
    """
    arrays = refuse_missing(table, names, keys or {})
    columns = []
    for name in names:
        array = arrays[name]
        if array.dtype.kind not in "biuf":
            raise _no_numbers(table, name, array)
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float32, copy=False)
        finite = np.isfinite(numbers)
        if not finite.all():
            row = int(np.argmin(finite))
            raise DataError(
                f"{table.source}: column {name!r} holds {array[row]} in {table.place(row)}; expected numbers that are "
                "finite in 32 bits: leave such rows out."
            )
        columns.append(numbers)
    return np.stack(columns, axis=1)


def _refuse_record_numbers(source: str, name: str, column: np.ndarray) -> None:
    """Raises `DataError` for a column of integers, as they were read, that would be learnt by heart, or lose digits."""
    if column.dtype.kind not in "iuf" or (column.dtype.kind == "f" and (column != np.rint(column)).any()):
        return
    if len(column) >= _FEWEST and len(np.unique(column)) == len(column):
        raise DataError(
            f"{source}: column {name!r} has another integer in each of {len(column):,} rows, as numbers of records "
            "have: leave it out, or list the inputs, inputs=[...], with this column if it is one."
        )
    rounded = column.astype(np.float32)
    with np.errstate(invalid="ignore"):  # the largest integer is rounded to one that its type doesn't hold
        changed = rounded.astype(column.dtype) != column
    if changed.any():
        row = int(np.argmax(changed))
        raise DataError(
            f"{source}: column {name!r} holds {int(column[row])}, which becomes {int(rounded[row])} as an input of 32 "
            "bits: subtract the smallest number, make a year, a month and a day of a date, or leave the column out; if "
            "rounding is harmless, list the inputs, inputs=[...], with this column."
        )


def _refuse_untrained(test: InputTable, label: str, labels: np.ndarray, classes: np.ndarray) -> None:
    """Raises `DataError` for a class that only test rows have: a typo, often, and never a guess."""
    unknown = ~np.isin(labels, classes)
    if not unknown.any():
        return
    row = int(np.argmax(unknown))
    name = labels[row].item()
    near = suggestion(str(name), classes.astype(str).tolist())
    rows = np.count_nonzero(labels == labels[row])
    others = len(np.unique(labels[unknown])) - 1
    raise DataError(
        f"{test.source}: column {label!r} holds {name!r} in {rows:,} row{'s' if rows > 1 else ''}, the first in "
        f"{test.place(row)}, and no training row has this class{f', nor {others:,} more' if others else ''}: "
        f"{f'{near} ' if near else ''}Correct the name, put such rows into the training table, or leave them out."
    )


def not_a_number(source: str, name: str, value: Any, place: str) -> DataError:
    """Returns the error for an input that isn't a number."""
    options = _options_to_read(value)
    if options:
        remedy = (
            f"write plain numbers, as 1234.5, or read the file with pandas.read_csv, {options}, and use from_pandas."
        )
    else:
        remedy = "encode the column as numbers, name it as clients if it holds users, or list the inputs, inputs=[...]."
    return DataError(
        f"{source}: column {name!r} holds {shortened(repr(value), 40)} in {place}, and inputs are numbers: {remedy}"
    )


def _options_to_read(value: Any) -> str:
    """Describes the options with which pandas reads a number with separators; empty for anything else."""
    text = value.strip() if isinstance(value, str) else ""
    decimal = "decimal=','"
    thousands = _THOUSANDS.fullmatch(text)
    if thousands is None:
        return decimal if _DECIMAL_COMMA.fullmatch(text) else ""
    sign = thousands["sign"]
    option = f"thousands={sign!r}"
    if sign == "," and _DECIMAL_COMMA.fullmatch(text):
        return f"{option} if the comma separates thousands and {decimal} if decimals"
    return f"{option}, {decimal}" if sign == "." or (thousands["rest"] or "").startswith(",") else option


def _no_numbers(table: InputTable, name: str, array: np.ndarray) -> DataError:
    """Returns the error for a column of inputs with texts, dates, or values of several types."""
    if array.dtype.kind not in "UO":
        return not_a_number(table.source, name, str(array[0]), table.place(0))
    values = array.tolist()
    wrong = np.array([not _is_numeric(value) for value in values])
    row = int(np.argmax(wrong))
    held = f"{table.source}: column {name!r} holds {shortened(repr(values[row]), 40)} in {table.place(row)}"
    if not wrong.any():
        kind = type(values[row]).__name__
        return DataError(f"{held}, a number of type {kind}: convert the column, pandas.to_numeric(column).")
    if wrong.mean() > 0.5 or _options_to_read(values[row]):
        return not_a_number(table.source, name, values[row], table.place(row))
    return DataError(
        f"{held}, and {np.count_nonzero(~wrong):,} of {len(wrong):,} values are numbers: "
        "convert the column, pandas.to_numeric(column, errors='coerce'), and fill the gaps, or leave these rows out."
    )


def _is_numeric(value: Any) -> bool:
    """Returns whether a value, or what a text says, is a number."""
    try:
        return not np.isnan(float(value))
    except (TypeError, ValueError):
        return False


def refuse_missing(table: InputTable, names: Sequence[str], keys: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Returns columns as arrays, by name; raises `DataError`, which lists all columns with missing values, if any has.

    Args:
        table: the table.
        names: columns of inputs.
        keys: what the values of other columns name, a class or a client, by column.
    """
    arrays = {name: _column(table, name) for name in (*names, *keys)}
    for name, array in arrays.items():
        (first, other), *_ = arrays.items()
        if len(array) != len(other):
            raise DataError(
                f"{table.source}: column {name!r} has {len(array):,} rows and column {first!r} {len(other):,}; "
                "expected equal numbers of rows."
            )
    gaps = {}
    for name, array in arrays.items():
        # An input that is text has a message of its own, with the values that aren't numbers.
        if array.dtype.kind == "f":
            missing = np.isnan(array)
        elif array.dtype == object or (array.dtype.kind == "U" and name in keys):
            missing = np.fromiter(map(_is_missing, array.tolist()), bool, len(array))
        else:
            continue
        if missing.any():
            gaps[name] = missing
    if gaps:
        counts = [f"column {name!r} has {np.count_nonzero(missing):,}" for name, missing in gaps.items()]
        (name, missing), *_ = gaps.items()
        row = int(np.argmax(missing))
        mark = _mark(arrays[name][row])
        counts[0] += f" missing value{'s' if np.count_nonzero(missing) > 1 else ''}" + (f" ({mark!r})" if mark else "")
        others = shortened("".join(f", {count}" for count in counts[1:]), 300)
        hints = [
            f"; if {mark!r} is {keys[key]}, write it in another way"
            for key in gaps
            if key in keys and (mark := _mark(arrays[key][np.argmax(gaps[key])]))
        ]
        raise DataError(
            f"{table.source}: {counts[0]} in {len(missing):,} rows, the first in {table.place(row)}{others}: fill "
            f"them, or leave these rows out{''.join(hints)}."
        )
    return arrays


def _mark(value: Any) -> str:
    """Returns the text that stands for a missing value; empty where a cell is empty."""
    return str(value).strip() if isinstance(value, str) else ""


def _keys(table: InputTable, name: str, what: str) -> np.ndarray:
    """Returns a column of classes or clients, which has no missing values: integers, or texts without outer spaces."""
    array = _column(table, name)
    if array.dtype.kind == "f":
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
    return np.char.strip(array) if array.dtype.kind == "U" else array


def _column(table: InputTable, name: str) -> np.ndarray:
    """Returns a column as an array `[D]`, of objects only if they are of several types."""
    values = table.columns[name]
    where = f"{table.source}: column {name!r}"
    check_unmasked(where, values)
    try:
        array = np.asarray(values)
        reason = "" if array.ndim else "a single object"
    except Exception as error:  # libraries raise errors of their own kinds
        reason = f"{type(error).__name__}: {error}"
    if reason:
        raise DataError(
            f"{where} is of type {type(values).__name__} and doesn't become an array ({shortened(reason, 200)}); give "
            "a table in memory, frame.to_pandas() for instance, or a mapping of names to arrays."
        )
    if array.ndim > 1:
        raise DataError(f"{where} holds arrays of shape {array.shape[1:]}; expected a number or a text in each row.")
    if not len(array):
        raise DataError(f"{table.source}: column {name!r} is empty; expected at least one row.")
    return without_objects(array)


def _is_missing(value: Any) -> bool:
    """Returns whether a value is None, NaN, what pandas has in their place, or a text that stands for them."""
    return str(value).strip().lower() in MISSING


def _check_column(source: str, name: str, columns: Iterable[str]) -> None:
    """Raises `DataError`, which suggests the nearest name, for a column that doesn't exist."""
    columns = list(columns)
    if name not in columns:
        same = [column for column in columns if as_shown(column) == as_shown(name)]
        near = f"{same[0]!a} only looks like {name!a}" if same else suggestion(name, columns)
        raise DataError(
            f"{source}: has no column {name!r}, but {shortened(', '.join(columns), 200)}{f'; {near}' if near else '.'}"
        )
