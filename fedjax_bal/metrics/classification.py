"""Scores of confusion matrices, class counts and rankings."""

import numpy as np


def accuracy(confusion: np.ndarray) -> float:
    """The share of the images that is classified correctly.

    Args:
        confusion: `Int[C, C]`, true class by predicted class, here and below.
    """
    return float(np.trace(confusion) / np.sum(confusion))


def recalls(confusion: np.ndarray) -> np.ndarray:
    """The share of each class that is classified correctly, `Float64[C]`; nan for a class without images."""
    hits, truths = np.diag(confusion), confusion.sum(1)
    return np.divide(hits, truths, out=np.full(len(hits), np.nan), where=truths > 0)


def balanced_accuracy(confusion: np.ndarray) -> float:
    """The mean of `recalls` over the classes that have images."""
    return mean_known(recalls(confusion))


def worst_class_accuracy(confusion: np.ndarray) -> float:
    """The smallest of `recalls`."""
    return float(np.nanmin(recalls(confusion)))


def macro_f1(confusion: np.ndarray) -> float:
    """The mean F1 over the classes that have images, 0 for one that is never predicted."""
    hits, truths, guesses = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    tested = truths > 0
    return float((2 * hits[tested] / (truths + guesses)[tested]).mean())


def mean_known(values: np.ndarray) -> float:
    """The mean of the values that are not nan; nan without any."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan


def divergences(class_counts: np.ndarray) -> np.ndarray:
    """The divergence of each row's classes from even ones, KL(P || U), in nats.

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
    """Positions of at most so many of `count` things, evenly spaced, the first and the last among them.

    Args:
        count: number of things.
        most: number to keep.

    Returns:
        `Int[at most most]`, rising.

    Example:
        >>> evenly_spaced(10, 4).tolist(), evenly_spaced(3, 4).tolist()
        ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.linspace(0, count - 1, min(count, most)).round().astype(int)


def order_statistics(values: np.ndarray, most: int = 100) -> list[float]:
    """The values in rising order, to four digits; of more than `most`, evenly spaced ones of them.

    Example:
        >>> order_statistics(np.array([3.0, 1.0, 2.0]), most=2)
        [1.0, 3.0]
    """
    return [round(float(value), 4) for value in np.sort(values)[evenly_spaced(len(values), most)]]


def rank_correlations(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation of each row of two tables; ties share their mean rank.

    Args:
        first: `[N, C]`.
        second: `[N, C]`.

    Returns:
        `Float64[N]`; nan for a row in which all numbers are equal.

    Example:
        >>> rank_correlations(np.array([[1, 2, 3]]), np.array([[10, 30, 20]])).tolist()
        [0.5]
    """
    # Imported late, as in `seeds`. Of all rows at once: `scipy.stats.spearmanr` takes one pair of rows a call.
    from scipy.stats import rankdata

    ranks = [rankdata(table, axis=1) for table in (first, second)]
    a, b = (rank - rank.mean(1, keepdims=True) for rank in ranks)
    lengths = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.divide((a * b).sum(1), lengths, out=np.full(len(a), np.nan), where=lengths > 0)
