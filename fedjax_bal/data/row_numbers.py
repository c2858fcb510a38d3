"""Arrays of row numbers: grouping by label, and cutting into pieces."""

import numpy as np

MAX_ROWS = 2**31 - 1
"""Row numbers are 32-bit on the device."""


def rows_by_label(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns row numbers sorted by label, and the start and size of each present label's group, ascending."""
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return np.argsort(codes, kind="stable"), np.cumsum(sizes) - sizes, sizes


def cut(rows: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Cuts an array into consecutive pieces of given sizes, which are views."""
    ends = np.cumsum(sizes)
    return [rows[start:end] for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]


def even_sizes(total: int, pieces: int) -> np.ndarray:
    """Divides a number into near-equal whole parts, the larger ones first."""
    return np.full(pieces, total // pieces) + (np.arange(pieces) < total % pieces)
