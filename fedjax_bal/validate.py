"""Checks of arguments; each message names the value received and the values allowed."""

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

LARGEST = 3.4028235e38
"""The largest finite number in 32 bits, the precision of the devices."""
SMALLEST = 1.1754943e-38
"""The smallest normal number above 0 in 32 bits; devices treat smaller ones as 0."""
OTHER_WORDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("labels", "target", "targets", "class", "y"), "label"),
        **dict.fromkeys(("user", "users", "client", "groups", "train_clients", "num_clients", "n_clients"), "clients"),
        **dict.fromkeys(("test_size", "test_share"), "test"),
        **dict.fromkeys(("features", "columns", "x"), "inputs"),
        **dict.fromkeys(("batch", "bs"), "batch_size"),
    }
)
"""Names of arguments in other libraries, and in habits -> their names here, where these exist."""
NO_OTHERS: Mapping[str, str] = MappingProxyType({})


def finite_number(name: str, value: Any, low: float = 0.0, high: float = math.inf) -> float:
    """Returns a finite number in a closed range as a float; raises `ValueError` otherwise.

    Example:
        >>> finite_number("mu", float("nan"))
        Traceback (most recent call last):
        ValueError: mu: received nan, must be a finite number of at least 0
    """
    number = is_number(value) or isinstance(value, np.floating | np.integer)
    if number and vanishes(value):
        raise ValueError(f"{name}: received {value!r}, which is 0 in 32 bits; set it to 0, or to a larger number")
    if not number or not abs(value) <= LARGEST or not low <= value <= high:
        at_least = f" of at least {low:g}" if math.isfinite(low) else ""
        bound = f" from {low:g} to {high:g}" if math.isfinite(high) else at_least
        raise ValueError(f"{name}: received {value!r}, must be a finite number{bound}{array_hint(value)}")
    return float(value)


def array_hint(value: Any) -> str:
    """Returns what to do with an array of jax, which may be traced, where a plain number is needed."""
    if not hasattr(value, "aval"):
        return ""
    return "; to differentiate or sweep it, pass it to a `make_round(...).step` in its hyperparameters, else float() it"


def vanishes(value: Any) -> bool:
    """Returns whether a nonzero number is treated as 0 on the devices.

    Example:
        >>> vanishes(1e-50), vanishes(0.0), vanishes(1e-30)
        (True, False, False)
    """
    return 0 < abs(value) < SMALLEST


def whole_number(name: str, value: Any, low: int = 1) -> int:
    """Returns an integer of at least `low`; raises `ValueError` otherwise, also for True and for 2.0.

    NumPy integers are accepted too, and returned as `int`.

    Example:
        >>> whole_number("rounds", 0)
        Traceback (most recent call last):
        ValueError: rounds: received 0, must be an integer of at least 1
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < low:
        raise ValueError(f"{name}: received {value!r}, must be an integer of at least {low}")
    return number


def one_of(name: str, value: Any, allowed: Iterable[str]) -> str:
    """Returns an allowed name unchanged; raises `ValueError`, which suggests the nearest name, for any other value.

    Example:
        >>> one_of("strategy", "vmpa", ["map", "vmap"])
        Traceback (most recent call last):
        ValueError: strategy: received 'vmpa'; did you mean 'vmap'? allowed: map, vmap
    """
    names = list(allowed)
    if value not in names:
        near = suggestion(value, names)
        raise ValueError(f"{name}: received {value!r}; {near}{' ' if near else ''}allowed: {', '.join(names)}")
    return value


def suggestion(value: Any, allowed: Iterable[str], also: Mapping[str, str] = NO_OTHERS) -> str:
    """Suggests allowed names for a word: its synonym, those that begin with it, or else the nearest.

    The text is empty if none is near.

    Example:
        >>> suggestion("worst", ["worst_class", "final"]), suggestion("mine", ["final"])
        ("did you mean 'worst_class'?", '')
    """
    names = list(allowed)
    other_word = [name for name in names if name == OTHER_WORDS.get(str(value))]
    longer = [name for name in names if name.startswith(f"{value}_")]
    lowered = {name.lower(): name for name in names}
    near = other_word or longer or [lowered[key] for key in difflib.get_close_matches(str(value).lower(), lowered, 1)]
    if not near:
        near = difflib.get_close_matches(str(value).lower(), also, 1)
    meant = [f"{name!r} ({also[name]})" if name in also else repr(name) for name in near]
    return f"did you mean {' or '.join(meant)}?" if near else ""


def is_number(value: Any) -> bool:
    """Returns whether a value is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_generator(rng: Any) -> None:
    """Raises `ValueError` unless `rng` is a NumPy generator.

    Example:
        >>> check_generator(0)
        Traceback (most recent call last):
        ValueError: rng: received 0, must be a generator of NumPy: np.random.default_rng(0)
    """
    if not isinstance(rng, np.random.Generator | np.random.RandomState):
        raise ValueError(f"rng: received {rng!r}, must be a generator of NumPy: np.random.default_rng(0)")


def check_unmasked(name: str, values: Any) -> None:
    """Raises `ValueError` for masked values, since conversion to a plain array would lose the mask.

    Example:
        >>> check_unmasked("labels", np.ma.masked_equal([0, 1], 0))
        Traceback (most recent call last):
        ValueError: labels: received masked values: leave their rows out, or fill them, labels.filled(0)
    """
    if np.ma.is_masked(values):
        raise ValueError(f"{name}: received masked values: leave their rows out, or fill them, {name}.filled(0)")


def checked_labels(labels: Any, name: str = "labels") -> np.ndarray:
    """Returns labels as a one-dimensional integer array.

    Args:
        labels: `Int[D]`.
        name: the argument's name, for the message.

    Returns:
        `Int[D]`.

    Raises:
        ValueError: labels are not one-dimensional, not integers, or empty.

    Example:
        >>> checked_labels([3, 1])
        array([3, 1])
    """
    check_unmasked(name, labels)
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name} has shape {array.shape} and type {array.dtype}; expected one integer for each of at least one row."
        )
    return array


def per_channel(name: str, value, channels: int, *, positive: bool = False, also: str = "") -> np.ndarray:
    """Returns one finite number for each channel of an image.

    Args:
        name: the argument's name, for the message.
        value: a number, or one for each channel.
        channels: K.
        positive: whether each must be above 0.
        also: other allowed values, for the message.

    Returns:
        `Float32[K]`.

    Raises:
        ValueError: any other value.

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


def check_channels_last(name: str, shape: tuple[int, ...]) -> None:
    """Raises `ValueError` for the shape of images with channels first, `[D, K, H, W]`, as in PyTorch.

    Only three channels, or one channel of a square image, are recognised: other shapes are ambiguous.

    Example:
        >>> check_channels_last("images", (50000, 3, 32, 32))  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        ValueError: images: received shape (50000, 3, 32, 32), must have the channels last, (50000, 32, 32, 3):
        np.moveaxis(images, 1, -1) moves them
    """
    if len(shape) != 4 or min(shape[2:]) <= 4:
        return
    count, channels, height, width = shape
    if channels == 3 or (channels == 1 and height == width):
        wanted = (count, height, width, channels)
        raise ValueError(
            f"{name}: received shape {shape}, must have the channels last, {wanted}: np.moveaxis({name}, 1, -1) moves "
            "them"
        )
