"""Data sets from the user's own arrays or from other libraries' objects; none of these libraries is imported."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_bal.data.arrays import TEST_SHARE, TestBy, as_dataset, without_objects
from fedjax_bal.data.reading import DataError, reading
from fedjax_bal.data.table import Table, input_matrix, refuse_missing, table_dataset
from fedjax_bal.types import Dataset
from fedjax_bal.validate import check_unmasked, is_number

_REMEDY = "pass inputs, images of uint8 or numbers, and as many labels."


def from_arrays(
    train: tuple[Any, Any],
    test: tuple[Any, Any] | float,
    class_names: Sequence[str] | None = None,
    train_clients: Any = None,
    *,
    test_seed: int = 0,
) -> Dataset:
    """Makes a data set from arrays.

    Args:
        train: inputs and labels. Inputs are images `UInt8[D, H, W, K]` or `UInt8[D, H, W]`; other numbers
            `Float[D, ...]`, such as feature vectors; or token ids `Int[D, ...]`. Labels are `Int[D]` from 0, or D texts
            whose classes are `class_names`, by default the distinct texts in alphabetical order. pandas columns are
            accepted too.
        test: the same; or, without test data, the share of each class of `train` that becomes the test set: 0.2.
        class_names: C names; None for the numbers of the classes.
        train_clients: number or name of each training input's client, for a natural partition.
        test_seed: the seed of the split where `test` is a share.

    Returns:
        The data set. By default `federate` normalises it with the mean and standard deviation of each channel or
        feature of its training inputs; token ids are not changed.

    Raises:
        DataError: arrays that don't fit each other, or can't be inputs or labels.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> features, labels = rng.normal(size=(6, 3)), np.array([0, 1, 0, 1, 0, 1])
        >>> dataset = from_arrays((features, labels), (features[:2], labels[:2]), ["no", "yes"])
        >>> dataset.train_images.dtype, dataset.class_names
        (dtype('float32'), ('no', 'yes'))
        >>> from_arrays((features, labels), 1 / 3, train_clients=list("aabbcc")).test_labels
        array([1, 0], dtype=int32)
    """
    halves = [train] if is_number(test) else [train, test]
    for half in halves:
        if not isinstance(half, tuple | list) or len(half) != 2:
            raise DataError(
                "from_arrays: needs pairs of inputs and labels, as in from_arrays((images, labels), (test_images, "
                "test_labels)), or from_arrays((images, labels), 0.2), which holds out a fifth for testing."
            )
    given = {"train_images": train[0], "train_labels": train[1]}
    if len(halves) > 1:
        given |= {"test_images": test[0], "test_labels": test[1]}  # type: ignore[index]
    given |= {"class_names": class_names, "train_clients": train_clients}
    arrays = {name: _array(name, value) for name, value in given.items() if value is not None}
    return as_dataset("from_arrays", arrays, test if len(halves) == 1 else None, test_seed, _REMEDY)  # type: ignore[arg-type]


def from_pandas(
    frame: Any,
    label: str,
    clients: str | None = None,
    test: Any = TEST_SHARE,
    inputs: Sequence[str] | None = None,
    *,
    test_seed: int = 0,
    test_by: TestBy = "classes",
) -> Dataset:
    """Makes a data set of feature vectors from a table: a data frame, or anything else with columns by name.

    Args:
        frame: the table: a frame of pandas or polars (a lazy one is collected), a table of Arrow, or a mapping of names
            to arrays. Its rows may be in any order; its index isn't used.
        label: the column of the classes, texts or integers; the distinct ones, sorted, are the classes.
        clients: the column of users, texts or integers, for a natural partition.
        test: the share of each class that becomes the test set; or a second table, whose columns are taken by name. A
            class that only it has is refused; its users are known if it has the column `clients`, too.
        inputs: the columns of inputs, numbers; by default all but `label` and `clients`.
        test_seed: the seed of the split where `test` is a share.
        test_by: "clients" holds out a share of the users instead, with all their rows, so that no user (a patient, for
            instance) is in both parts.

    Returns:
        The data set: vectors `Float32[D, F]`, in the order of the columns, which `federate` normalises column by column
        with the mean and standard deviation of the training rows. `client_names` are the users, those with training
        rows first.

    Raises:
        DataError: a column doesn't exist, has missing values, or can't be what it is named for; or a class has test
            rows only.

    Example:
        >>> frame = {"f0": [0.1, 0.2, 0.9, 0.8], "user": list("abab"), "y": ["no", "no", "yes", "yes"]}
        >>> dataset = from_pandas(frame, label="y", clients="user", test=0.5)  # a mapping serves as well
        >>> dataset.class_names, dataset.train_images.shape, dataset.test_labels
        (('no', 'yes'), (2, 1), array([0, 1], dtype=int32))
    """
    table = _table("from_pandas", frame)
    other = test if is_number(test) else _table("from_pandas: test", test)
    return table_dataset(
        table, other, str(label), None if clients is None else str(clients), inputs, test_seed, test_by
    )


def from_torch(train: Any, test: Any, class_names: Sequence[str] | None = None, *, test_seed: int = 0) -> Dataset:
    """Makes a data set from PyTorch's data sets or loaders, which are read once.

    Args:
        train: pairs of input and label, or batches of them. Image tensors, which have their channels first in PyTorch,
            get them last; arrays and Pillow images are not changed.
        test: the same, or a share, see `from_arrays`.
        class_names: see `from_arrays`.
        test_seed: see `from_arrays`.

    Returns:
        The data set, with each input as the transform of `train` or `test` returned it: leave out random transforms.

    Raises:
        ValueError: examples aren't pairs or have different shapes; see also `from_arrays`.

    Example:
        >>> pairs = [(np.zeros((8, 8, 3), np.uint8), 0), (np.ones((8, 8, 3), np.uint8), 1)]
        >>> from_torch(pairs, pairs).train_images.shape
        (2, 8, 8, 3)
    """
    read = lambda half: _stacked(map(_channels_last, _examples(half)))
    return from_arrays(*_halves(read, train, test), class_names=class_names, test_seed=test_seed)


def from_tf_data(
    train: Any,
    test: Any,
    class_names: Sequence[str] | None = None,
    *,
    inputs: str = "image",
    labels: str = "label",
    test_seed: int = 0,
) -> Dataset:
    """Makes a data set from two `tf.data.Dataset` objects, which are read once.

    Args:
        train: pairs of input and label, mappings that hold both, or batches of either.
        test: the same, or a share, see `from_arrays`.
        class_names: see `from_arrays`.
        inputs: the key of inputs in mappings.
        labels: the key of labels in mappings.
        test_seed: see `from_arrays`.

    Returns:
        The data set.

    Raises:
        ValueError: examples aren't pairs, lack a key, or have different shapes; see also `from_arrays`.

    Example:
        >>> import tensorflow as tf  # doctest: +SKIP
        >>> images, labels = np.zeros((4, 8, 8, 1), np.uint8), np.array([0, 1, 0, 1])  # doctest: +SKIP
        >>> half = tf.data.Dataset.from_tensor_slices((images, labels))  # doctest: +SKIP
        >>> from_tf_data(half, half).train_images.shape  # doctest: +SKIP
        (4, 8, 8, 1)
    """

    def pair(example: Any) -> Any:
        if not isinstance(example, dict):
            return example
        _check_names(example, inputs, labels)
        return example[inputs], example[labels]

    read = lambda half: _stacked(map(pair, half.as_numpy_iterator()))
    return from_arrays(*_halves(read, train, test), class_names=class_names, test_seed=test_seed)


def from_huggingface(
    train: Any,
    test: Any,
    *,
    inputs: str | Sequence[str] = "image",
    labels: str = "label",
    clients: str | None = None,
    test_seed: int = 0,
) -> Dataset:
    """Makes a data set from two `datasets.Dataset` objects; a label column of type `ClassLabel` names the classes.

    Args:
        train: one split, `load_dataset(...)["train"]` for instance.
        test: another one, or a share, see `from_arrays`.
        inputs: the column of inputs: images, lists of numbers of one length, or token ids of one length; or a list of
            columns with a number each, which become feature vectors.
        labels: the column of labels, integers or texts.
        clients: the column of users, for a natural partition.
        test_seed: see `from_arrays`.

    Returns:
        The data set.

    Raises:
        ValueError: a column is missing or its name isn't text, or inputs have different shapes; see also `from_arrays`.

    Example:
        >>> from datasets import load_dataset  # doctest: +SKIP
        >>> splits = load_dataset("mnist")  # doctest: +SKIP
        >>> from_huggingface(splits["train"], splits["test"]).train_images.shape  # doctest: +SKIP
        (60000, 28, 28, 1)
    """
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    users = None

    def read(split: Any) -> tuple[np.ndarray, np.ndarray]:
        nonlocal users
        if isinstance(split, Mapping):
            which = ", ".join(map(repr, split))
            raise ValueError(
                f"data set: received splits {which}, must be one: give dataset[{next(iter(split), 'train')!r}]"
            )
        if not hasattr(split, "__len__"):
            raise ValueError(
                f"data set: received {type(split).__name__}, which can't be indexed: load it without streaming=True"
            )
        columns = split.with_format("numpy")[:]
        keys = {labels: "a class"}
        if clients is not None and split is train:
            keys[clients] = "a client"
        _check_names(columns, *names, *keys)
        if clients is not None and split is train:
            users = columns[clients]
        table = Table("from_huggingface", columns)
        if isinstance(inputs, str):
            refuse_missing(table, (), keys)
            return _stacked(zip(columns[inputs], columns[labels], strict=True))
        return input_matrix(table, names, keys), np.asarray(columns[labels])

    halves = _halves(read, train, test)
    dataset = from_arrays(*halves, getattr(train.features[labels], "names", None), users, test_seed=test_seed)
    return dataset if isinstance(inputs, str) else dataset._replace(input_names=tuple(names))


def _halves(read: Callable[[Any], tuple[np.ndarray, np.ndarray]], train: Any, test: Any) -> tuple[Any, Any]:
    """Returns inputs and labels of both halves; a share in place of the test data stays as it is."""
    return read(train), test if is_number(test) else read(test)


def _table(source: str, frame: Any) -> Table:
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
        return Table(source, {str(name): frame[name] for name in names})


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


def _array(name: str, values: Any) -> np.ndarray:
    check_unmasked(name, values)
    try:
        return without_objects(np.asarray(values))
    except ValueError as error:
        raise DataError(
            f"from_arrays: {name} is not an array ({error}); expected lists of one length: "
            "data.pad makes one array of token ids in lists of different lengths."
        ) from error


def _check_names(columns: Mapping[str, Any], *names: str) -> None:
    """Raises `ValueError` for a column that doesn't exist."""
    for name in names:
        if not isinstance(name, str) or name not in columns:
            raise ValueError(
                f"data set: has {', '.join(columns)}, but no {name!r}; name the right ones with inputs= and labels="
            )


def _examples(dataset: Any) -> Iterable[Any]:
    # Without `__iter__`, Python would read positions until an IndexError, which not every data set raises.
    return dataset if hasattr(dataset, "__iter__") else (dataset[position] for position in range(len(dataset)))


def _channels_last(example: Any) -> Any:
    """Converts the tensors of a pair or a batch to arrays; images get their channels last."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", ())  # if PyTorch isn't imported, nothing is a tensor
    if not isinstance(example, tuple | list) or len(example) != 2:
        return example
    arrays = [part.numpy(force=True) if isinstance(part, tensor) else np.asarray(part) for part in example]
    inputs, labels = arrays
    is_image = isinstance(example[0], tensor) and inputs.ndim == 3 + labels.ndim
    return (np.moveaxis(inputs, -3, -1) if is_image else inputs), labels


def _stacked(examples: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Stacks pairs of input and label, or joins batches of them."""
    inputs = []
    labels = []
    for example in examples:
        if not isinstance(example, tuple | list) or len(example) != 2:
            raise ValueError(f"data set: received an example of type {type(example).__name__}, must be (input, label)")
        inputs.append(np.asarray(example[0]))
        labels.append(np.asarray(example[1]))
        shapes = {
            (array.shape[label.ndim :], label.ndim)
            for array, label in ((inputs[0], labels[0]), (inputs[-1], labels[-1]))
        }
        if len(shapes) > 1:
            axes = {np.ndim(array) - np.ndim(label) for array, label in zip(inputs, labels, strict=True)}
            remedy = "give all images their channels, image.convert('RGB')" if len(axes) > 1 else "resize or pad them"
            raise ValueError(
                f"data set: received inputs of shapes {inputs[0].shape} and {inputs[-1].shape}, must be of one shape: "
                f"{remedy}"
            )
    if not inputs:
        raise ValueError("data set: received no example, must have at least 1")
    join = np.concatenate if labels[0].ndim else np.stack
    return join(inputs), join(labels)
