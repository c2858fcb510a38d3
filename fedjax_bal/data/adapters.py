"""Data sets from the user's own arrays or from other libraries' objects; none of these libraries is imported."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_bal.data.reading import DataError
from fedjax_bal.data.sources.npz import as_dataset
from fedjax_bal.types import Dataset
from fedjax_bal.validate import check_unmasked


def from_arrays(
    train: tuple[Any, Any], test: tuple[Any, Any], class_names: Sequence[str] | None = None, train_clients: Any = None
) -> Dataset:
    """Makes a data set from arrays.

    Args:
        train: inputs and labels. Inputs are images `UInt8[D, H, W, K]` or `UInt8[D, H, W]`; other numbers
            `Float[D, ...]`, such as feature vectors; or token ids `Int[D, ...]`. Labels are `Int[D]` from 0, or D texts
            whose classes are `class_names`, by default the distinct texts in alphabetical order. pandas columns are
            accepted too.
        test: the same.
        class_names: C names; None for the numbers of the classes.
        train_clients: number or name of each training input's client, for a natural partition.

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
    """
    for half in (train, test):
        if not isinstance(half, tuple | list) or len(half) != 2:
            raise DataError(
                "from_arrays: needs pairs of inputs and labels, as in from_arrays((images, labels), (test_images, "
                "test_labels))."
            )
    given = dict(zip(("train_images", "train_labels", "test_images", "test_labels"), (*train, *test), strict=True))
    given |= {"class_names": class_names, "train_clients": train_clients}
    return as_dataset(
        "from_arrays", _numbered({name: _array(name, value) for name, value in given.items() if value is not None})
    )


def from_torch(train: Any, test: Any, class_names: Sequence[str] | None = None) -> Dataset:
    """Makes a data set from PyTorch's data sets or loaders, which are read once.

    Args:
        train: pairs of input and label, or batches of them. Image tensors, which have their channels first in PyTorch,
            get them last; arrays and Pillow images are not changed.
        test: the same.
        class_names: see `from_arrays`.

    Returns:
        The data set, with each input as the transform of `train` or `test` returned it: leave out random transforms.

    Raises:
        ValueError: examples aren't pairs or have different shapes; see also `from_arrays`.

    Example:
        >>> pairs = [(np.zeros((8, 8, 3), np.uint8), 0), (np.ones((8, 8, 3), np.uint8), 1)]
        >>> from_torch(pairs, pairs).train_images.shape
        (2, 8, 8, 3)
    """
    return from_arrays(
        *(_stacked(map(_channels_last, _examples(half))) for half in (train, test)), class_names=class_names
    )


def from_tf_data(
    train: Any, test: Any, class_names: Sequence[str] | None = None, *, inputs: str = "image", labels: str = "label"
) -> Dataset:
    """Makes a data set from two `tf.data.Dataset` objects, which are read once.

    Args:
        train: pairs of input and label, mappings that hold both, or batches of either.
        test: the same.
        class_names: see `from_arrays`.
        inputs: the key of inputs in mappings.
        labels: the key of labels in mappings.

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
        return _pair(example, inputs, labels) if isinstance(example, dict) else example

    return from_arrays(
        *(_stacked(map(pair, half.as_numpy_iterator())) for half in (train, test)), class_names=class_names
    )


def from_huggingface(train: Any, test: Any, *, inputs: str = "image", labels: str = "label") -> Dataset:
    """Makes a data set from two `datasets.Dataset` objects; a label column of type `ClassLabel` names the classes.

    Args:
        train: one split, `load_dataset(...)["train"]` for instance.
        test: another one.
        inputs: the column of inputs: images, lists of numbers of one length, or token ids of one length.
        labels: the column of labels.

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

    def half(split: Any) -> tuple[np.ndarray, np.ndarray]:
        return _stacked(zip(*_pair(split.with_format("numpy")[:], inputs, labels), strict=True))

    return from_arrays(half(train), half(test), getattr(train.features[labels], "names", None))


def _array(name: str, values: Any) -> np.ndarray:
    check_unmasked(name, values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"from_arrays: {name} is not an array ({error}); expected lists of one length.") from error
    # pandas, among others, stores texts as objects.
    return array.astype(str) if array.dtype == object and all(isinstance(item, str) for item in array.flat) else array


def _numbered(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Replaces labels that are texts by the numbers of their classes."""
    labels = {name: arrays[name] for name in ("train_labels", "test_labels")}
    if not all(half.dtype.kind == "U" and half.ndim == 1 for half in labels.values()):
        return arrays
    names = arrays.get("class_names", np.unique(np.concatenate(list(labels.values()))))
    if names.dtype.kind != "U" or names.ndim != 1 or not len(names):
        return arrays  # the checks that follow reject it
    order = np.argsort(names, kind="stable")
    for name, texts in labels.items():
        numbers = order[np.searchsorted(names, texts, sorter=order).clip(max=len(names) - 1)]
        if (names[numbers] != texts).any():
            unknown = texts[names[numbers] != texts][0]
            raise DataError(f"from_arrays: {name} holds {str(unknown)!r}, which is none of class_names; add it there.")
        labels[name] = numbers
    return arrays | labels | {"class_names": names}


def _pair(columns: Mapping[str, Any], inputs: str, labels: str) -> tuple[Any, Any]:
    """Returns inputs and labels of one example, or of the columns of many."""
    for name in (inputs, labels):
        if not isinstance(name, str) or name not in columns:
            raise ValueError(
                f"data set: has {', '.join(columns)}, but no {name!r}; name the right ones with inputs= and labels="
            )
    return columns[inputs], columns[labels]


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
            raise ValueError(
                f"data set: received inputs of shapes {inputs[0].shape} and {inputs[-1].shape}, must be of one shape: "
                "resize or pad them"
            )
    if not inputs:
        raise ValueError("data set: received no example, must have at least 1")
    join = np.concatenate if labels[0].ndim else np.stack
    return join(inputs), join(labels)
