"""The kinds of inputs: pixels as bytes, other numbers, and token ids."""

from typing import Any

import numpy as np

_IDS = np.iinfo(np.int32)


def are_tokens(inputs: Any) -> bool:
    """Tells whether an array holds token ids: integers, unless they are bytes, which are pixels."""
    return inputs.dtype.kind in "iu" and inputs.dtype != np.uint8


def num_channels(inputs: Any) -> int:
    """Returns K, the length of the last axis, which normalisation treats by itself; 1 for token ids."""
    return 1 if are_tokens(inputs) else inputs.shape[-1]


def stored_inputs(inputs: np.ndarray) -> np.ndarray | None:
    """Returns inputs as a federation stores them: bytes, floats of at most 32 bits, or ids of 32 bits.

    None for what can't be an input: other types, bytes that are no images `[D, H, W, K]`, or ids of more bits.

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


def check_images(who: str, inputs: Any) -> None:
    """Raises `ValueError`, which begins with who needs images, for inputs of another shape than `[D, H, W, K]`."""
    if inputs.ndim != 4 or are_tokens(inputs):
        raise ValueError(
            f"{who}: received inputs of shape {tuple(inputs.shape[1:])} and type {inputs.dtype}, must be images "
            "(height, width, channels): only pixels can be shifted, turned or mirrored"
        )
