"""Rows that would be a batch of their own."""

import numpy as np

from ..checks import whole_number
from ..types import Federation


def without_lone_rows(federation: Federation, batch_size: int) -> Federation:
    """Takes the last row from each client that has one more than whole batches.

    Batch normalisation takes mean and variance of a batch; of a single image they say little, and where its feature
    maps have shrunk to a pixel the variance is 0. The row is gone for good: from weights and class counts too. A client
    with a single row is left with none, and takes no part. Rows are sorted by class, so it is of the highest.

    Args:
        federation: the federation, its rows and offsets in NumPy.
        batch_size: B; nothing changes where it is 1.

    Returns:
        The federation; the same object where nobody has such a row.

    Raises:
        ValueError: a batch size below 1.

    Example:
        >>> from fedjax_bal.data import federate
        >>> labels = np.array([0, 1, 1, 0, 1])
        >>> federation = federate(np.zeros((5, 2, 2, 1), np.uint8), labels, [np.arange(3), np.arange(3, 5)], 2)
        >>> shorter = without_lone_rows(federation, 2)
        >>> shorter.offsets.tolist(), shorter.class_counts.tolist()
        ([0, 2, 4], [[1, 1], [1, 1]])

    References:
        CBFL (Li et al., 2023), the authors' code, which takes the sample out when data are loaded.
    """
    whole_number("batch_size", batch_size)
    offsets = np.asarray(federation.offsets)
    sizes = np.diff(offsets)
    lone = sizes % batch_size == 1 if batch_size > 1 else np.zeros(len(sizes), bool)
    if not lone.any():
        return federation
    places = offsets[1:][lone] - 1
    labels = np.asarray(federation.labels)[np.asarray(federation.rows)[places]]
    counts = np.array(federation.class_counts)
    counts[np.flatnonzero(lone), labels] -= 1
    return federation._replace(
        rows=np.delete(federation.rows, places),
        copy=np.delete(federation.copy, places),
        offsets=np.concatenate([[0], np.cumsum(sizes - lone)]).astype(offsets.dtype),
        class_counts=counts,
    )
