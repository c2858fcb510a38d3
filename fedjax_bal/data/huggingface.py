"""Data sets from those of Hugging Face; their library is not imported."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_bal.data.arrays import REMEDY, as_dataset, without_objects
from fedjax_bal.data.examples import check_keys, refuse_other_names, stack
from fedjax_bal.data.inputs import to_array
from fedjax_bal.data.reading import DataError, reading
from fedjax_bal.data.table import InputTable, input_matrix, refuse_missing
from fedjax_bal.types import Dataset
from fedjax_bal.validate import is_number

_PICTURE = "PIL.Image.Image"  # the type of the feature Image
_BLOCK = 100  # rows that are read at a time, and that a transform gets


def from_huggingface(
    train: Any,
    test: Any,
    *,
    inputs: str | Sequence[str] = "image",
    labels: str = "label",
    clients: str | None = None,
    class_names: Sequence[str] | None = None,
    test_seed: int = 0,
) -> Dataset:
    """Makes a data set from two `datasets.Dataset` objects; a label column of type `ClassLabel` names the classes.

    Only the named columns are read. If a split has a transform (`set_transform`), inputs are what it returns, and so
    are labels and clients if it returns them: leave out random transforms. Labels that are those of a `ClassLabel` keep
    its names, also under another name. A format (`with_format`) applies to inputs.

    Args:
        train: one split, `load_dataset(...)["train"]` for instance.
        test: another one, or a share, see `from_arrays`. Its labels are compared by name: its `ClassLabel` may have
            another order, and it may have texts.
        inputs: the column of inputs: images, see `plain_picture` for their pixels; arrays or lists of numbers of one
            length, of which `uint8` is pixels and other integers are token ids; or a list of columns with a number
            each, which become feature vectors.
        labels: the column of labels, integers or texts.
        clients: the column of users, for a natural partition. If `test` has it, too, test rows keep their users. Users
            of a `ClassLabel` have its names.
        class_names: C names. Necessary if the labels of only one split have names; those of the other are then
            positions in `class_names`.
        test_seed: see `from_arrays`.

    Returns:
        The data set.

    Raises:
        ValueError: a column is missing or its name isn't text, or inputs have different shapes; a split that repeats
            rows; names of classes that can't be compared; an exception of a transform or of a damaged file; see also
            `from_arrays`.

    Example:
        >>> from datasets import load_dataset  # doctest: +SKIP
        >>> splits = load_dataset("mnist")  # doctest: +SKIP
        >>> from_huggingface(splits["train"], splits["test"]).train_images.shape  # doctest: +SKIP
        (60000, 28, 28, 1)
    """
    arrays: dict[str, Any] = {} if class_names is None else {"class_names": without_objects(np.asarray(class_names))}
    within: set[tuple[str, ...]] = set()
    for half, split in {"train": train, **({} if is_number(test) else {"test": test})}.items():
        source = "from_huggingface" if half == "train" else "from_huggingface: test"
        _check_split(source, split)
        _check_each_row_once(source, split)
        keys = {labels: "a class"}
        if clients is not None and (half == "train" or clients in split.features):
            keys[clients] = "a client"
        read = _transformed if split.format["type"] == "custom" else _stored
        with reading(source, "the split itself fails: correct its files, or its transform."):
            columns = read(source, split, inputs, keys)
        table = InputTable(source, columns)
        if isinstance(inputs, str):
            refuse_missing(table, (), keys)
            arrays[f"{half}_images"] = columns[inputs]
        else:
            arrays[f"{half}_images"] = input_matrix(table, inputs, keys)
        arrays[f"{half}_labels"] = without_objects(columns[labels])
        arrays[f"{half}_class_names"] = names = _class_names(split, labels, columns[labels])
        within |= {names} if names is not None else {given for _, given in _class_labels(split, labels)}
        if clients in keys:
            users = without_objects(columns[clients])
            names = _class_names(split, clients, users)
            if names is not None:
                if users.min() < 0:
                    raise DataError(
                        f"{source}: column {clients!r} holds -1 in row {np.argmin(users)}, which is no user: leave "
                        "such rows out"
                    )
                users = np.array(names)[users]
            arrays[f"{half}_clients"] = users
    refuse_other_names("from_huggingface", arrays, within)
    dataset = as_dataset("from_huggingface", arrays, test if is_number(test) else None, test_seed, REMEDY)
    return dataset if isinstance(inputs, str) else dataset._replace(input_names=tuple(inputs))


def _check_split(source: str, split: Any) -> None:
    if isinstance(split, Mapping):
        which = ", ".join(map(repr, split))
        raise DataError(f"{source}: received splits {which}, must be one: give dataset[{next(iter(split), 'train')!r}]")
    if not hasattr(split, "__len__") or not hasattr(split, "features"):
        raise DataError(
            f"{source}: received {type(split).__name__}, which can't be indexed: load it without streaming=True"
        )


def _check_each_row_once(source: str, split: Any) -> None:
    """Raises `DataError` for a split that lists rows twice, which could be in the training and in the test set."""
    listed = getattr(split, "_indices", None)  # the library has no public name for them
    if listed is None:
        return
    rows = np.asarray(listed.column(0))
    repeated = len(rows) - len(np.unique(rows))
    if repeated:
        raise DataError(
            f"{source}: repeats {repeated:,} of {len(rows):,} rows, by select or interleave_datasets; each row must be "
            "given once. To train more often on rare classes, balance in training, with recipes.balanced_softmax() for "
            "instance"
        )


def _stored(source: str, split: Any, inputs: str | Sequence[str], keys: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Returns columns as they are stored, by name; inputs have the type of the split's format, if it names one."""
    names = () if isinstance(inputs, str) else inputs
    check_keys(source, split.features, *([inputs] if isinstance(inputs, str) else inputs), *keys)
    columns = {name: _column(split, name) for name in (*names, *keys)}
    if isinstance(inputs, str):
        columns[inputs] = _stack(source, _values(source, split, inputs))
    return columns


def _transformed(
    source: str, split: Any, inputs: str | Sequence[str], keys: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Returns what a split's transform returns, by name; a label or client that it doesn't return is the stored one."""
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    lists: dict[str, list] = {}

    def read() -> Iterator[Any]:
        for start in range(0, len(split), _BLOCK):
            batch = split[start : start + _BLOCK]
            check_keys(f"{source}: the transform's result", batch, *names)
            for name in (*names, *keys):
                if name in batch and name != inputs:
                    lists.setdefault(name, []).extend(batch[name])
            yield from batch[names[0]]

    columns = {}
    if isinstance(inputs, str):
        columns[inputs] = _stack(source, read())
    else:
        for _ in read():
            pass
    check_keys(source, [*lists, *split.features], *keys)
    return columns | {
        name: _one_axis(to_array(lists[name])) if name in lists else _column(split, name) for name in (*lists, *keys)
    }


def _values(source: str, split: Any, name: str) -> Iterator[Any]:
    """Yields the inputs of each row: pictures, or arrays of the type that the split's format gives them."""
    feature = split.features[name]
    part = split.select_columns([name])
    if _scalar_type(feature) == _PICTURE != getattr(feature, "dtype", None):
        raise DataError(
            f"{source}: column {name!r} has a list of pictures in each row, must have one: "
            f"split.map(lambda row: {{{name!r}: row[{name!r}][0]}}, features=...) takes the first"
        )
    dtype = None
    if "dtype" in split.format["format_kwargs"]:
        dtype = to_array(part.with_format(split.format["type"], **split.format["format_kwargs"])[0][name]).dtype
    if getattr(feature, "dtype", None) == _PICTURE:
        for row in part.with_format(None):
            image = row[name]
            if isinstance(image, Mapping):
                raise DataError(
                    f"{source}: column {name!r} holds files that aren't decoded: "
                    f"split.cast_column({name!r}, datasets.Image(decode=True)) decodes them"
                )
            yield image if image is None or dtype is None else to_array(image).astype(dtype)
        return
    dtype = dtype or (np.uint8 if _scalar_type(feature) == "uint8" else None)
    part = part.with_format("numpy")
    for start in range(0, len(part), _BLOCK):
        values = np.asarray(part[start : start + _BLOCK][name])
        is_whole = values.dtype.kind in "iu" or (values.dtype.kind == "f" and np.isfinite(values).all())
        yield from values if dtype is None or not is_whole else values.astype(dtype)  # a missing row stays NaN


def _column(split: Any, name: str) -> np.ndarray:
    """Returns a column as it is stored, `[D, ...]`."""
    return _one_axis(np.asarray(split.select_columns([name]).with_format("numpy")[:][name]))


def _one_axis(column: np.ndarray) -> np.ndarray:
    """Returns `[D]` for `[D, 1]`: labels are lists of one element in some data sets."""
    return column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column


def _stack(source: str, values: Iterable[Any]) -> np.ndarray:
    return stack(source, ((value, 0) for value in values), "examples")[0]


def _innermost(feature: Any) -> Any:
    """Returns the feature of the single values in lists and arrays, which is nested in theirs."""
    while True:
        inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
        if inner is None:
            return feature
        feature = inner


def _scalar_type(feature: Any) -> str | None:
    return getattr(_innermost(feature), "dtype", None)


def _class_labels(split: Any, name: str) -> list[tuple[str, tuple[str, ...]]]:
    """Returns a column and its names by number, if it is a `ClassLabel`; all of them if a transform made the column."""
    columns = [name] if name in split.features else list(split.features)
    named = [(column, getattr(_innermost(split.features[column]), "names", None)) for column in columns]
    return [(column, tuple(names)) for column, names in named if names is not None]


def _class_names(split: Any, name: str, labels: np.ndarray) -> tuple[str, ...] | None:
    """Returns the names of a `ClassLabel`, by number; None if the split's transform returns other labels."""
    is_transformed = split.format["type"] == "custom"
    for column, names in _class_labels(split, name):
        if not is_transformed or np.array_equal(labels, _column(split, column)):
            return names
    return None
