"""The kinds of inputs: pixels as bytes, other numbers, and token ids."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedjax_bal.data.pixels import is_picture, pixels
from fedjax_bal.validate import check_channels_last, check_unmasked, checked_labels, whole_number

_IDS = np.iinfo(np.int32)
_BLOCK = 4096  # images counted at a time
_MOST_ROUNDED = 0.01  # of a column's range
_LEAST_STD = float(np.finfo(np.float32).tiny)  # devices take smaller numbers for 0


def are_tokens(inputs: Any) -> bool:
    """Returns whether an array holds token ids: integers other than bytes, which are pixels."""
    return inputs.dtype.kind in "iu" and inputs.dtype != np.uint8


def is_frame(value: Any) -> bool:
    """Returns whether a value has columns by name: a mapping, or a table of pandas, polars, Arrow or others.

    Example:
        >>> is_frame({"age": [3, 5]}), is_frame(np.ones((2, 3)))
        (True, False)
    """
    if isinstance(value, np.ndarray):
        return value.dtype.names is not None
    # `columns` comes last, because polars warns where those of a lazy frame are read.
    return isinstance(value, Mapping) or any(
        hasattr(value, name) for name in ("collect_schema", "column_names", "columns")
    )


def to_array(value: Any) -> np.ndarray:
    """Converts other libraries' objects to an array: PyTorch's tensors, Pillow's pictures, and lists of them.

    Types that NumPy lacks, bfloat16 and float8, become float32, which holds their numbers exactly.

    Raises:
        ValueError: a list whose items have different shapes, are missing, or are bytes beside other numbers; a sparse
            tensor; or a picture of more than eight bits a value.
    """
    if is_picture(value):
        return pixels(value)
    if is_tensor(value):
        return _tensor_to_array(value)
    is_column = getattr(value, "dtype", None) == np.dtype(object) and np.ndim(value) == 1
    items = list(value) if is_column else value
    if isinstance(items, list | tuple):
        _check_one_scale(items)
    if isinstance(items, list | tuple) and any(is_picture(item) or is_tensor(item) for item in items):
        for row, item in enumerate(items):
            if item is None:
                raise ValueError(f"row {row} is None; leave such rows out")
        return np.stack([to_array(item) for item in items])
    array = np.asarray(value)
    if array.dtype.kind == "U" and isinstance(items, list | tuple) and not all(isinstance(item, str) for item in items):
        return np.asarray(value, object)  # in an array of texts, a missing value would be the text nan
    is_small_float = array.dtype.kind == "V" and array.dtype.name.startswith(("bfloat", "float"))
    return array.astype(np.float32) if is_small_float else array


def _check_one_scale(items: Iterable[Any]) -> None:
    """Raises `ValueError` for arrays of bytes, which are pixels from 0 to 255, beside arrays of other numbers."""
    first: dict[bool, int] = {}
    for row, item in enumerate(items):
        if is_picture(item) or getattr(item, "ndim", 0):
            first.setdefault(is_picture(item) or str(item.dtype).removeprefix("torch.") == "uint8", row)
    if len(first) > 1:
        raise ValueError(
            f"row {first[True]} is of uint8 and row {first[False]} is not: give all one type and one scale"
        )


def is_tensor(value: Any) -> bool:
    """Returns whether a value is a tensor of PyTorch; if PyTorch isn't imported, nothing is."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def _tensor_to_array(tensor: Any) -> np.ndarray:
    try:
        return tensor.numpy(force=True)
    except (TypeError, RuntimeError) as error:
        try:
            return tensor.float().numpy(force=True)
        except (TypeError, RuntimeError):
            raise ValueError(
                f"received a tensor of {tensor.dtype} and {tensor.layout}, which NumPy doesn't have: convert it, "
                "tensor.to_dense() or tensor.float()"
            ) from error


def num_channels(inputs: Any) -> int:
    """Returns K, the length of the last axis, along which normalisation has separate constants; 1 for token ids."""
    return 1 if are_tokens(inputs) else inputs.shape[-1]


def pad(sequences: Iterable[Any], length: int | None = None, value: int = 0) -> np.ndarray:
    """Pads texts of different lengths, lists of token ids, to one array.

    The default `value`, 0, marks what the model `text_mean` leaves out, so number words from 1. Only the end of a text
    is padding: an id equal to `value` before another id is refused, as the model would leave out a word.

    Args:
        sequences: a list of integers for each text; a text may be empty.
        length: length of all rows, L; by default that of the longest text. Longer texts are refused, so cut them first:
            `[ids[:128] for ids in sequences]`.
        value: the id that fills a row, 0 or above.

    Returns:
        `Int32[n, L]`.

    Raises:
        ValueError: no texts, ids that aren't integers from 0 of 32 bits, a text longer than `length`, or one with
            `value` before its end.

    Example:
        >>> pad([[5, 3, 8], [2]]).tolist()
        [[5, 3, 8], [2, 0, 0]]
        >>> pad([[5, 3, 8], [2]], length=2)  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        ValueError: sequences[0] has 3 ids, more than length=2: cut longer texts, [ids[:2] for ids in sequences], or
        leave length out
    """
    value = whole_number("value", value, 0)
    texts = [] if isinstance(sequences, str) else list(sequences)
    if not texts:
        raise ValueError(f"sequences: received {sequences!r:.60}, must be lists of token ids, at least one")
    rows = [_checked_ids(f"sequences[{place}]", ids, value) for place, ids in enumerate(texts)]
    longest = max(map(len, rows))
    length = max(longest, 1) if length is None else whole_number("length", length)
    if longest > length:
        place = next(place for place, ids in enumerate(rows) if len(ids) > length)
        raise ValueError(
            f"sequences[{place}] has {len(rows[place])} ids, more than length={length}: cut longer texts, "
            f"[ids[:{length}] for ids in sequences], or leave length out"
        )
    padded = np.full((len(rows), length), value, np.int32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded


def _checked_ids(name: str, ids: Any, value: int) -> np.ndarray:
    """Returns one text's ids as an array."""
    try:
        array = np.asarray(ids)
    except ValueError:
        array = np.asarray(ids, object)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"{name} is {ids!r:.60}; expected a list of integers, the ids of a text's tokens (a tokenizer or a "
            "dictionary turns words into numbers)"
        )
    if array.size and (array.min() < 0 or array.max() > _IDS.max):
        raise ValueError(f"{name} holds ids from {array.min()} to {array.max()}; expected 0 to {_IDS.max}")
    words = np.flatnonzero(array != value)
    marks = np.flatnonzero(array[: words[-1] if len(words) else 0] == value)
    if len(marks):
        raise ValueError(
            f"{name} holds {value} at position {marks[0]}, before another id, but {value} marks padding, which models "
            "leave out: number tokens from 1, and pad at the end only; or give the id of padding, value=..."
        )
    return array


def stored_inputs(inputs: np.ndarray) -> np.ndarray | None:
    """Returns inputs as a federation stores them: bytes, floats of at most 32 bits, or ids of 32 bits.

    None for anything else: other types, bytes that aren't images `[D, H, W, K]`, or ids of more bits.

    Example:
        >>> stored_inputs(np.ones((3, 5))).dtype, stored_inputs(np.ones((3, 7), int)).dtype
        (dtype('float32'), dtype('int32'))
        >>> stored_inputs(np.ones((3, 5), np.uint8)) is None
        True
    """
    if inputs.dtype == np.uint8:
        return inputs if inputs.ndim == 4 else None
    if inputs.ndim < 2 or inputs.dtype.kind not in "fiu":
        return None
    if inputs.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return inputs.astype(np.float32 if inputs.itemsize > 4 else inputs.dtype.newbyteorder("="), copy=False)
    small = not inputs.size or (inputs.min() >= _IDS.min and inputs.max() <= _IDS.max)
    return inputs.astype(np.int32, copy=False) if small else None


def checked_examples(inputs: Any, labels: Any, name: str = "", most: int = _IDS.max) -> tuple[np.ndarray, np.ndarray]:
    """Validates raw inputs and labels, for training or testing, and returns them as they are stored.

    Args:
        inputs: `[D, ...]`, one of the kinds that `stored_inputs` takes.
        labels: `Int[D]`.
        name: the prefix of names in messages: "test " for a test set.
        most: the largest label.

    Returns:
        The inputs, and the labels as `Int32[D]`.

    Raises:
        ValueError: other types or shapes, labels out of range, or numbers that 32 bits don't hold.

    Example:
        >>> checked_examples(np.array([[0.5], [np.nan]]), [0, 1], "test ")
        Traceback (most recent call last):
        ValueError: test images[1] holds nan; expected numbers that are finite in 32 bits: leave such rows out
    """
    if is_frame(inputs):
        raise ValueError(
            f"{name}images: received a {type(inputs).__name__}, whose columns' names would be lost: make a data set of "
            "it, data.from_pandas(...), and pass that to data.federate; or pass an array, frame.to_numpy()."
        )
    check_unmasked(f"{name}images", inputs)
    inputs = to_array(inputs)
    labels = checked_labels(labels, f"{name}labels")
    stored = stored_inputs(inputs)
    if stored is None or len(inputs) != len(labels):
        raise ValueError(
            f"{name}images has shape {inputs.shape} and type {inputs.dtype} for {len(labels)} {name}labels; expected "
            f"[{len(labels)}, H, W, K] of uint8 (a grey image has K = 1: images[..., None]), or [{len(labels)}, ...] "
            "of floats, or of integers of 32 bits, which are token ids."
        )
    check_channels_last(f"{name}images", inputs.shape)
    check_held(f"{name}images", inputs, stored)
    if labels.min() < 0 or labels.max() > most:
        raise ValueError(f"{name}labels lie in {labels.min()}..{labels.max()}; expected 0..{most} (num_classes).")
    return stored, labels.astype(np.int32)


def check_held(name: str, inputs: np.ndarray, stored: np.ndarray) -> None:
    """Checks that ids aren't negative, and that numbers are finite as they are stored and keep their differences.

    Raises:
        ValueError: it names the first bad row.
    """
    given = np.asarray(inputs)
    if are_tokens(stored):
        if stored.size and stored.min() < 0:  # an embedding reads negative ids from its end
            row = int(np.argmax((stored < 0).reshape(len(stored), -1).any(1)))
            raise ValueError(
                f"{name}[{row}] holds {stored[row].min()}; expected token ids of 0 or above, as integers are ids: pass "
                "measurements as floats, .astype(np.float32)"
            )
        return
    if stored.dtype.kind != "f":
        return
    if not np.isfinite(stored).all():
        finite = np.isfinite(stored).reshape(len(stored), -1)
        row = int(np.argmin(finite.all(1)))
        value = given.reshape(len(stored), -1)[row, np.argmin(finite[row])]
        raise ValueError(
            f"{name}[{row}] holds {value}; expected numbers that are finite in 32 bits: leave such rows out"
        )
    if given.itemsize <= 4:
        return
    columns = given.reshape(-1, given.shape[-1])
    least, largest = columns.min(0), columns.max(0)
    farthest = np.finfo(np.float32).eps * np.maximum(-least, largest)  # that rounding can take a number
    for column in np.flatnonzero(farthest > _MOST_ROUNDED * (largest - least)).tolist():
        changed = rounding_matters(columns[:, column])
        if changed.any():
            place = int(np.argmax(changed))
            value = columns[place, column].item()
            raise ValueError(
                f"{name}[{place // (len(columns) // len(given))}] holds {value} in column {column}, which becomes "
                f"{float(np.float32(value))} in 32 bits: subtract the column's smallest number; if rounding is "
                "harmless, pass numbers of 32 bits, .astype(np.float32)"
            )


def rounding_matters(column: np.ndarray) -> np.ndarray:
    """Returns where 32 bits would change numbers by a hundredth of their range or more, `Bool[D]`."""
    spread = np.ptp(column)
    with np.errstate(over="ignore", invalid="ignore"):
        return (np.abs(column.astype(np.float32) - column) > _MOST_ROUNDED * spread) & (spread > 0)


def are_whole(numbers: np.ndarray) -> np.ndarray:
    """Returns which floating-point numbers are integers that their type tells apart from all others, `Bool[D]`.

    Example:
        >>> are_whole(np.array([3, 0.5, 2**24 + 2], np.float32))
        array([ True, False, False])
    """
    return (numbers == np.rint(numbers)) & (np.abs(numbers) < 2.0 ** (np.finfo(numbers.dtype).nmant + 1))


def check_one_type(train: Any, test: Any) -> None:
    """Raises `ValueError` if test inputs have another type, and so perhaps another scale, than training inputs."""
    if train.dtype != test.dtype:
        raise ValueError(f"training images are of {train.dtype} and test images of {test.dtype}; expected one type.")


def check_images(who: str, inputs: Any) -> None:
    """Raises `ValueError`, which begins with `who`, for inputs that aren't images `[D, H, W, K]`."""
    if inputs.ndim != 4 or are_tokens(inputs):
        raise ValueError(
            f"{who}: received inputs of shape {tuple(inputs.shape[1:])} and type {inputs.dtype}, must be images "
            "(height, width, channels): only pixels can be shifted, turned or mirrored; use methods that leave inputs "
            "as they are, methods=[fedavg,rebafl] for instance"
        )


def compute_constants(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns K means and standard deviations, bytes scaled to [0, 1]; a constant channel has standard deviation 1."""
    if are_tokens(images):
        return (0.0,), (1.0,)
    means = []
    stds = []
    for channel in range(images.shape[-1]):
        pixels = images[..., channel]
        if pixels.dtype == np.uint8:
            counts = np.zeros(256, np.int64)
            for start in range(0, len(pixels), _BLOCK):  # in blocks, since counting takes eight bytes a pixel
                counts += np.bincount(pixels[start : start + _BLOCK].ravel(), minlength=256)
            law = counts / pixels.size
            values = np.arange(256) / 255
            mean = float(law @ values)
            std = float(law @ (values - mean) ** 2) ** 0.5
        else:
            mean = float(pixels.mean(dtype=np.float64))
            std = float(pixels.std(dtype=np.float64))
        means.append(mean)
        # The deviation of equal numbers is rarely 0, because their mean is rounded.
        varies = pixels.min() < pixels.max() and std >= _LEAST_STD
        stds.append(std if varies else 1.0)
    return tuple(means), tuple(stds)
