"""Data sets from Hugging Face's `datasets`, which is imported only to load a path."""

import importlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_bal.annotations import suggesting
from fedjax_bal.data.arrays import REMEDY, TEST_SHARE, TestBy, as_dataset, without_objects
from fedjax_bal.data.examples import check_keys, refuse_other_names, stack
from fedjax_bal.data.inputs import to_array
from fedjax_bal.data.reading import DataError, reading, shortened
from fedjax_bal.data.table import (
    InputTable,
    categorical,
    check_categories,
    input_matrix,
    input_names,
    refuse_missing,
    refuse_record_numbers,
    with_categories,
)
from fedjax_bal.types import Dataset
from fedjax_bal.validate import is_number

_PICTURE = "PIL.Image.Image"  # the type of the feature Image
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_BLOCK = 100  # rows that are read at a time, and that a transform gets


@suggesting
def from_huggingface(
    train: Any,
    test: Any = None,
    *,
    inputs: str | Sequence[str] | None = None,
    label: str = "label",
    clients: str | None = None,
    class_names: Sequence[str] | None = None,
    test_seed: int = 0,
    test_by: TestBy = "classes",
    categories: Sequence[str] | None = None,
    split: str | None = None,
    config: str | None = None,
) -> Dataset:
    """Makes a data set from a `datasets.Dataset`, a `DatasetDict`, a folder with either, or a name on the hub.

    A label column of type `ClassLabel` names the classes. Only the named columns are read. If a split has a transform
    (`set_transform`), inputs are what it returns, and so are labels and clients if it returns them: leave out random
    transforms. Labels that are those of a `ClassLabel` keep its names, also under another name. A format
    (`with_format`) applies to inputs.

    Args:
        train: one split; or a `DatasetDict`, with its own splits. Or a path, which needs the library `datasets`: a
            folder that `save_to_disk` has written, a folder of Parquet or other files that `datasets.load_dataset`
            reads, or the name of a data set on huggingface.co. Scripts are never run.
        test: another split; the name of one in `train`; or a share, see `from_arrays`. Its labels are compared by name:
            its `ClassLabel` may have another order, and it may have texts. By default the split `test`, or a fifth of
            each class if `train` is the only split.
        inputs: the column of inputs: images, see `plain_picture` for their pixels; arrays or lists of numbers of one
            length, of which `uint8` is pixels and other integers are token ids; or a list of columns with a number
            each, or `categories`, which become feature vectors. By default the column of pictures, or `image`; without
            either, all columns of the split's format but those of labels and clients.
        label: the column of labels, integers or texts, which are the names of the classes, unless it is a `ClassLabel`
            or there are `class_names`.
        clients: the column of users, for a natural partition. If the test split has it, too, its rows keep their users.
            Users of a `ClassLabel` have its names.
        class_names: C names. Necessary if the labels of only one split have names; those of the other are then
            positions in `class_names`.
        test_seed: see `from_arrays`.
        test_by: see `from_pandas`.
        categories: see `from_pandas`. Those of a `ClassLabel` have its names.
        split: the name of the split to train on, by default `train`.
        config: the configuration of a data set on the hub that has several.

    Returns:
        The data set.

    Raises:
        ValueError: a column or split is missing or its name isn't text, or inputs have different shapes; a split that
            repeats rows; names of classes that can't be compared; an exception of a transform or of a damaged file; a
            path that can't be loaded; see also `from_arrays`.

    Example:
        >>> from datasets import load_dataset  # doctest: +SKIP
        >>> from_huggingface(load_dataset("ylecun/mnist")).train_images.shape  # doctest: +SKIP
        (60000, 28, 28, 1)
        >>> from_huggingface("ylecun/mnist").train_images.shape  # doctest: +SKIP
        (60000, 28, 28, 1)
    """
    source = "from_huggingface"
    if isinstance(train, str | os.PathLike):
        source = os.fspath(train)
        train = _load(source, config)
    elif config is not None:
        raise DataError(f"{source}: received config={config!r} with a data set that is loaded; leave it out")
    halves, share = _chosen_splits(source, train, test, split)
    for half, rows in halves.items():
        _check_split(source if half == "train" else f"{source}: test", rows)
    chosen = _default_inputs(source, halves["train"], label, clients) if inputs is None else inputs
    if categories and isinstance(chosen, str):
        chosen = [chosen]
    categories = check_categories(source, [*halves["train"].features, *chosen], chosen, categories)
    if not isinstance(chosen, str) and label in chosen:
        raise DataError(f"{source}: inputs include {label!r}, the label; leave it out.")
    arrays: dict[str, Any] = {} if class_names is None else {"class_names": without_objects(np.asarray(class_names))}
    within: set[tuple[str, ...]] = set()
    names: list[str] = []
    for half, rows in halves.items():
        where = source if half == "train" else f"{source}: test"
        _check_each_row_once(where, rows)
        keys = {label: "a class"}
        if clients is not None and (half == "train" or clients in rows.features):
            keys[clients] = "a client"
        read = _transformed if rows.format["type"] == "custom" else _stored
        with reading(where, "the split itself fails: correct its files, or its transform."):
            columns = read(where, rows, chosen, keys)
        if isinstance(chosen, str):
            refuse_missing(InputTable(where, columns), (), keys)
            arrays[f"{half}_images"] = columns[chosen]
        else:
            columns |= {name: _with_names(where, rows, name, columns[name]) for name in categories if name in chosen}
            table = InputTable(where, columns)
            names = with_categories(table, chosen, categories, keys) if half == "train" else names
            coded = [name for name in chosen if name not in categories and hasattr(rows.features[name], "names")]
            if coded:
                raise categorical(where, coded[0])
            if inputs is None and half == "train":
                refuse_record_numbers(table, names)
            arrays[f"{half}_images"] = input_matrix(table, names, keys)
        arrays[f"{half}_labels"] = without_objects(columns[label])
        arrays[f"{half}_class_names"] = classes = _class_names(rows, label, columns[label])
        within |= {classes} if classes is not None else {given for _, given in _class_labels(rows, label)}
        if clients in keys:
            arrays[f"{half}_clients"] = _with_names(where, rows, clients, columns[clients])
    refuse_other_names(source, arrays, within)
    if class_names is None and not any(arrays[f"{half}_class_names"] for half in halves):
        for half in halves:  # integers name classes, as in a table's column
            labels = arrays[f"{half}_labels"]
            arrays[f"{half}_labels"] = labels.astype(str) if labels.dtype.kind in "iu" else labels
    dataset = as_dataset(source, arrays, share, test_seed, REMEDY, test_by)
    return dataset if isinstance(chosen, str) else dataset._replace(input_names=tuple(names))


def _load(path: str, config: str | None) -> Any:
    """Loads a folder that `save_to_disk` has written, other folders, or a data set of the hub."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(f"{path}: loading it needs a library: pip install datasets") from error
    expected = "expected a folder that save_to_disk has written, or one of Parquet files."
    if not os.path.exists(path):
        if not _HUB_NAME.fullmatch(path):
            raise DataError(f"{path}: there is no such folder; {expected}")
        expected = "there is no such folder here, so it must be the name of a data set on huggingface.co."
    with reading(path, expected):
        if os.path.isfile(path):
            raise ValueError("is a file: give the folder that holds it")
        if any(os.path.exists(os.path.join(path, name)) for name in ("dataset_dict.json", "state.json")):
            # In memory and validated: a damaged file that is mapped, or whose offsets lead elsewhere, ends the process.
            loaded = datasets.load_from_disk(path, keep_in_memory=True)
            for part in loaded.values() if isinstance(loaded, Mapping) else [loaded]:
                part.data.validate(full=True)
            return loaded
        return datasets.load_dataset(path, config)


def _chosen_splits(source: str, train: Any, test: Any, split: str | None) -> tuple[dict[str, Any], float | None]:
    """Returns the splits to train and to test on; or that to train on alone, and the share of it that is held out."""
    if isinstance(train, Mapping):
        split = "train" if split is None else split
        others = [name for name in train if name != split]
        if test is None and "test" in others:
            test = "test"
        for key, name in {"split": split, "test": test}.items():
            if isinstance(name, str) and name not in train:
                raise DataError(
                    f"{source}: {key}: has the splits {', '.join(train)}, but no {name!r}; name another one."
                )
        if test == split:
            raise DataError(f"{source}: test: received {test!r}, which is the split to train on; name another one.")
        if test is None and others:
            raise DataError(
                f"{source}: has the splits {', '.join(train)}, and none is called test: name the one to test on, "
                f"test={others[0]}, or hold out a share of each class of {split}, test={TEST_SHARE:g}."
            )
        test = train[test] if isinstance(test, str) else test
        train = train[split]
    elif split is not None or isinstance(test, str):
        key, name = ("test", test) if split is None else ("split", split)
        raise DataError(
            f"{source}: {key}: received {name!r}, but there is a single split, without a name; leave it out."
        )
    test = TEST_SHARE if test is None else test
    return ({"train": train}, test) if is_number(test) else ({"train": train, "test": test}, None)


def _default_inputs(source: str, rows: Any, label: str, clients: str | None) -> str | list[str]:
    """Returns the column of pictures, or `image`; without either, all columns but those of labels and clients."""
    pictures = [name for name, feature in rows.features.items() if getattr(feature, "dtype", None) == _PICTURE]
    if len(pictures) == 1:
        return pictures[0]
    if "image" in rows.features:
        return "image"
    shown = [name for name in rows.features if name in {*rows.format["columns"], label, clients}]
    names = input_names(source, shown, label, clients)
    lists = [name for name in names if pictures or _is_nested(rows.features[name])]
    if lists and len(names) > 1:
        raise DataError(
            f"{source}: has the columns {shortened(', '.join(names))}: name the inputs, inputs=...: one column of "
            "images, arrays or lists, or several of numbers."
        )
    return names[0] if lists else names


def _check_split(source: str, split: Any) -> None:
    if isinstance(split, Mapping):
        which = ", ".join(map(repr, split))
        raise DataError(f"{source}: received splits {which}, must be one: give dataset[{next(iter(split), 'test')!r}]")
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
    part = _in_numpy(part, name)
    for start in range(0, len(part), _BLOCK):
        values = np.asarray(part[start : start + _BLOCK][name])
        is_whole = values.dtype.kind in "iu" or (values.dtype.kind == "f" and np.isfinite(values).all())
        yield from values if dtype is None or not is_whole else values.astype(dtype)  # a missing row stays NaN


def _column(split: Any, name: str) -> np.ndarray:
    """Returns a column as it is stored, `[D, ...]`."""
    return _one_axis(np.asarray(_in_numpy(split, name)[:][name]))


def _in_numpy(split: Any, name: str) -> Any:
    """Returns a single column as NumPy's arrays, with all its bits: the default is 32 bits for any float."""
    wide = {"dtype": np.float64} if _scalar_type(split.features[name]) == "float64" else {}
    return split.select_columns([name]).with_format("numpy", **wide)


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


def _is_nested(feature: Any) -> bool:
    """Returns whether a column has a list or an array in each row."""
    return _innermost(feature) is not feature or hasattr(feature, "shape")


def _with_names(source: str, split: Any, name: str, values: np.ndarray) -> np.ndarray:
    """Returns users or categories by the names that a `ClassLabel` gives them."""
    values = without_objects(values)
    names = _class_names(split, name, values)
    if names is None or values.dtype.kind not in "iu":
        return values
    if values.min() < 0:
        raise DataError(
            f"{source}: column {name!r} holds -1 in row {np.argmin(values)}, which has no name: leave such rows out"
        )
    return np.array(names)[values]


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
