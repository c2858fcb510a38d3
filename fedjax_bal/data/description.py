"""Measures of a partition: class counts, client sizes, class imbalance, distances between clients."""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.balance import (
    hellinger_distance,
    jensen_shannon_distance,
    kl_divergence,
    kl_to_uniform,
    multiclass_imbalance_degree,
    weighted_cosine_similarity,
)

_MOST_PAIRED = 300  # clients that are compared with each other


class Distance(NamedTuple):
    """A distance of two class distributions p and q; 0 if they are equal.

    Attributes:
        compute: the function of p and q, `Float[..., C]`.
        formula: its formula, a sum over classes c.
        scale: its unit or the base of its logarithms, and its range.
    """

    compute: Callable[[Any, Any], Any]
    formula: str
    scale: str


DISTANCES: Mapping[str, Distance] = MappingProxyType(
    {
        "KL": Distance(kl_divergence, "sum p ln(p / q)", "from 0, in nats; may be infinite"),
        "Hellinger": Distance(hellinger_distance, "sqrt(sum (sqrt(p) - sqrt(q))^2 / 2)", "from 0 to 1"),
        "Jensen-Shannon": Distance(
            jensen_shannon_distance,
            "sqrt(sum (p log2(p / m) + q log2(q / m)) / 2), m = (p + q) / 2",
            "from 0 to 1, base 2",
        ),
    }
)
"""Name of each distance of class distributions -> how it is computed; KL is not symmetric, the others are metrics."""


class ClientDistances(NamedTuple):
    """A distance of clients' class distributions from that of all clients together, and from each other.

    Attributes:
        to_all: p is a client's distribution and q that of all, `Float[N']` for the N' clients that have rows.
        between: of every client from every other one, `Float[M (M - 1)]`; M is N', but at most 300 clients, evenly
            spaced, are compared.
    """

    to_all: np.ndarray
    between: np.ndarray


class Description(NamedTuple):
    """A partition in numbers.

    Attributes:
        class_counts: `Int[N, C]`, rows of each class that each client holds.
        kl_of_all: Kullback-Leibler divergence of all clients' rows together from uniform classes, in nats.
        kl_of_clients: the same for each client that has rows, `Float[N']`.
        mid: multiclass imbalance degree of all clients' rows together.
        wcs: weighted cosine similarity of the clients' classes to those of all.
        distances: for each of `DISTANCES`, by name, those of the clients.
        unused: rows of the data set that no client holds.
        repeated: listed rows minus distinct ones; a row that three clients share counts twice.
    """

    class_counts: np.ndarray
    kl_of_all: float
    kl_of_clients: np.ndarray
    mid: float
    wcs: float
    distances: Mapping[str, ClientDistances]
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
        client_distances(counts),
        len(labels) - distinct,
        len(rows) - distinct,
    )


def empty_clients(counts: Collection[int], clients: int) -> str:
    """Describes the share of clients without rows; empty if there are none.

    Args:
        counts: the number of empty clients in a partition, or in each of several, for which the range is given.
        clients: N.

    Example:
        >>> empty_clients([41], 100), empty_clients([0], 100)
        ('empty clients: 41% (41 of 100)', '')
        >>> empty_clients([0, 3], 2_000)
        'empty clients: 0% to 0.15% (0 to 3 of 2,000), depending on the partition'
    """
    low = min(counts)
    high = max(counts)
    if not high:
        return ""
    percent = lambda empty: f"{empty / clients:{'.0%' if not empty or 0.01 <= empty / clients <= 0.99 else '.2%'}}"
    if low == high:
        return f"empty clients: {percent(high)} ({high:,} of {clients:,})"
    return (
        f"empty clients: {percent(low)} to {percent(high)} ({low:,} to {high:,} of {clients:,}), depending on the "
        "partition"
    )


def client_distances(class_counts: np.ndarray, all_counts: Any = None) -> dict[str, ClientDistances]:
    """Computes the distances of clients' class distributions from that of all, and from each other.

    Args:
        class_counts: `Int[N, C]`; clients without rows are left out.
        all_counts: `Int[C]`, the class counts of all clients; None for the sum of these.

    Returns:
        The distances by the name of each of `DISTANCES`.

    Example:
        >>> distances = client_distances(np.array([[2, 2], [0, 4], [0, 0]]))
        >>> list(distances), [f"{own:.3f}" for own in distances["Hellinger"].to_all]
        (['KL', 'Hellinger', 'Jensen-Shannon'], ['0.185', '0.366'])
        >>> distances["KL"].between.round(4).tolist()
        [inf, 0.6931]
    """
    counts = np.asarray(class_counts, np.float64)
    together = counts.sum(axis=0) if all_counts is None else np.asarray(all_counts, np.float64)
    counts = counts[counts.sum(axis=1) > 0]
    laws = counts / counts.sum(axis=1, keepdims=True)
    paired = laws[np.unique(np.linspace(0, len(laws) - 1, min(len(laws), _MOST_PAIRED)).round().astype(int))]
    found = {}
    for name, distance in DISTANCES.items():
        to_all = distance.compute(laws, together / max(together.sum(), 1))
        # Row by row, because all pairs at once would take M x M x C numbers.
        rows = [np.delete(distance.compute(law, paired), place) for place, law in enumerate(paired)]
        found[name] = ClientDistances(_above_0(to_all), _above_0(np.concatenate([*rows, np.empty(0)])))
    return found


def _above_0(divergence) -> np.ndarray:
    """Raises divergences that are negative by a rounding error to 0."""
    return np.maximum(np.asarray(divergence), 0.0)
