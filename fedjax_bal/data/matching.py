"""New rows for names that are known: columns of a table by their names, and labels by the names of the classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_bal.data.adapters import _table
from fedjax_bal.data.reading import DataError, shortened
from fedjax_bal.data.table import InputTable, _keys, input_matrix, refuse_missing
from fedjax_bal.validate import suggestion


def columns_by_name(source: str, frame: Any, names: Sequence[str]) -> np.ndarray:
    """Returns the named inputs of a table as vectors, whatever the order of its columns; other columns are ignored.

    Args:
        source: the argument's name; messages begin with it.
        frame: the table, see `from_pandas`, which reads its columns in the same way.
        names: F names of columns, or of categories: `sex=F` is 1 where the column `sex` holds `F`, and 0 elsewhere.

    Returns:
        `Float32[B, F]`, in the order of `names`.

    Raises:
        DataError: columns are missing, or have missing values, other values than numbers, or unknown categories.

    Example:
        >>> frame = {"kind": ["cat", "dog"], "height": [30, 60], "weight": [4.5, 20.0]}
        >>> columns_by_name("inputs", frame, ["weight", "height"]).tolist()
        [[4.5, 30.0], [20.0, 60.0]]
        >>> columns_by_name("inputs", frame, ["kind=cat", "kind=dog"]).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        >>> columns_by_name("inputs", frame, ["weights", "age"])  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        fedjax_bal.data.reading.DataError: inputs: has no column 'weights' (did you mean 'weight'?), 'age'; it has kind,
        height, weight, and needs weights, age.
    """
    table = _table(source, frame)
    needed = list(dict.fromkeys(name if name in table.columns else name.partition("=")[0] for name in names))
    lacking = [name for name in needed if name not in table.columns]
    if lacking:
        hints = [f"{name!r}{f' ({near})' if (near := suggestion(name, table.columns)) else ''}" for name in lacking]
        raise DataError(
            f"{source}: has no column {shortened(', '.join(hints), 300)}; it has "
            f"{shortened(', '.join(table.columns), 200)}, and needs {shortened(', '.join(needed), 200)}."
        )
    for name in needed:
        if isinstance(table.columns[name], str) or not hasattr(table.columns[name], "__len__"):
            raise DataError(
                f"{source}: column {name!r} holds {shortened(repr(table.columns[name]), 40)}, must be a list with a "
                "value for each row: for a single row, lists of one value."
            )
    return input_matrix(table, names)


def class_numbers(source: str, labels: Any, class_names: Sequence[str]) -> np.ndarray:
    """Returns the numbers of classes that are given by name, as in a table's column of labels.

    Args:
        source: the argument's name; messages begin with it.
        labels: `[B]`, texts; or integers or Booleans, whose texts are names of classes.
        class_names: C names.

    Returns:
        `Int32[B]`.

    Raises:
        DataError: a label is missing or none of the names.

    Example:
        >>> class_numbers("test labels", ["dog", "cat"], ("cat", "dog")), class_numbers("test labels", [7], ("3", "7"))
        (array([1, 0], dtype=int32), array([1], dtype=int32))
    """
    column = InputTable(source, {"labels": labels})
    refuse_missing(column, (), {"labels": "a class"})
    names, places = np.unique(_keys(column, "labels", "a class"), return_inverse=True)
    texts = names.astype(str).tolist()
    number_of = {name.strip(): number for number, name in enumerate(class_names)}
    numbers = [number_of.get(text) for text in texts]
    unknown = [text for text, number in zip(texts, numbers, strict=True) if number is None]
    if unknown:
        near = suggestion(unknown[0], class_names)
        raise DataError(
            f"{source}: received {unknown[0]!r}, must be classes that were trained: "
            f"{shortened(', '.join(class_names), 200)}{f'; {near}' if near else '.'}"
        )
    return np.array(numbers, np.int32)[places]
