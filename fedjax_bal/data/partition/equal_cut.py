"""A Dirichlet partition in groups of ten, which is then cut into clients of equal size."""

import numpy as np

from fedjax_bal.data.partition.arguments import Concentration, checked_alpha, checked_even_pool
from fedjax_bal.data.partition.dealing import deal_by_class
from fedjax_bal.data.partition.dirichlet import draw_counts
from fedjax_bal.data.row_numbers import cut

_GROUP = 10


def equal_cut_dirichlet(
    rng: np.random.Generator, labels: np.ndarray, num_clients: int, alpha: Concentration
) -> list[np.ndarray]:
    """Divides classes by a Dirichlet law among ten at a time, lines their rows up, and cuts the line into equal parts.

    The rows, in random order, are cut into ceil(N / 10) groups in proportion to their members, ten each but for the
    last. Within a group each class is divided among the members as in `dirichlet`, form "balanced", until every member
    has half of its mean share or more, or up to 100 times, when the draw that lacks the fewest rows is kept. Members
    stand in line, each with its rows class after class, and the line is cut into N parts whose sizes differ by at most
    1. So a client may have the last classes of one member and the first ones of the next.

    Args:
        rng: source of randomness.
        labels: `Int[D]`.
        num_clients: N, at most D.
        alpha: concentration, above 0; small means few classes per client.

    Returns:
        N disjoint arrays of row numbers that cover all rows.

    Raises:
        ValueError: fewer rows than clients, or arguments of the wrong kind.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> parts = equal_cut_dirichlet(np.random.default_rng(0), labels, 40, alpha=0.1)
        >>> {len(rows) for rows in parts}, len(np.unique(np.concatenate(parts)))
        ({25}, 1000)

    References:
        Lin et al.: Ensemble Distillation for Robust Model Fusion in Federated Learning (FedDF), 2020, the authors'
        code, which leaves out rows that don't divide; Shang et al.: Federated Learning on Heterogeneous and Long-Tailed
        Data via Classifier Re-Training with Federated Features (CReFF), 2022, the authors' code. Both need at least
        ten clients, and draw until it succeeds, which may never end.
    """
    by_class, quotas, sizes = checked_even_pool(rng, labels, num_clients)
    alpha, total, num_clients = checked_alpha(alpha), int(quotas.sum()), len(sizes)
    members = [min(_GROUP, num_clients - first) for first in range(0, num_clients, _GROUP)]
    ends = int(_GROUP / num_clients * total) * np.arange(1, len(members))
    owner = np.empty(total, np.int64)  # the group of each row
    owner[rng.permutation(total)] = np.searchsorted(ends, np.arange(total), side="right")
    line = []
    for group, count in enumerate(members):
        own = [rng.permutation(rows[owner[rows] == group]) for rows in by_class]
        held = np.array([len(rows) for rows in own])
        counts = draw_counts(rng, held, count, alpha, int(0.5 * held.sum() / count), level=True)
        line += deal_by_class(own, counts)
    return cut(np.concatenate(line), sizes)
