"""From a table to a data set: columns by name, of a data frame or of a CSV file, become inputs, labels and clients."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.data.arrays import MISSING, as_dataset, as_read, as_shown, check_distinct, without_objects
from fedjax_bal.data.inputs import are_whole, rounding_matters
from fedjax_bal.data.memory import check_memory
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
    categories: str | Sequence[str] | None = None,
) -> Dataset:
    """Makes a data set from a table, see `fedjax_bal.data.from_pandas`."""
    columns = input_names(table.source, table.columns, label, clients, inputs)
    halves = {"train": table}
    if isinstance(test, InputTable):
        halves["test"] = test
        for name in (label, *columns):
            _check_column(test.source, name, test.columns)
    keys = {label: "a class", **({} if clients is None else {clients: "a client"})}
    names = with_categories(table, columns, categories, keys)
    arrays = {}
    for half, part in halves.items():
        users = {clients: "a client"} if clients is not None and clients in part.columns else {}
        arrays[f"{half}_images"] = input_matrix(part, names, {label: "a class", **users})
    if inputs is None:
        refuse_record_numbers(table, names)

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
                f"{source}: column {columns.index(unnamed[0]) + 1} has no name, as pandas writes its index, or as a "
                "separator at the end of each line makes one: write the file with index=False or without these "
                "separators, name the column, or list the inputs, inputs=[...]."
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


def check_categories(
    source: str, columns: Collection[str], inputs: Collection[str], categories: str | Sequence[str] | None
) -> list[str]:
    """Returns the columns of categories; raises `DataError` for those that aren't inputs, or whose names clash."""
    chosen = [categories] if isinstance(categories, str) else [str(name) for name in categories or ()]
    for name in chosen:
        _check_column(source, name, columns)
        if name not in inputs:
            raise DataError(f"{source}: categories include {name!r}, which is no input; add it, or leave it out.")
        clash = next((column for column in columns if column.startswith(f"{name}=")), name if "=" in name else "")
        if clash:
            raise DataError(
                f"{source}: column {clash!r} has a name as those of categories, such as '{name}=...'; rename it."
            )
    return chosen


def with_categories(
    table: InputTable, columns: Sequence[str], categories: str | Sequence[str] | None, keys: Mapping[str, str]
) -> list[str]:
    """Returns the names of inputs: those of columns of numbers, and for each category one such as `sex=F`.

    Args:
        table: the table.
        columns: the columns that are inputs.
        categories: those of them whose values, texts or integers, are categories; they are sorted, as classes are.
        keys: see `refuse_missing`.

    Raises:
        DataError: a column of categories isn't an input, has missing values, or its name can't be told from an input's;
            or others hold texts.
    """
    chosen = check_categories(table.source, table.columns, columns, categories)
    numbers = [name for name in columns if name not in chosen]
    arrays = refuse_missing(table, numbers, {**keys, **dict.fromkeys(chosen, "a category")})
    held = {name: arrays[name].tolist() for name in numbers if arrays[name].dtype.kind in "UO"}
    texts = text_columns(held)
    wrong = next((name for name in held if name in (*texts.repeating, *texts.others)), None)
    if wrong is not None:
        row = next(row for row, value in enumerate(held[wrong]) if not _is_numeric(value))
        raise not_a_number(table.source, wrong, held[wrong][row], table.place(row), texts)

    names = []
    for name in columns:
        if name not in chosen:
            names.append(name)
            continue
        with reading(table.source, "write the column in one way."):
            (values,) = as_read(f"column {name!r}", [_keys(table, name, "a category")])
            found = np.unique(values).astype(str).tolist()
            check_distinct(f"column {name!r}", found)
        needed = 4 * len(values) * len(found)
        check_memory(f"{table.source}: column {name!r} has {len(found):,} categories, which need", needed)
        names += [f"{name}={value}" for value in found]
    return names


class TextColumns(NamedTuple):
    """Columns of texts: categories, whose texts repeat, and others (dates, record numbers, remarks)."""

    repeating: list[str]
    others: list[str]


def text_columns(columns: Mapping[str, Sequence[Any]]) -> TextColumns:
    """Returns the columns in which more than half of the values are texts that aren't numbers in any way of writing.

    Example:
        >>> text_columns({"sex": list("FMFM"), "age": ["31", "x", "27", "40"], "name": ["Ann", "Bo", "Cy", "Di"]})
        TextColumns(repeating=['sex'], others=['name'])
    """
    found = TextColumns([], [])
    for name, values in columns.items():
        texts = [
            value
            for value in values
            if isinstance(value, str) and not (_is_missing(value) or _is_numeric(value) or _is_truth(value))
        ]
        if len(texts) > len(values) / 2 and not _options_to_read(texts[0]):
            repeats = len(set(texts)) <= len(texts) / 2
            (found.repeating if repeats else found.others).append(name)
    return found


def input_matrix(table: InputTable, names: Sequence[str], keys: Mapping[str, str] | None = None) -> np.ndarray:
    """Returns inputs as vectors, `Float32[D, F]`, since integers would be token ids.

    A name is that of a column of numbers; or of a category: `sex=F` is 1 where the column `sex` holds `F`, otherwise 0.

    Raises `DataError` for a column with texts, missing values, or numbers that aren't finite, and for a category that
    has no name. Missing values in the columns of `keys`, see `refuse_missing`, are reported with those of the inputs.
    """
    categories: dict[str, list[str]] = {}
    for name in names:
        if name not in table.columns:
            column, _, value = name.partition("=")
            categories.setdefault(column, []).append(value)
    numbers = [name for name in names if name in table.columns]
    arrays = refuse_missing(table, numbers, {**(keys or {}), **dict.fromkeys(categories, "a category")})
    columns = {}
    for name in numbers:
        array = arrays[name]
        if _is_categorical(table.columns[name]):
            raise categorical(table.source, name)
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
        columns[name] = numbers
    for column, values in categories.items():
        columns |= _indicators(table, column, values)
    return np.stack([columns[name] for name in names], axis=1)


def _indicators(table: InputTable, column: str, categories: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns an input of 0 and 1 for each category; raises `DataError` for a value that isn't one of them."""
    with reading(table.source, "write the column as in the training rows."):
        known, values = as_read(f"column {column!r}", [np.array(categories), _keys(table, column, "a category")])
    unknown = ~np.isin(values, known)
    if unknown.any():
        row = int(np.argmax(unknown))
        near = suggestion(str(values[row]), categories)
        raise DataError(
            f"{table.source}: column {column!r} holds {values[row].item()!r} in {table.place(row)}; the categories in "
            f"training are {shortened(', '.join(categories), 200)}: {f'{near} ' if near else ''}Correct it, or leave "
            "such rows out."
        )
    inputs = [(values == value).astype(np.float32) for value in known]
    return {f"{column}={name}": array for name, array in zip(categories, inputs, strict=True)}


def refuse_record_numbers(table: InputTable, names: Sequence[str]) -> None:
    """Raises `DataError` for a column of integers that a model would memorise, and for one that would lose digits."""
    for name, column in _numbers(table, names):
        if _is_whole(column) and len(column) >= _FEWEST and len(np.unique(column)) == len(column):
            raise DataError(
                f"{table.source}: column {name!r} has another integer in each of {len(column):,} rows, as numbers of "
                "records have: leave it out, or list the inputs, inputs=[...], with this column if it is one."
            )
    refuse_rounding(table, names, "list the inputs, inputs=[...], with this column")


def refuse_rounding(table: InputTable, names: Sequence[str], harmless: str) -> None:
    """Raises `DataError` for a column that would lose digits; `harmless` says how to keep it all the same."""
    for name, column in _numbers(table, names):
        rounded = column.astype(np.float32)
        if _is_whole(column):
            with np.errstate(invalid="ignore"):  # the largest integer is rounded to one that its type doesn't hold
                changed = rounded.astype(column.dtype) != column
        else:
            changed = rounding_matters(column)
        if changed.any():
            row = int(np.argmax(changed))
            shown = int if _is_whole(column) else float
            raise DataError(
                f"{table.source}: column {name!r} holds {shown(column[row])}, which becomes {shown(rounded[row])} as "
                "an input of 32 bits: subtract the smallest number, make a year, a month and a day of a date, or leave "
                f"the column out; if rounding is harmless, {harmless}."
            )


def _numbers(table: InputTable, names: Sequence[str]) -> Iterable[tuple[str, np.ndarray]]:
    for name in names:
        if name in table.columns and (column := _column(table, name)).dtype.kind in "iuf":
            yield name, column


def _is_whole(column: np.ndarray) -> bool:
    return column.dtype.kind != "f" or not (column != np.rint(column)).any()


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


def not_a_number(source: str, name: str, value: Any, place: str, texts: TextColumns | None = None) -> DataError:
    """Returns the error for an input that isn't a number; `texts` are the columns of texts, all of which it names."""
    options = _options_to_read(value)
    if _is_truth(value):
        remedy = "convert the column to booleans, or to 0 and 1."
    elif options:
        remedy = (
            f"write plain numbers, as 1234.5, or read the file with pandas.read_csv, {options}, and use from_pandas."
        )
    else:
        remedy = "encode the column as numbers, name it as clients if it holds users, or list the inputs, inputs=[...]."
        if texts is not None and texts.others:
            remedy = f"leave out {shortened(', '.join(texts.others))}, whose texts don't repeat; or {remedy}"
        if texts is not None and texts.repeating:
            remedy = f"categories: [{', '.join(texts.repeating)}] makes inputs of 0 and 1, one for each text; {remedy}"
    return DataError(
        f"{source}: column {name!r} holds {shortened(repr(value), 40)} in {place}, and inputs are numbers: {remedy}"
    )


def categorical(source: str, name: str) -> DataError:
    """Returns the error for a column whose type says that its numbers stand for something."""
    return DataError(
        f"{source}: column {name!r} is categorical: categories: [{name}] makes an input of 0 and 1 for each of its "
        "values (from_pandas takes categories, from_arrays doesn't); if they are quantities, convert the column to "
        "numbers."
    )


def not_a_name(table: InputTable, name: str, value: Any, row: int, what: str) -> DataError:
    """Returns the error for a number with decimals in a column of names of `what`, "a class" for instance."""
    return DataError(
        f"{table.source}: column {name!r} holds {value} in {table.place(row)}; expected texts or "
        f"integers, each the name of {what}."
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


def _is_truth(value: Any) -> bool:
    """Returns whether a value is the text "true" or "false"; in CSV files these are read as 1 and 0."""
    return isinstance(value, str) and value.strip().lower() in ("true", "false")


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
        whole = are_whole(array)
        if not whole.all():
            row = int(np.argmin(whole))
            raise not_a_name(table, name, array[row], row, what)
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


def _is_categorical(column: Any) -> bool:
    """Returns whether a library's type of a column says that its values are categories, although they are numbers."""
    kind = getattr(column, "dtype", None) or getattr(column, "type", None)
    return hasattr(kind, "categories") or str(kind).startswith("dictionary")


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
