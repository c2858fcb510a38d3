"""What partitioners and the federation share: checks of their arguments, and cutting arrays into clients."""

import operator

import numpy as np

MAX_ROWS = 2**31 - 1
"""Row numbers are 32-bit on the device."""


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


def checked_count(name: str, value, minimum: int = 1) -> int:
    """A whole number that is not below a minimum.

    Args:
        name: what the argument is called, for the message.
        value: what was received.
        minimum: the smallest value allowed.

    Returns:
        The value as an `int`.

    Raises:
        ValueError: not a whole number, or below the minimum.

    Example:
        >>> checked_count("num_clients", 0)
        Traceback (most recent call last):
        ...
        ValueError: num_clients=0; expected a whole number of at least 1.
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < minimum:
        raise ValueError(f"{name}={value!r}; expected a whole number of at least {minimum}.")
    return number


def rows_by_label(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups row numbers by label.

    Args:
        labels: `Int[D]`.

    Returns:
        `rows` `Int[D]` sorted by label, ascending within one; `starts` `Int[C']` where each label present begins
        there; `sizes` `Int[C']` how many rows each has. Labels are in ascending order.

    Example:
        >>> rows_by_label(np.array([7, 2, 7]))
        (array([1, 0, 2]), array([0, 1]), array([1, 2]))
    """
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return np.argsort(codes, kind="stable"), np.cumsum(sizes) - sizes, sizes


def cut(rows: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Cuts an array into consecutive pieces.

    Args:
        rows: `Int[R]`.
        sizes: `Int[N]`, lengths of the pieces, R in all.

    Returns:
        N pieces, which are views.

    Example:
        >>> cut(np.array([5, 6, 7]), np.array([1, 0, 2]))
        [array([5]), array([], dtype=int64), array([6, 7])]
    """
    ends = np.cumsum(sizes)
    return [rows[start:end] for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]


def even_sizes(total: int, pieces: int) -> np.ndarray:
    """Divides a number into near-equal whole parts, the larger ones first.

    Args:
        total: what is divided.
        pieces: into how many.

    Returns:
        `Int[pieces]` that sum to `total` and differ by at most 1.

    Example:
        >>> even_sizes(8, 3)
        array([3, 3, 2])
    """
    return np.full(pieces, total // pieces) + (np.arange(pieces) < total % pieces)
