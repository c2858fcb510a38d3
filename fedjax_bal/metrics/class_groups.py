"""Accuracy by groups of classes, with many and with few training images, and over clients."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

_WORST = 10  # per cent of the clients


class Shots(NamedTuple):
    """The bounds of the groups of classes, in training images of a class.

    The defaults are those that the long-tail literature uses for CIFAR and ImageNet.

    Attributes:
        few: a class with fewer than this is a few-shot class.
        many: one with more than this is a many-shot class; those between are medium-shot.

    References:
        Liu et al., Large-scale long-tailed recognition in an open world (CVPR 2019), section 5.1.
    """

    few: int = 20
    many: int = 100


SHOTS = Shots()


def shot_groups(class_counts: np.ndarray, shots: Shots = SHOTS) -> dict[str, np.ndarray]:
    """Groups classes into many-, medium- and few-shot ones.

    Args:
        class_counts: training images of each class in the whole federation, `Int[C]`, copies left out.
        shots: the bounds of the groups.

    Returns:
        A mask `Bool[C]` for each of `many`, `medium` and `few`; a class without training images is in the last.

    Example:
        >>> {name: mask.tolist() for name, mask in shot_groups(np.array([101, 100, 19]), Shots()).items()}
        {'many': [True, False, False], 'medium': [False, True, False], 'few': [False, False, True]}
    """
    if shots.few > shots.many:
        raise ValueError(f"shots: received few={shots.few} above many={shots.many}; classes would be both: lower few")
    counts = np.asarray(class_counts)
    many, few = counts > shots.many, counts < shots.few
    return {"many": many, "medium": ~(many | few), "few": few}


def client_accuracies(hits: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Accuracy of each client that has test rows.

    Args:
        hits: its test rows that are classified correctly, `Int[K]`.
        sizes: how many it has, `Int[K]`.

    Returns:
        `Float64[at most K]`.

    Example:
        >>> client_accuracies(np.array([1, 0, 3]), np.array([2, 0, 3])).tolist()
        [0.5, 1.0]
    """
    tested = np.asarray(sizes) > 0
    return np.asarray(hits, float)[tested] / np.asarray(sizes, float)[tested]


def worst_tenth(accuracies: np.ndarray) -> float:
    """The mean of the worst tenth of the clients' accuracies, rounded up to whole clients."""
    return float(np.sort(accuracies)[: -(-len(accuracies) * _WORST // 100)].mean())


OVER_CLIENTS: Mapping[str, Callable[[np.ndarray], Any]] = {
    "": np.mean,
    "_std": np.std,
    "_worst10": worst_tenth,
    "_p10": lambda accuracies: np.percentile(accuracies, 10),
    "_p90": lambda accuracies: np.percentile(accuracies, 90),
}
"""Summaries of accuracies over clients, which count the same, by the ending of the metric's name.

The standard deviation has divisor K, the number of clients.
"""


def across_clients(name: str, accuracies: np.ndarray) -> dict[str, float | None]:
    """Summarises an accuracy over clients.

    Args:
        name: of the mean; the other names begin with it.
        accuracies: one of each client, `Float[K]`.

    Returns:
        A number for each of `OVER_CLIENTS`; all None without any client.

    Example:
        >>> {key: round(value, 2) for key, value in across_clients("it", np.array([1.0, 0.0, 0.5, 0.5])).items()}
        {'it': 0.5, 'it_std': 0.35, 'it_worst10': 0.0, 'it_p10': 0.15, 'it_p90': 0.85}
    """
    ranked = np.sort(accuracies)
    return {name + end: float(summary(ranked)) if len(ranked) else None for end, summary in OVER_CLIENTS.items()}
