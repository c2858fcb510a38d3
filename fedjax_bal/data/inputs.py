"""The kinds of inputs: pixels as bytes, other numbers, and token ids."""

from typing import Any

import numpy as np

from fedjax_bal.validate import check_channels_last, check_unmasked, checked_labels

_IDS = np.iinfo(np.int32)
_BLOCK = 4096  # images counted at a time


def are_tokens(inputs: Any) -> bool:
    """Returns whether an array holds token ids: integers other than bytes, which are pixels."""
    return inputs.dtype.kind in "iu" and inputs.dtype != np.uint8


def num_channels(inputs: Any) -> int:
    """Returns K, the length of the last axis, along which normalisation has separate constants; 1 for token ids."""
    return 1 if are_tokens(inputs) else inputs.shape[-1]


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
        ValueError: other types or shapes, labels out of range, or numbers that aren't finite in 32 bits.

    Example:
        >>> checked_examples(np.array([[0.5], [np.nan]]), [0, 1], "test ")
        Traceback (most recent call last):
        ValueError: test images[1] holds nan; expected numbers that are finite in 32 bits: leave such rows out
    """
    check_unmasked(f"{name}images", inputs)
    inputs = np.asarray(inputs)
    labels = checked_labels(labels, f"{name}labels")
    stored = stored_inputs(inputs)
    if stored is None or len(inputs) != len(labels):
        raise ValueError(
            f"{name}images has shape {inputs.shape} and type {inputs.dtype} for {len(labels)} {name}labels; expected "
            f"[{len(labels)}, H, W, K] of uint8 (a grey image has K = 1: images[..., None]), or [{len(labels)}, ...] "
            "of floats, or of integers of 32 bits, which are token ids."
        )
    check_channels_last(f"{name}images", inputs.shape)
    check_finite(f"{name}images", inputs, stored)
    if labels.min() < 0 or labels.max() > most:
        raise ValueError(f"{name}labels lie in {labels.min()}..{labels.max()}; expected 0..{most} (num_classes).")
    return stored, labels.astype(np.int32)


def check_finite(name: str, inputs: np.ndarray, stored: np.ndarray) -> None:
    """Raises `ValueError`, which names the first bad row, for inputs that aren't finite as they are stored."""
    if stored.dtype.kind != "f" or np.isfinite(stored).all():
        return
    finite = np.isfinite(stored).reshape(len(stored), -1)
    row = int(np.argmin(finite.all(1)))
    value = np.asarray(inputs).reshape(len(stored), -1)[row, np.argmin(finite[row])]
    raise ValueError(f"{name}[{row}] holds {value}; expected numbers that are finite in 32 bits: leave such rows out")


def check_one_type(train: Any, test: Any) -> None:
    """Raises `ValueError` if test inputs have another type, and so perhaps another scale, than training inputs."""
    if train.dtype != test.dtype:
        raise ValueError(f"training images are of {train.dtype} and test images of {test.dtype}; expected one type.")


def check_images(who: str, inputs: Any) -> None:
    """Raises `ValueError`, which begins with `who`, for inputs that aren't images `[D, H, W, K]`."""
    if inputs.ndim != 4 or are_tokens(inputs):
        raise ValueError(
            f"{who}: received inputs of shape {tuple(inputs.shape[1:])} and type {inputs.dtype}, must be images "
            "(height, width, channels): only pixels can be shifted, turned or mirrored"
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
        stds.append(std if std > 1e-6 else 1.0)
    return tuple(means), tuple(stds)
