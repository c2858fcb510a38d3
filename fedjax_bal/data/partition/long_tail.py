"""Long tails: of main clients of each class, of each client's classes, or of the whole set before it is partitioned."""

import math
from typing import Literal

import numpy as np

from fedjax_bal.annotations import Count, Factor, Positive, PositiveShare, Share, checked
from fedjax_bal.data.partition.dealing import cut_counts, deal_by_class, rows_by_class, shuffled
from fedjax_bal.data.partition.dirichlet import dirichlet

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
            f"use a multiple of {classes}, as {math.ceil(num_clients / classes) * classes}."
        )
    mains = num_clients // classes
    main_share = alpha / mains
    rest = 1.0 - (main_share if quirk else alpha)
    is_main = np.arange(num_clients) % classes == np.arange(classes)[:, None]
    shares = np.where(is_main, main_share, rest / max(1, num_clients - mains))
    total = shares.sum(axis=1, keepdims=True)
    shares = np.divide(shares, total, out=np.full(shares.shape, 1.0 / num_clients), where=total > 0)
    return deal_by_class(shuffled(rng, by_class), cut_counts(shares, sizes))


@checked
def local_long_tail(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count,
    local_factor: Factor,
    alpha: Positive = 5.0,
) -> list[np.ndarray]:
    r"""Divides classes by Dirichlet shares, then thins each client's rows to a long tail over its own order of classes.

    Classes are divided as in `dirichlet`, form "plain". Then a client with n rows of C classes, in random order, keeps
    at most max(1, round(n w_i)) rows of the i-th, drawn at random; w_i is IF^(-i / (C - 1)) divided by the sum of
    these. Other rows are left out.

    The first classes of the order have fewer rows than that and stay whole, so a client's largest class is less than
    IF times its smallest: 14 times for an IF of 50 and ten equal classes. `mixed_long_tail` with `tailed=1` reaches
    the factor.

    Args:
        rng: source of randomness.
        labels: `Int[D]`.
        num_clients: N, at most D.
        local_factor: IF, the largest class of a client over its smallest, if it had rows enough; at least 1.
        alpha: concentration of the Dirichlet distribution, above 0; large means that clients have equal numbers of
            rows of each class before they are thinned.

    Returns:
        N disjoint arrays of row numbers.

    Raises:
        ValueError: fewer rows than clients, or invalid arguments.

    Example:
        >>> labels = np.repeat(np.arange(4), 500)
        >>> parts = local_long_tail(np.random.default_rng(0), labels, 3, local_factor=10, alpha=1000)
        >>> [np.bincount(labels[rows]).tolist() for rows in parts]
        [[166, 173, 38, 81], [170, 37, 81, 167], [164, 80, 37, 164]]

    References:
        LongTailLib's `local_longtail`, 2026, which is published as code. Its alpha is a tenth of this one, below 1,
        and it draws again if a client has fewer than 40 rows.
    """
    parts = []
    for rows in dirichlet(rng, labels, num_clients, alpha, form="plain", min_size=1):
        by_class, sizes = rows_by_class(labels[rows])
        most = np.empty_like(sizes)
        most[rng.permutation(len(sizes))] = _tail_counts(len(rows), len(sizes), local_factor)
        kept = [own[:count] for own, count in zip(shuffled(rng, by_class), most.tolist(), strict=True)]
        parts.append(rows[np.concatenate(kept)])
    return parts


@checked
def mixed_long_tail(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count,
    local_factor: Factor,
    tailed: PositiveShare = 0.75,
) -> list[np.ndarray]:
    r"""Gives some clients a long tail, each over its own order of classes, and the others all classes evenly.

    A client is meant to have n = floor(D / N) rows. Of N clients floor(N tailed), at least one, are drawn at random and
    get max(1, round(n w_i)) rows of the i-th class in their random order; w_i is IF^(-i / (C - 1)) divided by the sum
    of these. The others get floor(n / C) rows of each class. Clients with a tail are served first, by their number,
    then the others; where a class runs out, a client gets what is left of it. Some rows may be left out.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; C is the number of different ones.
        num_clients: N.
        local_factor: IF, the largest class of a client with a tail over its smallest, at least 1.
        tailed: the share of clients with a tail, above 0; 1 gives one to every client.

    Returns:
        N disjoint arrays of row numbers.

    Raises:
        ValueError: too few rows to give every client some, or invalid arguments.

    Example:
        >>> labels = np.repeat(np.arange(4), 500)
        >>> parts = mixed_long_tail(np.random.default_rng(0), labels, 4, local_factor=10)
        >>> [np.bincount(labels[rows], minlength=4).tolist() for rows in parts]
        [[28, 125, 0, 125], [130, 28, 281, 61], [61, 281, 130, 28], [281, 28, 89, 61]]

    References:
        LongTailLib's `mixed_longtail`, 2026, which is published as code; there the share is 3/4.
    """
    by_class, sizes = rows_by_class(labels)
    each = len(labels) // num_clients
    with_tail = rng.choice(num_clients, max(1, math.floor(round(num_clients * tailed, 6))), replace=False)
    with_tail.sort()
    wanted = np.full((num_clients, len(sizes)), each // len(sizes))
    for client in with_tail.tolist():
        wanted[client, rng.permutation(len(sizes))] = _tail_counts(each, len(sizes), local_factor)
    served = np.concatenate([with_tail, np.setdiff1d(np.arange(num_clients), with_tail)])
    counts = np.empty_like(wanted)
    counts[served] = np.diff(np.minimum(np.cumsum(wanted[served], axis=0), sizes), axis=0, prepend=0)
    if not counts.any(axis=1).all():
        raise ValueError(
            f"{num_clients} clients for {len(labels)} rows of {len(sizes)} classes: some would be left without rows; "
            "use fewer."
        )
    return deal_by_class(shuffled(rng, by_class), counts.T)


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
    if profile == "exponential":
        shares = _exponential(classes, imbalance_factor)
    else:
        shares = np.where(np.arange(classes) < math.ceil(classes / 2), 1.0, 1 / imbalance_factor)
    largest = (available[ranked] / shares).min()
    kept = np.empty_like(available)
    # Rounded first, so that an integer stays one: 5000 * 0.01 may be 49.999...
    kept[ranked] = np.maximum(np.floor(np.round(largest * shares, 6)).astype(np.int64), 1)
    drawn = [rows[:count] for rows, count in zip(shuffled(rng, by_class), kept, strict=True)]
    return np.sort(np.concatenate(drawn))


def _exponential(classes: int, factor: float) -> np.ndarray:
    """Returns the sizes of classes from the largest to the smallest, relative to the largest, `Float[C]`."""
    return factor ** (-np.arange(classes) / max(1, classes - 1))


def _tail_counts(total: int, classes: int, factor: float) -> np.ndarray:
    """Divides a client's rows among its classes in an exponential tail, at least one for each, `Int[C]`."""
    shares = _exponential(classes, factor)
    return np.maximum(np.rint(total * shares / shares.sum()), 1).astype(np.int64)
