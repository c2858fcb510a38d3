"""A partition where each client holds few classes, each divided among its owners by a Dirichlet law."""

from collections.abc import Sequence

import numpy as np

from fedjax_bal.data.partition.arguments import Concentration, checked_alpha, checked_pool
from fedjax_bal.data.partition.dealing import deal_by_class, shuffled
from fedjax_bal.data.partition.pathological import classes_of_clients, draw_owners
from fedjax_bal.data.partition.sizes import apportioned

_LEAST_SHARE = 1e-12


def extended_dirichlet(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: int,
    classes_per_client: int | Sequence[int],
    alpha: Concentration,
) -> list[np.ndarray]:
    """Limits the classes of each client, and divides each class among its owners in unequal proportions.

    Client i owns label i mod C and others at random. The shares of a label's owners are drawn from
    Dirichlet(alpha, ..., alpha); each gets at least one row. With a large alpha it is `pathological` in the form
    "niid_bench", with all classes for every client it is like `dirichlet`. A label without an owner is left out.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; C is the number of different ones.
        num_clients: N.
        classes_per_client: labels that each client holds, or a sequence of such numbers that the clients cycle
            through.
        alpha: concentration, above 0; small means that a few owners hold most of a class.

    Returns:
        N disjoint arrays of row numbers.

    Raises:
        ValueError: more classes per client than there are, a label with fewer rows than owners, or arguments of the
            wrong kind.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> parts = extended_dirichlet(np.random.default_rng(0), labels, 20, 2, alpha=0.5)
        >>> {len(np.unique(labels[rows])) for rows in parts}, sum(map(len, parts))
        ({2}, 1000)

    References:
        Li, Lyu: Convergence Analysis of Sequential Federated Learning on Heterogeneous Data, 2023, which
        allots the classes evenly, and may leave an owner without rows.
    """
    num_clients, by_class, sizes = checked_pool(rng, labels, num_clients)
    alpha = checked_alpha(alpha)
    owners, _ = draw_owners(rng, classes_of_clients(classes_per_client, num_clients, len(sizes)), len(sizes))
    counts = np.zeros((len(sizes), num_clients), np.int64)
    for label, size in enumerate(sizes.tolist()):
        members = np.flatnonzero(owners[:, label])
        if len(members) > size:
            raise ValueError(
                f"a label with {size} rows has {len(members)} owners, who get at least one row each; take fewer "
                "clients or fewer classes per client."
            )
        if len(members):
            shares = rng.dirichlet(np.full(len(members), alpha))
            counts[label, members] = apportioned(np.where(shares < _LEAST_SHARE, 0.0, shares), size, least=1)
    return deal_by_class(shuffled(rng, by_class), counts)
