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
        `final_accuracy`; `best_accuracy`; `last5_accuracy`, the mean of the last five evaluations (of all, where there
        are fewer); `rounds_to_target`, the first round that reached the target, or None. All None without any round.

    Example:
        >>> summarise([0.5, 0.75, 0.625], [1, 2, 3], 0.7)["rounds_to_target"]
        2
    """
    if not accuracies:
        return dict.fromkeys(("final_accuracy", "best_accuracy", "last5_accuracy", "rounds_to_target"))
    reached = [round for round, value in zip(rounds, accuracies, strict=True) if target is not None and value >= target]
    return {
        "final_accuracy": float(accuracies[-1]),
        "best_accuracy": float(max(accuracies)),
        "last5_accuracy": float(np.mean(accuracies[-5:])),
        "rounds_to_target": reached[0] if reached else None,
    }
