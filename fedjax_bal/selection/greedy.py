"""What greedy searches over clients share: their tables, a smallest score that rounding can't move, checks."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

TIE = 1e-12
"""Scores, in nats, that are no farther apart count as equal: 64-bit arithmetic can't tell them from rounding."""

_LARGEST = 1e15  # beyond it 64 bits don't hold every whole number, nor 32 bits every sum
_BLOCK = 2**15  # numbers worked on at a time: few enough for the processor's second cache


def smallest(scores: np.ndarray) -> np.ndarray:
    """Positions of the smallest score and of those equal to it.

    The same distribution reached with other numbers, say scaled or with its classes in another order, has the same
    score on paper and another last bit; both count as equal here, see `TIE`.

    Args:
        scores: `Float[K]`, in nats.

    Returns:
        Positions, ascending.

    Example:
        >>> smallest(np.array([0.7, 0.1 + 0.2, 0.3])).tolist()
        [1, 2]
    """
    return np.flatnonzero(scores <= scores.min() + TIE)


def spans(rows: int, columns: int) -> Iterator[slice]:
    """Spans of columns of a table, each of which fits into the processor's cache.

    Args:
        rows: rows of the table.
        columns: its columns.

    Yields:
        Slices, which together cover the columns once.

    Example:
        >>> [(span.start, span.stop) for span in spans(2**14, 5)]
        [(0, 2), (2, 4), (4, 5)]
    """
    width = max(1, _BLOCK // max(1, rows))
    for begin in range(0, columns, width):
        yield slice(begin, min(begin + width, columns))


def checked_table(name: str, table: Any, hint: str) -> np.ndarray:
    """A table of clients by classes, of numbers that are neither negative nor absurd.

    Args:
        name: what it is, for the message.
        table: what was received.
        hint: what a row holds, for the message.

    Returns:
        `Float64[N, C]`.

    Raises:
        ValueError: it is something else.
    """
    found = _numbers(name, table, lambda array: array.ndim == 2 and array.shape[1] > 0, f"[clients, classes], {hint}")
    wrong = ~((found >= 0) & (found <= _LARGEST))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{name}: received {found[row, column]} for client {row}, class {column}; must be from 0 to {_LARGEST:g}"
        )
    return found


def checked_sizes(sizes: Any) -> np.ndarray:
    """The clients' numbers of samples.

    Args:
        sizes: what was received.

    Returns:
        `Float64[N]`.

    Raises:
        ValueError: it is something else, or nobody has a sample.
    """
    found = _numbers("sizes", sizes, lambda array: array.ndim == 1, "[clients], the samples of each client")
    if not (np.isfinite(found) & (found >= 0)).all() or not found.any():
        raise ValueError("sizes: received a number that is negative or not finite, or only zeros; give sample counts")
    return found


def check_clients(name: str, known: int, num_clients: int) -> None:
    """Refuses a table that belongs to another federation.

    Args:
        name: what the table is.
        known: its clients.
        num_clients: those of the federation.

    Raises:
        ValueError: they differ.
    """
    if known != num_clients:
        raise ValueError(f"{name}: received {known} clients, but the federation has {num_clients}: give one row each")


def _numbers(name: str, values: Any, fits: Callable[[np.ndarray], bool], wanted: str) -> np.ndarray:
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: received {values!r}, must be numbers of shape {wanted}") from None
    if not fits(found):
        raise ValueError(f"{name}: received shape {found.shape}, must be {wanted}")
    return found
