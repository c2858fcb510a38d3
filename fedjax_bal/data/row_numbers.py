"""Arrays of row numbers: grouped by label, and cut into clients."""

import numpy as np

MAX_ROWS = 2**31 - 1
"""Row numbers are 32-bit on the device."""


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
