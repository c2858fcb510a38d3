"""Long tails: a few main clients of each class, or fewer rows of some classes before the set is partitioned."""

import math
from typing import Literal

import numpy as np

from fedjax_bal.annotations import Count, Factor, Share, checked
from fedjax_bal.data.partition.dealing import deal_by_class, rows_by_class, shuffled

Profile = Literal["exponential", "step"]
Order = Literal["label", "frequency", "random"]


@checked
def long_tail(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count,
    alpha: Share,
    quirk: bool = False,
) -> list[np.ndarray]:
    r"""Gives a share of each class to its main clients and spreads the rest evenly over all others.

    Client i is a main client of label i mod C, so a label has r = N / C of them. A main client gets m = alpha / r of
    its label, each of the N - r others t = (1 - alpha) / (N - r). Cut points are floor(n_c cumsum(shares)) in the order
    of the clients, and all rows are used. A class with few rows may leave clients without any of it.

    Args:
        rng: source of randomness: draws the rows of each client, whose numbers are fixed.
        labels: `Int[D]`; C is the number of different ones.
        num_clients: N, a multiple of C.
        alpha: share of each class that its main clients hold together, in [0, 1]; 1 / C spreads all classes evenly.
        quirk: take t = (1 - m) / (N - r) and divide all shares by their sum, as the authors' code does. With one main
            client per class the result is the same; with ten, alpha = 0.9 results in 0.497.

    Returns:
        N disjoint arrays of row numbers that cover all rows.

    Raises:
        ValueError: the number of clients is not a multiple of C, or invalid arguments.

    Example:
        >>> labels = np.repeat([0, 1], 100)
        >>> parts = long_tail(np.random.default_rng(0), labels, 4, alpha=0.8)
        >>> [np.bincount(labels[rows]).tolist() for rows in parts]
        [[40, 10], [10, 40], [40, 10], [10, 40]]

    References:
        IWDS (Tang et al.), experiment settings, "LLT"; the procedure is only in the code, GossipFL's "long-tail",
        which allows 10 or 100 clients.
    """
    by_class, sizes = rows_by_class(labels)
    classes = len(sizes)
    if num_clients % classes:
        raise ValueError(
            f"num_clients={num_clients} for {classes} classes; every class has the same number of main clients: "
            f"take a multiple of {classes}, as {math.ceil(num_clients / classes) * classes}."
        )
    mains = num_clients // classes
    main_share = alpha / mains
    rest = 1.0 - (main_share if quirk else alpha)
    is_main = np.arange(num_clients) % classes == np.arange(classes)[:, None]
    shares = np.where(is_main, main_share, rest / max(1, num_clients - mains))
    total = shares.sum(axis=1, keepdims=True)
    shares = np.divide(shares, total, out=np.full(shares.shape, 1.0 / num_clients), where=total > 0)
    points = np.cumsum(shares, axis=1)
    points /= points[:, -1:]  # a sum that falls short of 1 by a rounding error would lose a row
    # Rounded first, so that an integer cut point stays one: 0.9 of 10 rows are 9 even if the sum is 0.8999....
    ends = np.floor(np.round(points * sizes[:, None], 6)).astype(np.int64)
    return deal_by_class(shuffled(rng, by_class), np.diff(ends, axis=1, prepend=0))


@checked
def long_tailed(
    rng: np.random.Generator,
    labels: np.ndarray,
    imbalance_factor: Factor,
    profile: Profile = "exponential",
    order: Order = "label",
) -> np.ndarray:
    r"""Thins out classes until the largest one is `imbalance_factor` times the smallest.

    `"exponential"`: class c of C, in the order asked for, keeps floor(n_max IF^(-c / (C - 1))) rows. `"step"`: the
    first half of the classes, the larger half if C is odd, keeps n_max rows, the others floor(n_max / IF). n_max is
    the largest number for which every class has enough rows: in a balanced set, all rows of a class. Every class keeps
    at least one row.

    Args:
        rng: source of randomness: draws the rows that are kept, and a random order.
        labels: `Int[D]`; C is the number of different ones.
        imbalance_factor: IF, the largest class over the smallest, at least 1; 1 keeps a balanced set whole.
        profile: `"exponential"` or `"step"`.
        order: the order of classes, largest first: `"label"`, by label; `"frequency"`, the most frequent first;
            `"random"`.

    Returns:
        Row numbers in ascending order, without repetition.

    Raises:
        ValueError: a factor below 1, an unknown name, or invalid labels.

    Example:
        >>> labels = np.repeat(np.arange(10), 5000)
        >>> kept = long_tailed(np.random.default_rng(0), labels, 100)
        >>> np.bincount(labels[kept]).tolist()
        [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]

    References:
        Cao, Wei, Gaidon, Arechiga, Ma: Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, 2019,
        whose code makes CIFAR-10-LT this way; Shang, Lu, Huang, Wang: Federated Learning on Heterogeneous and
        Long-Tailed Data via Classifier Re-Training with Federated Features, 2022, which partitions the result by a
        Dirichlet distribution.
    """
    by_class, available = rows_by_class(labels)
    classes = len(available)
    if order == "label":
        ranked = np.arange(classes)
    elif order == "frequency":
        ranked = np.argsort(-available, kind="stable")
    else:
        ranked = rng.permutation(classes)
    rank = np.arange(classes)
    if profile == "exponential":
        shares = imbalance_factor ** (-rank / max(1, classes - 1))
    else:
        shares = np.where(rank < math.ceil(classes / 2), 1.0, 1 / imbalance_factor)
    largest = (available[ranked] / shares).min()
    kept = np.empty_like(available)
    # Rounded first, so that an integer stays one: 5000 * 0.01 may be 49.999...
    kept[ranked] = np.maximum(np.floor(np.round(largest * shares, 6)).astype(np.int64), 1)
    drawn = [rows[:count] for rows, count in zip(shuffled(rng, by_class), kept, strict=True)]
    return np.sort(np.concatenate(drawn))
