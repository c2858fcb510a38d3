"""Checks on what a caller hands in, each with a message that says what was received and what is allowed."""

import difflib
import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

LARGEST = 3.4028235e38
"""The largest number of 32 bits: beyond it nothing is finite on a device."""


def finite_number(name: str, value: Any, low: float = 0.0, high: float = math.inf) -> float:
    """A finite number in a closed range.

    Args:
        name: what it is, for the message.
        value: what was received.
        low: the smallest allowed value.
        high: the largest allowed value.

    Returns:
        The value as a float.

    Raises:
        ValueError: it is something else.

    Example:
        >>> finite_number("mu", float("nan"))
        Traceback (most recent call last):
        ValueError: mu: received nan, must be a finite number of at least 0
    """
    if not is_number(value) or not abs(value) <= LARGEST or not low <= value <= high:
        at_least = f" of at least {low:g}" if math.isfinite(low) else ""
        bound = f" from {low:g} to {high:g}" if math.isfinite(high) else at_least
        raise ValueError(f"{name}: received {value!r}, must be a finite number{bound}")
    return float(value)


def whole_number(name: str, value: Any, low: int = 1) -> int:
    """An integer that is not too small.

    Args:
        name: what it is, for the message.
        value: what was received.
        low: the smallest allowed value.

    Returns:
        The value as an `int`; NumPy's are taken too.

    Raises:
        ValueError: it is something else; True and 2.0 are.

    Example:
        >>> whole_number("rounds", 0)
        Traceback (most recent call last):
        ValueError: rounds: received 0, must be a whole number of at least 1
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < low:
        raise ValueError(f"{name}: received {value!r}, must be a whole number of at least {low}")
    return number


def one_of(name: str, value: Any, allowed: Iterable[str]) -> str:
    """A name from a list.

    Args:
        name: what it is, for the message.
        value: what was received.
        allowed: the names.

    Returns:
        The value.

    Raises:
        ValueError: it is none of them; the message has the nearest.

    Example:
        >>> one_of("strategy", "vmpa", ["map", "vmap"])
        Traceback (most recent call last):
        ValueError: strategy: received 'vmpa'; allowed: map, vmap; did you mean 'vmap'?
    """
    names = list(allowed)
    if value not in names:
        near = difflib.get_close_matches(str(value), names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name}: received {value!r}; allowed: {', '.join(names)}{hint}")
    return value


def switch(name: str, value: Any) -> bool:
    """True or False, nothing like them.

    Args:
        name: what it is, for the message.
        value: what was received.

    Returns:
        The value.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name}: received {value!r}, must be true or false")
    return value


def is_number(value: Any) -> bool:
    """Whether a value is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def checked_labels(labels: np.ndarray) -> np.ndarray:
    """The labels as a one-dimensional integer array.

    Args:
        labels: `Int[D]`.

    Returns:
        The same as an array.

    Raises:
        ValueError: not one-dimensional, not integers, or empty.

    Example:
        >>> checked_labels([3, 1])
        array([3, 1])
    """
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(
            f"labels has shape {array.shape} and type {array.dtype}; expected one integer for each of at least one row."
        )
    return array


def per_channel(name: str, value, channels: int, *, positive: bool = False, also: str = "") -> np.ndarray:
    """One finite number for each channel of an image.

    Args:
        name: what the argument is called, for the message.
        value: a number, or one for each channel.
        channels: K.
        positive: whether each must be above 0.
        also: what else is allowed, for the message.

    Returns:
        `Float32[K]`.

    Raises:
        ValueError: something else.

    Example:
        >>> per_channel("mean", 0.5, 2)
        array([0.5, 0.5], dtype=float32)
        >>> per_channel("std", [1, 0], 2, positive=True)
        Traceback (most recent call last):
        ...
        ValueError: std=[1, 0]; expected finite numbers above 0, one or 2 (one for each channel).
    """
    try:
        array = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        array = np.float32(np.nan)
    if array.shape not in ((), (channels,)) or not np.isfinite(array).all() or (positive and (array <= 0).any()):
        rule = "finite numbers above 0" if positive else "finite numbers"
        raise ValueError(f"{name}={value!r}; expected {also}{rule}, one or {channels} (one for each channel).")
    return np.broadcast_to(array, (channels,)).copy()
