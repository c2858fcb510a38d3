"""Data sets from objects that yield examples (PyTorch, tf.data). Neither library is imported."""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedjax_bal.annotations import suggesting
from fedjax_bal.data.arrays import REMEDY, TEST_SHARE, as_dataset, without_objects
from fedjax_bal.data.inputs import is_tensor, to_array
from fedjax_bal.data.reading import DataError, reading, shortened
from fedjax_bal.types import Dataset
from fedjax_bal.validate import is_number, suggestion

_ONCE = (
    "; each row must be read once: pass {}. To train more often on rare classes, balance in training, with "
    "recipes.balanced_softmax() for instance"
)

_FAILED = "the data set itself fails: correct its file, its transform or its collate_fn."

_END = object()
_MAX_PARTS = 100  # of a data set that is made of others
ItemLayout = Literal["examples", "batches", "either"]
"""What an object yields, as far as it says so."""


@suggesting
def from_torch(
    train: Any, test: Any = TEST_SHARE, class_names: Sequence[str] | None = None, *, test_seed: int = 0
) -> Dataset:
    """Makes a data set from PyTorch's data sets or loaders, which are read once.

    Args:
        train: pairs of input and label, or a loader of batches of them. Image tensors, which have their channels first
            in PyTorch, get them last; arrays are not changed; pictures of Pillow become pixels, see `plain_picture`. A
            label is a number or a text, or an array of one element.
        test: the same, or a share, see `from_arrays`. If the data sets name their classes (`classes`, or
            `class_to_idx`), as torchvision's do, also within a loader, `Subset` or `ConcatDataset`, its labels are
            compared by name: classes may have other numbers.
        class_names: C names. Necessary if one of the two data sets names its classes and the other doesn't, whose
            labels are then positions in `class_names`. Names of data sets are looked up in it.
        test_seed: see `from_arrays`.

    Returns:
        The data set, with each input as the transform of `train` or `test` returned it: leave out random transforms,
        and a `collate_fn` that mixes examples. These can't be noticed.

    Raises:
        ValueError: examples aren't pairs or have different shapes; a tensor of an image with its channels last; a
            loader that repeats rows or leaves some out; names of classes that can't be compared, also those that a
            wrapper hides; an exception of the data set's; see also `from_arrays`.

    Example:
        >>> pairs = [(np.zeros((8, 8, 3), np.uint8), 0), (np.ones((8, 8, 3), np.uint8), 1)]
        >>> from_torch(pairs, pairs).train_images.shape
        (2, 8, 8, 3)
    """
    arrays: dict[str, Any] = {} if class_names is None else {"class_names": without_objects(np.asarray(class_names))}
    within: set[tuple[str, ...]] = set()
    for half, rows in _halves(train, test).items():
        source = f"from_torch: {half}"
        with reading(source, _FAILED):
            _check_each_row_once(source, rows)
        try:
            names = _class_names(rows)
        except ValueError as error:
            if class_names is None:
                raise DataError(f"{source}: {error}; give class_names, a text for each label from 0") from error
            names = None
        arrays[f"{half}_class_names"] = names
        within |= _names_within(rows) if names is None else {names}
        arrays[f"{half}_images"], arrays[f"{half}_labels"] = stack(source, *_examples(rows))
    refuse_other_names("from_torch", arrays, within)
    return as_dataset("from_torch", arrays, test if is_number(test) else None, test_seed, REMEDY)


@suggesting
def from_tf_data(
    train: Any,
    test: Any = TEST_SHARE,
    class_names: Sequence[str] | None = None,
    *,
    inputs: str = "image",
    label: str = "label",
    test_seed: int = 0,
) -> Dataset:
    """Makes a data set from two `tf.data.Dataset` objects, which are read once.

    Args:
        train: pairs of input and label, mappings that hold both, or batches of either. A label is a number or a text,
            or an array of one element.
        test: the same, or a share, see `from_arrays`. If both data sets have `class_names`, as Keras makes them from
            folders, labels are compared by name.
        class_names: see `from_torch`.
        inputs: the key of inputs in mappings.
        label: the key of labels in mappings.
        test_seed: see `from_arrays`.

    Returns:
        The data set. What a random `shuffle` before `take` and `skip` puts into both can't be noticed.

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
        check_keys("from_tf_data", example, inputs, label)
        return example[inputs], example[label]

    arrays: dict[str, Any] = {} if class_names is None else {"class_names": without_objects(np.asarray(class_names))}
    for half, rows in _halves(train, test).items():
        if not hasattr(rows, "as_numpy_iterator"):
            raise DataError(f"from_tf_data: {half}: received {type(rows).__name__}, must be a tf.data.Dataset")
        arrays[f"{half}_class_names"] = getattr(rows, "class_names", None)
        examples = map(pair, rows.as_numpy_iterator())
        arrays[f"{half}_images"], arrays[f"{half}_labels"] = stack(f"from_tf_data: {half}", examples)
    return as_dataset("from_tf_data", arrays, test if is_number(test) else None, test_seed, REMEDY)


def stack(source: str, examples: Iterable[Any], layout: ItemLayout = "either") -> tuple[np.ndarray, np.ndarray]:
    """Stacks pairs of input and label, or joins batches of them; image tensors get their channels last.

    Raises:
        DataError: no examples, something else than pairs, a missing input or label, a label of several elements,
            labels of texts and numbers, inputs of different shapes, or an exception of the data set's.
    """
    inputs: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    first = None
    remaining = iter(examples)
    while True:
        with reading(f"{source}: example {len(inputs)}", _FAILED):
            example = next(remaining, _END)
        if example is _END:
            break
        if not isinstance(example, tuple | list) or len(example) != 2:
            raise DataError(f"{source}: received an example of type {type(example).__name__}, must be (input, label)")
        place = f"{source}: example {len(inputs)}"
        if example[0] is None or example[1] is None:
            raise DataError(f"{place} has {'an input' if example[0] is None else 'a label'} that is None; leave it out")
        try:
            array, label, is_batch = _as_arrays(example[0], example[1], layout)
        except ValueError as error:
            raise DataError(f"{place}: {error}") from error
        shape = array.shape[int(is_batch) :]
        first = first or (shape, is_batch)
        if (shape, is_batch) != first:
            texts = len(shape) == len(first[0]) == 1
            channels = len(shape) != len(first[0]) or (len(shape) == 3 and shape[:2] == first[0][:2])
            remedy = "give all images their channels, image.convert('RGB')" if channels else "resize or pad them"
            raise DataError(
                f"{source}: received inputs of shapes {inputs[0].shape} and {array.shape}, must be of one shape: "
                f"{'pad them to one length, texts with 0 at the end (data.pad)' if texts else remedy}"
            )
        if inputs and (array.dtype == np.uint8) != (inputs[0].dtype == np.uint8):
            raise DataError(
                f"{place} is of {array.dtype}, and example 0 of {inputs[0].dtype}: give all one type and scale"
            )
        if labels and (label.dtype.kind in "USO") != (labels[0].dtype.kind in "USO"):
            raise DataError(f"{place} has {label} as its label, and example 0 has {labels[0]}: give texts, or numbers")
        inputs.append(array)
        labels.append(label)
    if first is None:
        raise DataError(f"{source}: received no example, must have at least 1")
    join = np.concatenate if first[1] else np.stack
    return join(inputs), without_objects(join(labels))


def _as_arrays(inputs: Any, labels: Any, layout: ItemLayout) -> tuple[np.ndarray, np.ndarray, bool]:
    """Returns an example's input and label `[]`, or a batch's inputs and labels `[B]`; and whether it is a batch."""
    array = to_array(inputs)
    label = to_array(labels)
    is_batch = layout != "examples" and label.ndim > 0
    if is_batch and label.size == 1:
        # An example whose label is an array of one element, or a batch of one? A tensor of three axes is an image.
        is_image = layout == "either" and is_tensor(inputs) and array.ndim == 3
        is_batch = array.ndim > 1 and len(array) == 1 and not is_image
    wanted = (len(array),) if is_batch and array.ndim else ()
    if label.size != np.prod(wanted, dtype=int) or label.shape[: len(wanted)] != wanted:
        hint = "" if layout != "examples" else ", or DataLoader(dataset, batch_size=None) if examples are batches"
        raise ValueError(
            f"received labels of shape {label.shape} for inputs of shape {array.shape}, must be one element for each "
            f"example: the number of its class (label.argmax() of a one-hot label){hint}"
        )
    if is_tensor(inputs) and array.ndim == 3 + is_batch:
        channels, height, width = array.shape[-3:]
        if min(channels, height) > 4 and (width == 3 or (width == 1 and channels == height)):
            raise ValueError(
                f"received a tensor of shape {array.shape}, must have the channels of an image first, as in PyTorch: "
                "tensor.movedim(-1, -3), or give NumPy's arrays, whose channels are last"
            )
        array = np.moveaxis(array, -3, -1)
    return array, label.reshape(wanted), is_batch


def _halves(train: Any, test: Any) -> dict[str, Any]:
    """Returns both halves by name; the training half alone where a share of it is the test set."""
    return {"train": train} if is_number(test) else {"train": train, "test": test}


def _is_loader(rows: Any) -> bool:
    return all(hasattr(rows, name) for name in ("dataset", "sampler", "batch_sampler"))


def _examples(rows: Any) -> tuple[Iterable[Any], ItemLayout]:
    """Returns what is iterated over, and what it yields."""
    if _is_loader(rows):
        return rows, "either" if rows.batch_sampler is None else "batches"
    if hasattr(rows, "__iter__"):
        return rows, "either"
    # Without `__iter__`, Python would read positions until an IndexError, which not every data set raises.
    return (rows[position] for position in range(len(rows))), "examples"


def _is_wrapper(rows: Any, name: str) -> bool:
    """Returns whether this is PyTorch's own class, whose labels are those of the data sets within."""
    return type(rows).__name__ == name and type(rows).__module__.startswith("torch.utils.data")


def _check_each_row_once(source: str, rows: Any) -> None:
    """Raises `DataError` for a loader or a `Subset` that repeats rows or leaves rows out.

    A row that is drawn twice could be in the training and in the test set.
    """
    if _is_wrapper(rows, "Subset") or _is_wrapper(rows, "ConcatDataset"):
        parts = list(map(int, rows.indices)) if _is_wrapper(rows, "Subset") else list(map(id, rows.datasets))
        if len(set(parts)) < len(parts):
            raise DataError(f"{source}: is a {type(rows).__name__} that repeats rows{_ONCE.format('each once')}")
    if not _is_loader(rows):
        return
    batches = rows.batch_sampler
    drawn = itertools.chain.from_iterable(
        row if isinstance(row, list | tuple) else [row] for row in (rows.sampler if batches is None else batches)
    )
    first = list(itertools.islice(drawn, 1))
    if first == [None]:  # an iterable data set, which numbers no rows
        if getattr(rows, "num_workers", 0) > 1:
            raise DataError(
                f"{source}: the loader has num_workers={rows.num_workers}, and each worker reads the whole of an "
                "iterable data set, unless this shares its rows out; load with num_workers=0"
            )
        if getattr(rows, "drop_last", False):
            raise DataError(
                f"{source}: the loader has drop_last=True, which leaves rows out; load with drop_last=False"
            )
        return
    if not hasattr(rows.dataset, "__len__"):
        return
    count = len(rows.dataset)
    drawn = [
        getattr(row, "item", lambda row=row: row)() for row in itertools.chain(first, itertools.islice(drawn, count))
    ]
    repeated = len(drawn) - len(set(drawn))
    absent = count - len(set(drawn))
    if repeated or absent or getattr(rows.sampler, "replacement", False):
        is_custom = type(rows.sampler).__name__ != "SequentialSampler"
        kind = type(rows.sampler if is_custom or batches is None else batches).__name__
        by = "drop_last=True" if getattr(rows, "drop_last", False) and not repeated else f"its {kind}"
        raise DataError(
            f"{source}: the loader repeats {repeated:,} of {count:,} rows and leaves out {absent:,}, by {by}"
            f"{_ONCE.format('loader.dataset')}"
        )
    _check_each_row_once(source, rows.dataset)


def refuse_other_names(source: str, arrays: Mapping[str, Any], within: Collection[tuple[str, ...]]) -> None:
    """Raises `DataError` for labels without names, where data sets within number different classes.

    A user's own wrapper, or a transform, may return other labels than those of the data set within. So its names can't
    be taken, but as long as they are all the same, labels can be compared by position.

    Args:
        source: what was called.
        arrays: those of a data set, see `as_dataset`.
        within: the names of classes, by number, of all data sets within.
    """
    named = any(arrays.get(f"{half}_class_names") is not None for half in ("train", "test"))
    integers = all(
        arrays[f"{half}_labels"].dtype.kind not in "US" for half in ("train", "test") if f"{half}_labels" in arrays
    )
    if len(within) > 1 and integers and not named and "class_names" not in arrays:
        lists = " and ".join(sorted(shortened(", ".join(names)) for names in within))
        raise DataError(
            f"{source}: labels have no names, and the data sets within number different classes, {lists}: return "
            "texts as labels, name the classes of a wrapper in its attribute classes, or, if labels are positions in "
            "one list of names, give that as class_names"
        )


def check_keys(source: str, columns: Iterable[str], *names: Any) -> None:
    """Raises `ValueError` for a column or key that doesn't exist."""
    columns = list(columns)
    for name in names:
        if not isinstance(name, str) or name not in columns:
            near = suggestion(name, columns)
            raise DataError(
                f"{source}: has {', '.join(columns)}, but no {name!r}; {f'{near} ' if near else ''}Name the right ones "
                "with inputs and label."
            )


def _class_names(rows: Any) -> tuple[str, ...] | None:
    """Returns the names of a data set's classes, by number; None if it has none.

    Raises `ValueError` for names that don't say which label is which.
    """
    if _is_loader(rows) or _is_wrapper(rows, "Subset"):
        return _class_names(rows.dataset)
    if _is_wrapper(rows, "ConcatDataset"):
        names = {_class_names(part) for part in rows.datasets}
        if len(names) > 1:
            lists = " and ".join("no classes" if part is None else shortened(", ".join(part)) for part in names)
            raise ValueError(f"is a ConcatDataset whose data sets number different classes: {lists}")
        return names.pop()
    if getattr(rows, "target_transform", None) is not None:
        return None  # the labels needn't be those that `classes` names
    classes = getattr(rows, "classes", None)
    numbers = getattr(rows, "class_to_idx", None)
    numbers = numbers if isinstance(numbers, Mapping) else {}
    if classes is None and numbers:
        classes = sorted(numbers, key=numbers.__getitem__)
    if isinstance(classes, Iterable) and not isinstance(classes, str | Mapping):
        entries: list[tuple[Any, ...]] = [
            tuple(entry) if isinstance(entry, list | tuple) else (entry,) for entry in classes
        ]
    elif isinstance(classes, str | Mapping):
        entries = [(None,)]
    else:
        return None  # the number of classes, or a function
    if not all(isinstance(text, str) for entry in entries for text in entry):
        if entries and np.array_equal(np.ravel(to_array(classes)), np.arange(len(entries))):
            return None
        raise ValueError(f"classes is {shortened(repr(classes))}, must be a list of texts, one for each class")
    names = tuple(", ".join(entry) for entry in entries)  # ImageNet's classes have several names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"classes has {twice!r} twice")
    for position, entry in enumerate(entries):
        for text in entry:
            if numbers and numbers.get(text) != position:
                raise ValueError(
                    f"classes has {text!r} at position {position}, and class_to_idx says {numbers.get(text)}"
                )
    return names or None


def _names_within(rows: Any, depth: int = 4) -> set[tuple[str, ...]]:
    """Returns the names of classes, by number, of the data sets that a user's own wrapper holds."""
    names: set[tuple[str, ...]] = set()
    for value in vars(rows).values() if depth and hasattr(rows, "__dict__") else ():
        for part in value if isinstance(value, list | tuple) and len(value) < _MAX_PARTS else [value]:
            if not hasattr(part, "__getitem__") or not hasattr(part, "__dict__"):
                continue
            try:
                given = _class_names(part)
            except ValueError:
                given = None
            names |= _names_within(part, depth - 1) if given is None else {given}
    return names
