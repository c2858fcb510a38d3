"""A global long tail: fewer rows of some classes, before anything is shared out."""

import math
from numbers import Real
from typing import Literal

import numpy as np

from fedjax_bal.data.row_numbers import cut, rows_by_label
from fedjax_bal.validate import checked_labels


def long_tailed(
    rng: np.random.Generator,
    labels: np.ndarray,
    imbalance_factor: float,
    profile: Literal["exponential", "step"] = "exponential",
    order: Literal["label", "frequency", "random"] = "label",
) -> np.ndarray:
    r"""Keeps so many rows of each class that the largest class is `imbalance_factor` times the smallest.

    `"exponential"`: class c of C, in the order asked for, keeps floor(n_max IF^(-c / (C - 1))) rows. `"step"`: the
    first half of the classes, the larger half if C is odd, keeps n_max rows, the others floor(n_max / IF). n_max is
    the largest number for which every class has enough rows: of a balanced set, all the rows of a class. Every class
    keeps at least one row.

    Args:
        rng: source of randomness: which rows are kept, and the order where it is random.
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
        whose code makes CIFAR-10-LT so; Shang, Lu, Huang, Wang: Federated Learning on Heterogeneous and Long-Tailed
        Data via Classifier Re-Training with Federated Features, 2022, which shares the result out by a
        Dirichlet law.
    """
    labels = checked_labels(labels)
    if isinstance(imbalance_factor, bool) or not isinstance(imbalance_factor, Real) or not 1 <= imbalance_factor < 1e12:
        raise ValueError(
            f"imbalance_factor={imbalance_factor!r}; expected a number of at least 1, the largest class over the "
            "smallest (where a paper writes 0.01, this is 100)."
        )
    rows, _, available = rows_by_label(labels)
    kept = np.empty_like(available)
    ranked = _ranked(rng, available, order)
    kept[ranked] = _sizes(available[ranked], float(imbalance_factor), profile)
    drawn = [rng.permutation(mine)[:count] for mine, count in zip(cut(rows, available), kept, strict=True)]
    return np.sort(np.concatenate(drawn))


def _ranked(rng, available: np.ndarray, order: str) -> np.ndarray:
    """The classes from the one to be the largest to the one to be the smallest, `Int[C]`."""
    if order == "label":
        return np.arange(len(available))
    if order == "frequency":
        return np.argsort(-available, kind="stable")
    if order == "random":
        return rng.permutation(len(available))
    raise ValueError(f"order={order!r}; expected 'label', 'frequency' or 'random'.")


def _sizes(available: np.ndarray, factor: float, profile: str) -> np.ndarray:
    """Rows that each class keeps, `Int[C]`, from the largest to the smallest."""
    place, last = np.arange(len(available)), max(1, len(available) - 1)
    if profile == "exponential":
        shares = factor ** (-place / last)
    elif profile == "step":
        shares = np.where(place < math.ceil(len(available) / 2), 1.0, 1 / factor)
    else:
        raise ValueError(f"profile={profile!r}; expected 'exponential' or 'step'.")
    largest = (available / shares).min()
    # Rounded first, so that a whole number stays one: 5000 * 0.01 may come out as 49.999...
    return np.maximum(np.floor(np.round(largest * shares, 6)).astype(np.int64), 1)
