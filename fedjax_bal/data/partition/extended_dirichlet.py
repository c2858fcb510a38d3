"""A partition where each client holds few classes, and each class is shared out over its owners by a Dirichlet law."""

from collections.abc import Sequence

import numpy as np

from fedjax_bal.data.partition.pathological import classes_of_clients, draw_owners
from fedjax_bal.data.partition.shaped import deal_counts
from fedjax_bal.data.partition.sizes import apportioned, checked_alpha
from fedjax_bal.data.row_numbers import cut, rows_by_label
from fedjax_bal.validate import checked_labels, whole_number

_LARGEST_ALPHA, _LEAST_SHARE = 1e12, 1e-12


def extended_dirichlet(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: int,
    classes_per_client: int | Sequence[int],
    alpha: float,
) -> list[np.ndarray]:
    """Limits the classes of each client, and shares each class out over its owners with unequal proportions.

    Client i owns label i mod C and others at random. The shares of a label's owners are drawn from
    Dirichlet(alpha, ..., alpha); everybody gets at least one row of each label that it owns. With a large alpha it is
    `pathological` in the form "niid_bench", with all classes for everybody it is like `dirichlet`. A label that nobody
    owns is left out.

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
        ValueError: more classes a client than there are, a label with fewer rows than owners, or arguments of the
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
    labels, num_clients = checked_labels(labels), whole_number("num_clients", num_clients)
    concentration = min(checked_alpha(alpha), _LARGEST_ALPHA)
    rows, _, sizes = rows_by_label(labels)
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
            shares = rng.dirichlet(np.full(len(members), concentration))
            counts[label, members] = apportioned(np.where(shares < _LEAST_SHARE, 0.0, shares), size, least=1)
    return cut(*deal_counts(rng, rows, sizes, counts))
