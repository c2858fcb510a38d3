"""A global long tail: fewer rows of some classes, before the set is partitioned."""

import math
from typing import Literal

import numpy as np

from fedjax_bal.data.partition.arguments import checked_number, checked_pool
from fedjax_bal.data.partition.dealing import shuffled
from fedjax_bal.validate import one_of


def long_tailed(
    rng: np.random.Generator,
    labels: np.ndarray,
    imbalance_factor: float,
    profile: Literal["exponential", "step"] = "exponential",
    order: Literal["label", "frequency", "random"] = "label",
) -> np.ndarray:
    r"""Thins out classes until the largest one is `imbalance_factor` times the smallest.

    `"exponential"`: class c of C, in the order asked for, keeps floor(n_max IF^(-c / (C - 1))) rows. `"step"`: the
    first half of the classes, the larger half if C is odd, keeps n_max rows, the others floor(n_max / IF). n_max is
    the largest number for which every class has enough rows: in a balanced set, all rows of a class. Every class keeps
    at least one row.

    Args:
        rng: source of randomness: decides which rows are kept, and a random order.
        labels: `Int[D]`; C is the number of different ones.
        imbalance_factor: IF, the largest class over the smallest, at least 1; 1 keeps a balanced set whole.
        profile: `"exponential"` or `"step"`.
        order: which class is the largest: `"label"`, the first one by label; `"frequency"`, the most frequent one;
            `"random"`, any, in random order.

    Returns:
        Row numbers in ascending order, without repetition.

    Raises:
        ValueError: a factor below 1, an unknown word, or labels of the wrong kind.

    Example:
        >>> labels = np.repeat(np.arange(10), 5000)
        >>> kept = long_tailed(np.random.default_rng(0), labels, 100)
        >>> np.bincount(labels[kept]).tolist()
        [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]

    References:
        Cao, Wei, Gaidon, Arechiga, Ma: Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, 2019,
        whose code makes CIFAR-10-LT this way; Shang, Lu, Huang, Wang: Federated Learning on Heterogeneous and
        Long-Tailed Data via Classifier Re-Training with Federated Features, 2022, which partitions the result by a
        Dirichlet law.
    """
    _, by_class, available = checked_pool(rng, labels, 1)
    rule = "a number of at least 1, the largest class over the smallest (where a paper writes 0.01, this is 100)"
    factor = checked_number("imbalance_factor", imbalance_factor, lambda value: 1 <= value < 1e12, rule)
    one_of("order", order, ("label", "frequency", "random"))
    one_of("profile", profile, ("exponential", "step"))
    kept = np.empty_like(available)
    ranked = _ranked(rng, available, order)
    kept[ranked] = _sizes(available[ranked], factor, profile)
    drawn = [rows[:count] for rows, count in zip(shuffled(rng, by_class), kept, strict=True)]
    return np.sort(np.concatenate(drawn))


def _ranked(rng, available: np.ndarray, order: str) -> np.ndarray:
    """Orders the classes from the largest to the smallest after thinning out, `Int[C]`."""
    if order == "label":
        return np.arange(len(available))
    if order == "frequency":
        return np.argsort(-available, kind="stable")
    return rng.permutation(len(available))


def _sizes(available: np.ndarray, factor: float, profile: str) -> np.ndarray:
    """Computes the rows that each class keeps, `Int[C]`, from the largest to the smallest."""
    place, last = np.arange(len(available)), max(1, len(available) - 1)
    if profile == "exponential":
        shares = factor ** (-place / last)
    else:
        shares = np.where(place < math.ceil(len(available) / 2), 1.0, 1 / factor)
    largest = (available / shares).min()
    # Rounded first, so that an integer stays one: 5000 * 0.01 may be 49.999...
    return np.maximum(np.floor(np.round(largest * shares, 6)).astype(np.int64), 1)
