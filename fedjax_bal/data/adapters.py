"""Data sets from arrays and tables in memory; the libraries that these belong to are not imported."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_bal.annotations import suggesting
from fedjax_bal.data.arrays import REMEDY, TEST_SHARE, TestBy, as_dataset, without_objects
from fedjax_bal.data.inputs import to_array
from fedjax_bal.data.reading import DataError, reading, shortened
from fedjax_bal.data.table import InputTable, input_matrix, refuse_rounding, table_dataset
from fedjax_bal.types import Dataset
from fedjax_bal.validate import check_unmasked, is_number


@suggesting
def from_arrays(
    train: tuple[Any, Any],
    test: tuple[Any, Any] | float = TEST_SHARE,
    class_names: Sequence[str] | None = None,
    clients: Any = None,
    *,
    test_clients: Any = None,
    test_seed: int = 0,
    test_by: TestBy = "classes",
) -> Dataset:
    """Makes a data set from arrays.

    Args:
        train: inputs and labels. Inputs are images `UInt8[D, H, W, K]` or `UInt8[D, H, W]`, or a list of images of
            Pillow; other numbers `Float[D, ...]`, such as feature vectors; token ids `Int[D, ...]`; or a data frame,
            whose columns become feature vectors. Labels are `Int[D]` from 0, or D texts whose classes are
            `class_names`, by default the categories of a categorical column, or the distinct texts of `train`, sorted:
            by value if all are integers.
        test: the same; or, without test data, the share of each class of `train` that becomes the test set. The columns
            of data frames and the classes of texts are compared by name: they may have another order.
        class_names: C names; None for the numbers of the classes.
        clients: number or name of the client of each input of `train`, for a natural partition. Clients are numbered in
            the order of their names, sorted in the same way.
        test_clients: the same for each input of `test`.
        test_seed: the seed of the split where `test` is a share.
        test_by: "clients" holds out a share of the clients instead, with all their rows.

    Returns:
        The data set. By default `federate` normalises it with the mean and standard deviation of each channel or
        feature of its training inputs; token ids are not changed.

    Raises:
        DataError: arrays that don't fit each other, or can't be inputs or labels; names that only one half has, or that
            only the test set has.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> features, labels = rng.normal(size=(6, 3)), np.array([0, 1, 0, 1, 0, 1])
        >>> dataset = from_arrays((features, labels), (features[:2], labels[:2]), ["no", "yes"])
        >>> dataset.train_images.dtype, dataset.class_names
        (dtype('float32'), ('no', 'yes'))
        >>> from_arrays((features, labels), 1 / 3, clients=list("aabbcc")).test_labels
        array([1, 0], dtype=int32)
    """
    pairs = {"train": train} if is_number(test) else {"train": train, "test": test}
    for pair in pairs.values():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(
                "from_arrays: needs pairs of inputs and labels, as in from_arrays((images, labels), (test_images, "
                "test_labels)), or from_arrays((images, labels), 0.2), which holds out a fifth for testing."
            )
    arrays, input_names = _inputs({half: inputs for half, (inputs, _) in pairs.items()})
    for half, (_, labels) in pairs.items():
        arrays[f"{half}_labels"] = _array(f"{half}_labels", labels)
        arrays[f"{half}_class_names"] = _categories(labels)
    others = {"class_names": class_names, "train_clients": clients, "test_clients": test_clients}
    arrays |= {name: _array(name, value) for name, value in others.items() if value is not None}
    share = test if isinstance(test, int | float) else None
    dataset = as_dataset("from_arrays", arrays, share, test_seed, REMEDY, test_by)
    return dataset._replace(input_names=input_names)


@suggesting
def from_pandas(
    frame: Any,
    label: str,
    clients: str | None = None,
    test: Any = TEST_SHARE,
    inputs: Sequence[str] | None = None,
    *,
    test_seed: int = 0,
    test_by: TestBy = "classes",
    categories: Sequence[str] | None = None,
) -> Dataset:
    """Makes a data set of feature vectors from a table: a data frame, or anything else with columns by name.

    Args:
        frame: the table: a frame of pandas or polars (a lazy one is collected), a table of Arrow, or a mapping of names
            to arrays. Its rows may be in any order; its index isn't used.
        label: the column of the classes, texts or integers; the distinct ones, sorted, are the classes.
        clients: the column of users, texts or integers, for a natural partition.
        test: the share of each class that becomes the test set; or a second table, whose columns are taken by name. A
            class that only it has is refused; its users are known if it has the column `clients`, too.
        inputs: the columns of inputs, numbers or `categories`; by default all but `label` and `clients`.
        test_seed: the seed of the split where `test` is a share.
        test_by: "clients" holds out a share of the users instead, with all their rows, so that no user (a patient, for
            instance) is in both parts.
        categories: the columns of inputs whose values are texts, or integers that stand for something. Each value
            becomes an input, such as `sex=F`, which is 1 in the rows that have this value and 0 in the others; the
            inputs of a column are sorted. A value that only the second table has is refused.

    Returns:
        The data set: vectors `Float32[D, F]`, in the order of the columns, which `federate` normalises column by column
        with the mean and standard deviation of the training rows. `input_names` are the inputs, and `client_names` the
        users, those with training rows first.

    Raises:
        DataError: a column doesn't exist, has missing values, or can't be what it is named for; or a class has test
            rows only.

    Example:
        >>> frame = {"f0": [0.1, 0.2, 0.9, 0.8], "user": list("abab"), "y": ["no", "no", "yes", "yes"]}
        >>> dataset = from_pandas(frame, label="y", clients="user", test=0.5)  # a mapping serves as well
        >>> dataset.class_names, dataset.train_images.shape, dataset.test_labels
        (('no', 'yes'), (2, 1), array([0, 1], dtype=int32))
        >>> frame = {"age": [31, 52, 47, 29], "sex": list("FMFM"), "y": ["no", "no", "yes", "yes"]}
        >>> from_pandas(frame, label="y", test=0.5, categories=["sex"]).input_names
        ('age', 'sex=F', 'sex=M')
    """
    table = _table("from_pandas", frame)
    other = test if is_number(test) else _table("from_pandas: test", test)
    users = None if clients is None else str(clients)
    return table_dataset(table, other, str(label), users, inputs, test_seed, test_by, categories)


def _table(source: str, frame: Any) -> InputTable:
    """Returns the columns of a data frame, or of anything else with columns by name; names become texts."""
    with reading(source, "give a table in memory, frame.to_pandas() for instance, or a mapping of names to arrays."):
        if hasattr(type(frame), "collect") and hasattr(type(frame), "collect_schema"):  # polars' LazyFrame
            frame = frame.collect()
        if isinstance(frame, Mapping):
            given = frame
        elif isinstance(frame, np.ndarray):
            given = frame.dtype.names
        else:  # in Arrow's tables, `columns` are arrays
            given = getattr(frame, "column_names" if hasattr(type(frame), "column_names") else "columns", None)
        names = [] if given is None else list(given)
        if not names:
            lacking = "" if given is None else " without columns"
            raise DataError(
                f"{source}: received {type(frame).__name__}{lacking}, must be a data frame or a mapping, with columns "
                f"by name: {_remedy(frame)}."
            )
        if len(set(map(str, names))) < len(names):
            raise DataError(f"{source}: has two columns of one name among {', '.join(map(str, names))}; rename one.")
        return InputTable(source, {str(name): frame[name] for name in names})


def _remedy(received: Any) -> str:
    """Describes how to make a table of something that has no columns by name."""
    if isinstance(received, str | os.PathLike):
        return "read the file first, pandas.read_csv(path), or use data.load('csv', path=..., label=...)"
    if isinstance(received, np.ndarray):
        return "use from_arrays, or name the columns, pandas.DataFrame(array, columns=[...])"
    if isinstance(received, list | tuple):
        return "name the columns, pandas.DataFrame(rows, columns=[...])"
    if hasattr(type(received), "to_frame"):
        return "this is a single column, so give the frame that it belongs to"
    for method in ("to_table", "read_all", "to_pandas", "df"):
        if hasattr(type(received), method):
            return f"give the result of its .{method}()"
    return "{'age': [31, 52], 'kind': ['a', 'b']} for instance"


def _inputs(values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...] | None]:
    """Returns the inputs of both halves as arrays, and the names of their columns if they are data frames."""
    tables = {half: table for half, value in values.items() if (table := _named_columns(half, value))}
    if not tables:
        return {f"{half}_images": _array(f"{half}_images", value) for half, value in values.items()}, None
    if len(tables) < len(values):
        ((half, table),) = tables.items()
        (other,) = values.keys() - tables
        raise DataError(
            f"from_arrays: {half} inputs have the columns {shortened(', '.join(table.columns))}, and {other} inputs "
            "have no names: pass two data frames, or neither, frame.to_numpy()."
        )
    names = tuple(tables["train"].columns)
    for table in tables.values():
        missing = [name for name in names if name not in table.columns]
        if missing:
            raise DataError(
                f"{table.source}: inputs lack the columns {shortened(', '.join(missing))}, and have "
                f"{shortened(', '.join(table.columns))}; pass those of the training inputs, in any order."
            )
    matrices = {f"{half}_images": input_matrix(table, names) for half, table in tables.items()}
    refuse_rounding(tables["train"], names, "pass the column in 32 bits, .astype('float32')")
    return matrices, names


def _named_columns(half: str, value: Any) -> InputTable | None:
    """Returns a data frame's columns; None for other inputs, and for columns that have numbers only, from 0."""
    kind = type(value)  # asking a lazy frame itself for its columns is expensive
    if not isinstance(value, Mapping) and not hasattr(kind, "columns") and not hasattr(kind, "column_names"):
        return None
    table = _table("from_arrays" if half == "train" else "from_arrays: test", value)
    return None if list(table.columns) == list(map(str, range(len(table.columns)))) else table


def _categories(labels: Any) -> tuple[str, ...] | None:
    """Returns the classes that a categorical column of pandas or polars lists; None for other labels."""
    categories = getattr(getattr(labels, "dtype", None), "categories", None)
    if categories is None or not hasattr(categories, "dtype"):  # polars' Categorical has those of all columns together
        return None
    names = tuple(categories)
    return names if names and all(isinstance(name, str) for name in names) else None


def _array(name: str, values: Any) -> np.ndarray:
    check_unmasked(name, values)
    try:
        return without_objects(to_array(values))
    except ValueError as error:
        raise DataError(
            f"from_arrays: {name} is not an array ({error}); expected lists of one length: "
            "data.pad makes one array of token ids in lists of different lengths."
        ) from error
