"""Measures of a partition: class counts, client sizes, class imbalance."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_bal.balance import kl_to_uniform, multiclass_imbalance_degree, weighted_cosine_similarity


class Description(NamedTuple):
    """A partition in numbers.

    Attributes:
        class_counts: `Int[N, C]`, rows of each class that each client holds.
        kl_of_all: Kullback-Leibler divergence of all clients' rows together from uniform classes, in nats.
        kl_of_clients: the same for each client that has rows, `Float[N']`.
        mid: multiclass imbalance degree of all clients' rows together.
        wcs: weighted cosine similarity of the clients' classes to those of all.
        unused: rows of the data set that no client holds.
        repeated: listed rows minus distinct ones; a row that three clients share counts twice.
    """

    class_counts: np.ndarray
    kl_of_all: float
    kl_of_clients: np.ndarray
    mid: float
    wcs: float
    unused: int
    repeated: int

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each client, `Int[N]`."""
        return self.class_counts.sum(axis=1)


def describe(labels: np.ndarray, parts: Sequence[np.ndarray], num_classes: int) -> Description:
    """Describes a partition.

    Args:
        labels: `Int[D]` from 0 to C - 1, of all rows.
        parts: row numbers of each of the N clients.
        num_classes: C.

    Returns:
        The description.

    Example:
        >>> described = describe(np.array([0, 0, 1, 1, 1]), [np.array([0, 1]), np.array([2, 3])], 2)
        >>> described.class_counts.tolist(), described.mid, round(described.wcs, 4), described.unused
        ([[2, 0], [0, 2]], 0.0, 0.7071, 1)
    """
    sizes = [len(rows) for rows in parts]
    rows = np.concatenate([*parts, np.empty(0, np.int64)])
    cells = np.repeat(np.arange(len(parts)), sizes) * num_classes + labels[rows]
    counts = np.bincount(cells, minlength=len(parts) * num_classes).reshape(len(parts), num_classes)
    whole = counts.sum(axis=0)
    distinct = len(np.unique(rows))
    return Description(
        counts,
        _above_0(kl_to_uniform(whole)).item(),
        _above_0(kl_to_uniform(counts[counts.sum(axis=1) > 0])),
        _above_0(multiclass_imbalance_degree(whole)).item(),
        float(weighted_cosine_similarity(counts)),
        len(labels) - distinct,
        len(rows) - distinct,
    )


def _above_0(divergence) -> np.ndarray:
    """Raises divergences that are negative by a rounding error to 0."""
    return np.maximum(np.asarray(divergence), 0.0)
