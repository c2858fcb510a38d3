"""Helpers of the greedy searches over clients: ties within rounding error, cache-sized spans, checks of tables."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

TIE = 1e-12
"""Largest difference between scores that count as equal, in nats: the rounding error of 64-bit arithmetic."""

_LARGEST = 1e15  # above this, integers in 64-bit floats and sums in 32-bit floats lose precision
_BLOCK = 2**15  # numbers processed at a time; they fit into a core's second-level cache


def smallest(scores: np.ndarray) -> np.ndarray:
    """Returns the positions of the smallest score and those equal to it, in ascending order.

    Scores, in nats, that differ by at most `TIE` count as equal: scaling a distribution or reordering its classes
    doesn't change the score mathematically, but may change its last bits.
    """
    return np.flatnonzero(scores <= scores.min() + TIE)


def spans(rows: int, columns: int) -> Iterator[slice]:
    """Yields consecutive spans of a table's columns, each small enough for the processor's cache."""
    width = max(1, _BLOCK // max(1, rows))
    for begin in range(0, columns, width):
        yield slice(begin, min(begin + width, columns))


def check_table(name: str, table: Any, hint: str) -> np.ndarray:
    """Checks a table of clients by classes, and returns it as `Float64[N, C]`; `hint` describes a row."""
    numbers = _numbers(name, table, lambda array: array.ndim == 2 and array.shape[1] > 0, f"[clients, classes], {hint}")
    wrong = ~((numbers >= 0) & (numbers <= _LARGEST))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{name}: received {numbers[row, column]} for client {row}, class {column}; must be from 0 to {_LARGEST:g}"
        )
    return numbers


def check_sizes(sizes: Any) -> np.ndarray:
    """Checks the clients' numbers of samples, and returns them as `Float64[N]`."""
    numbers = _numbers("sizes", sizes, lambda array: array.ndim == 1, "[clients], the samples of each client")
    if not (np.isfinite(numbers) & (numbers >= 0)).all() or not numbers.any():
        raise ValueError("sizes: received a number that is negative or not finite, or only zeros; give sample counts")
    return numbers


def check_clients(name: str, known: int, num_clients: int) -> None:
    """Raises `ValueError` if a table and the federation differ in the number of clients."""
    if known != num_clients:
        raise ValueError(f"{name}: received {known} clients, but the federation has {num_clients}: give one row each")


def _numbers(name: str, values: Any, fits: Callable[[np.ndarray], bool], wanted: str) -> np.ndarray:
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: received {values!r}, must be numbers of shape {wanted}") from None
    if not fits(numbers):
        raise ValueError(f"{name}: received shape {numbers.shape}, must be {wanted}")
    return numbers
