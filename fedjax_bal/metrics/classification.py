"""What a confusion matrix says, and what a run's curve says."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def classification_metrics(confusion: np.ndarray) -> dict[str, Any]:
    """The usual scores of a classifier.

    Args:
        confusion: `Int[C, C]`, true class by predicted class.

    Returns:
        A dict of Python floats in [0, 1]: `test_accuracy`; `per_class_accuracy`, the recall of each class, None for a
        class without test images; `balanced_accuracy`, its mean over the classes that have some;
        `worst_class_accuracy`, its minimum; `macro_f1`, the mean F1 over the same classes, where a class that is
        never predicted counts 0.

    Example:
        >>> import numpy as np
        >>> scores = classification_metrics(np.array([[3, 1], [0, 4]]))
        >>> scores["test_accuracy"], scores["per_class_accuracy"], round(scores["macro_f1"], 3)
        (0.875, [0.75, 1.0], 0.873)
    """
    confusion = np.asarray(confusion, np.int64)
    hits, truths, guesses = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    tested = truths > 0
    recall = hits[tested] / truths[tested]
    f1 = 2 * hits[tested] / (truths + guesses)[tested]
    by_class = iter(recall)
    return {
        "test_accuracy": float(hits.sum() / truths.sum()),
        "balanced_accuracy": float(recall.mean()),
        "macro_f1": float(f1.mean()),
        "worst_class_accuracy": float(recall.min()),
        "per_class_accuracy": [float(next(by_class)) if there else None for there in tested],
    }


def summarise(accuracies: Sequence[float], rounds: Sequence[int], target: float | None) -> dict[str, Any]:
    """What one run's accuracy curve comes to.

    Args:
        accuracies: test accuracy of each evaluated round, in order.
        rounds: those rounds, counted from 1.
        target: the accuracy to reach, or None.

    Returns:
        `final_accuracy`; `best_accuracy`; `last5_accuracy` and `last10_accuracy`, the mean of the last five and ten
        evaluations (of all, where there are fewer); `rounds_to_target`, the first round that reached the target, or
        None. All None without any round.

    Example:
        >>> summarise([0.5, 0.75, 0.625], [1, 2, 3], 0.7)["rounds_to_target"]
        2
    """
    if not accuracies:
        names = ("final_accuracy", "best_accuracy", "last5_accuracy", "last10_accuracy", "rounds_to_target")
        return dict.fromkeys(names)
    reached = [round for round, value in zip(rounds, accuracies, strict=True) if target is not None and value >= target]
    return {
        "final_accuracy": float(accuracies[-1]),
        "best_accuracy": float(max(accuracies)),
        "last5_accuracy": float(np.mean(accuracies[-5:])),
        "last10_accuracy": float(np.mean(accuracies[-10:])),
        "rounds_to_target": reached[0] if reached else None,
    }


def divergences(class_counts: np.ndarray) -> np.ndarray:
    """How far from even the classes of each row are: KL(P || U) in nats.

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


def order_statistics(values: np.ndarray, most: int = 100) -> list[float]:
    """The values in rising order, to four digits; of more than `most`, evenly spaced ones of them.

    Example:
        >>> order_statistics(np.array([3.0, 1.0, 2.0]), most=2)
        [1.0, 3.0]
    """
    ranked = np.sort(values)
    if len(ranked) > most:
        ranked = ranked[np.linspace(0, len(ranked) - 1, most).round().astype(int)]
    return [round(float(value), 4) for value in ranked]


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
    ranks = [_ranks(np.asarray(table, np.float64)) for table in (first, second)]
    a, b = (rank - rank.mean(1, keepdims=True) for rank in ranks)
    lengths = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.where(lengths > 0, (a * b).sum(1) / np.where(lengths > 0, lengths, 1.0), np.nan)


def _ranks(table: np.ndarray) -> np.ndarray:
    """Mean ranks within each row: how many are smaller, and half of the others that are equal."""
    smaller = (table[:, None, :] < table[:, :, None]).sum(2)
    equal = (table[:, None, :] == table[:, :, None]).sum(2)
    return smaller + (equal - 1) / 2
