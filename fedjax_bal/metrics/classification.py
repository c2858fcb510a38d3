"""Scores of confusion matrices, class counts and rankings, groups of classes, and accuracies over clients."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


def accuracy(confusion: np.ndarray) -> float:
    """Computes the fraction of images classified correctly.

    Args:
        confusion: `Int[C, C]`, true class by predicted class; the same in the functions below.
    """
    return float(np.trace(confusion) / np.sum(confusion))


def recalls(confusion: np.ndarray) -> np.ndarray:
    """Computes the fraction of each class classified correctly, `Float64[C]`; nan for a class without images."""
    hits = np.diag(confusion)
    truths = confusion.sum(1)
    return np.divide(hits, truths, out=np.full(len(hits), np.nan), where=truths > 0)


def balanced_accuracy(confusion: np.ndarray) -> float:
    """Computes the mean of `recalls` over the classes that have images."""
    return mean_known(recalls(confusion))


def worst_class_accuracy(confusion: np.ndarray) -> float:
    """Returns the smallest of `recalls`."""
    return float(np.nanmin(recalls(confusion)))


def macro_f1(confusion: np.ndarray) -> float:
    """Computes the mean F1 over the classes that have images; it is 0 for a class that is never predicted."""
    truths = confusion.sum(1)
    guesses = confusion.sum(0)
    tested = truths > 0
    return float((2 * np.diag(confusion)[tested] / (truths + guesses)[tested]).mean())


def mean_known(values: np.ndarray) -> float:
    """Computes the mean of the values that are not nan; nan if all are."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else np.nan


def divergences(class_counts: np.ndarray) -> np.ndarray:
    """Computes the divergence of each row's classes from uniform ones, KL(P || U), in nats.

    Args:
        class_counts: `[G, C]`; rows of zeros are left out.

    Returns:
        `Float64[K]`.

    Example:
        >>> divergences(np.array([[2, 2], [0, 0], [5, 0]])).round(4).tolist()
        [0.0, 0.6931]
    """
    counts = np.asarray(class_counts, np.float64)
    counts = counts[counts.sum(1) > 0]
    shares = counts / counts.sum(1, keepdims=True)
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return np.maximum(np.log(counts.shape[1]) + (shares * logs).sum(1), 0.0)


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """Selects at most `most` evenly spaced positions from 0 to `count` - 1, including the first and the last.

    Args:
        count: number of positions.
        most: largest number to keep.

    Returns:
        `Int[at most most]`, ascending.

    Example:
        >>> evenly_spaced(10, 4).tolist(), evenly_spaced(3, 4).tolist()
        ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.linspace(0, count - 1, min(count, most)).round().astype(int)


def order_statistics(values: np.ndarray, most: int = 100) -> list[float]:
    """Sorts values and rounds them to four digits; if there are more than `most`, keeps evenly spaced ones.

    Example:
        >>> order_statistics(np.array([3.0, 1.0, 2.0]), most=2)
        [1.0, 3.0]
    """
    return [round(float(value), 4) for value in np.sort(values)[evenly_spaced(len(values), most)]]


def rank_correlations(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Computes Spearman's rank correlation of each row of two tables; ties share their mean rank.

    Args:
        first: `[N, C]`.
        second: `[N, C]`.

    Returns:
        `Float64[N]`; nan for a row in which all numbers are equal.

    Example:
        >>> rank_correlations(np.array([[1, 2, 3]]), np.array([[10, 30, 20]])).tolist()
        [0.5]
    """
    # Imported late, as in `seeds`. Ranks all rows at once: `scipy.stats.spearmanr` takes one pair of rows per call.
    from scipy.stats import rankdata

    ranks = [rankdata(table, axis=1) for table in (first, second)]
    a, b = (rank - rank.mean(1, keepdims=True) for rank in ranks)
    lengths = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.divide((a * b).sum(1), lengths, out=np.full(len(a), np.nan), where=lengths > 0)


class Shots(NamedTuple):
    """The bounds of many-, medium- and few-shot classes, in training images of a class.

    The defaults are those that the long-tail literature uses for CIFAR and ImageNet.

    Attributes:
        few: a class with fewer images is a few-shot class.
        many: a class with more images is a many-shot class; other classes are medium-shot.

    References:
        Liu et al., Large-scale long-tailed recognition in an open world (CVPR 2019), section 5.1.
    """

    few: int = 20
    many: int = 100


SHOTS = Shots()


def shot_groups(class_counts: np.ndarray, shots: Shots = SHOTS) -> dict[str, np.ndarray]:
    """Groups classes into many-, medium- and few-shot ones.

    Args:
        class_counts: training images of each class in the whole federation, `Int[C]`, without copies.
        shots: the bounds of the groups.

    Returns:
        A mask `Bool[C]` for each of `many`, `medium` and `few`; a class without training images is few-shot.

    Example:
        >>> {name: mask.tolist() for name, mask in shot_groups(np.array([101, 100, 19]), Shots()).items()}
        {'many': [True, False, False], 'medium': [False, True, False], 'few': [False, False, True]}
    """
    if shots.few > shots.many:
        raise ValueError(f"shots: received few={shots.few} above many={shots.many}; classes would be both: lower few")
    counts = np.asarray(class_counts)
    many = counts > shots.many
    few = counts < shots.few
    return {"many": many, "medium": ~(many | few), "few": few}


def client_accuracies(hits: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Computes the accuracy of each client, in all classes together or in each.

    Args:
        hits: each client's number of test rows classified correctly, `Int[K]` or `Int[K, C]`.
        sizes: each client's number of test rows, of the same shape.

    Returns:
        `Float64`, of the same shape; nan without test rows.

    Example:
        >>> client_accuracies(np.array([1, 0, 3]), np.array([2, 0, 3])).tolist()
        [0.5, nan, 1.0]
    """
    sizes = np.asarray(sizes)
    return np.divide(hits, sizes, out=np.full(sizes.shape, np.nan), where=sizes > 0)


def class_means(hits: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Computes each client's mean accuracy over the classes of its test rows, `Float64[K]`; nan without test rows.

    Args:
        hits: each client's number of test rows classified correctly, by true class, `Int[K, C]`.
        sizes: each client's number of test rows, by class, `Int[K, C]`.

    Example:
        >>> class_means(np.array([[9, 0], [1, 0], [0, 0]]), np.array([[10, 2], [2, 0], [0, 0]])).tolist()
        [0.45, 0.5, nan]
    """
    accuracies = client_accuracies(hits, sizes)
    known = (np.asarray(sizes) > 0).sum(1)
    return np.divide(np.nansum(accuracies, 1), known, out=np.full(len(known), np.nan), where=known > 0)


def listed_clients(accuracies: np.ndarray, most: int | None = 1000) -> list[float | None] | None:
    """Rounds clients' accuracies to four digits, for JSON, in the order of the clients; None for more than `most`.

    Example:
        >>> listed_clients(np.array([2 / 3, np.nan, 0.0])), listed_clients(np.zeros(3), most=2)
        ([0.6667, None, 0.0], None)
    """
    if most is not None and len(accuracies) > most:
        return None
    return [None if np.isnan(value) else round(float(value), 4) for value in accuracies]


def ranked_known(values: np.ndarray) -> np.ndarray:
    """Returns the values that are not nan, ascending."""
    return np.sort(values)[: np.count_nonzero(~np.isnan(values))]


def worst_tenth(accuracies: np.ndarray) -> float:
    """Computes the mean accuracy of the worst tenth of the clients, rounded up to whole clients."""
    return float(np.sort(accuracies)[: -(-len(accuracies) // 10)].mean())


OVER_CLIENTS: Mapping[str, tuple[str, Callable[[np.ndarray], Any]]] = {
    "": ("Mean accuracy", np.mean),
    "_std": ("Standard deviation of the accuracy", np.std),
    "_worst10": ("Mean of the lowest tenth of accuracies", worst_tenth),
    "_p10": ("Tenth percentile of the accuracy", lambda accuracies: np.percentile(accuracies, 10)),
    "_p90": ("Ninetieth percentile of the accuracy", lambda accuracies: np.percentile(accuracies, 90)),
}
"""Ending of a metric's name -> its summary of accuracies over clients, in words and as a function.

All clients count the same. The standard deviation has divisor K, the number of clients.
"""


def across_clients(name: str, accuracies: np.ndarray) -> dict[str, float | None]:
    """Summarises an accuracy over clients.

    Args:
        name: the mean's name, with which the other names begin.
        accuracies: one for each client, `Float[K]`; nan for one that doesn't count.

    Returns:
        A number for each of `OVER_CLIENTS`; all None without clients that count.

    Example:
        >>> {key: round(value, 2) for key, value in across_clients("it", np.array([1.0, 0.0, 0.5, 0.5])).items()}
        {'it': 0.5, 'it_std': 0.35, 'it_worst10': 0.0, 'it_p10': 0.15, 'it_p90': 0.85}
    """
    ranked = ranked_known(accuracies)
    return {name + end: float(of(ranked)) if len(ranked) else None for end, (_, of) in OVER_CLIENTS.items()}
