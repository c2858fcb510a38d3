"""The natural partition of a data set: one client for each writer or user."""

from typing import Literal

import numpy as np

from fedjax_bal.data.row_numbers import cut, rows_by_label
from fedjax_bal.validate import check_generator, checked_labels, one_of, whole_number


def natural(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: int | None,
    owners: np.ndarray | None,
    choose: Literal["random", "largest"] = "random",
    min_size: int = 1,
) -> list[np.ndarray]:
    """Makes a client of each writer or user of the data set, or of some of them.

    Clients are in the order of the owners' numbers, so the partition into all owners doesn't depend on the seed.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; only their number matters.
        num_clients: N, at most as many as there are owners with enough rows; None for all of these.
        owners: number of each row's writer or user, `Int[D]`; None for a data set without.
        choose: `"random"`, N owners, all equally likely; `"largest"`, those with most rows, of equal ones the first.
        min_size: rows that an owner must have to be chosen.

    Returns:
        N disjoint arrays of row numbers, ascending.

    Raises:
        ValueError: a data set without owners or with too few, or arguments of the wrong kind.

    Example:
        >>> owners = np.array([4, 7, 4, 9, 9, 9])
        >>> natural(np.random.default_rng(0), np.zeros(6, int), 2, owners, choose="largest")
        [array([0, 2]), array([3, 4, 5])]
    """
    check_generator(rng)
    labels = checked_labels(labels)
    one_of("choose", choose, ("random", "largest"))
    rows, _, sizes = rows_by_label(_checked_owners(owners, len(labels)))
    enough = np.flatnonzero(sizes >= whole_number("min_size", min_size))
    num_clients = len(enough) if num_clients is None else whole_number("num_clients", num_clients)
    if not 0 < num_clients <= len(enough):
        rows_each = f"at least {min_size} rows" if min_size > 1 else "rows"
        raise ValueError(
            f"{num_clients} clients, but {len(enough)} writers or users have {rows_each}; natural gives each of them "
            "one client: take at most as many."
        )
    if choose == "random":
        chosen = rng.choice(enough, num_clients, replace=False)
    else:
        chosen = enough[np.argsort(-sizes[enough], kind="stable")[:num_clients]]
    own = cut(rows, sizes)
    return [own[owner] for owner in np.sort(chosen).tolist()]


def _checked_owners(owners: np.ndarray | None, count: int) -> np.ndarray:
    if owners is None:
        raise ValueError(
            "natural needs a data set that says whose its images are: femnist, inaturalist2019, or npz with "
            "train_clients; take another scheme for this one."
        )
    owners = np.asarray(owners)
    if owners.shape != (count,) or owners.dtype.kind not in "iu":
        raise ValueError(f"owners has shape {owners.shape} and type {owners.dtype}; expected {count} integers.")
    return owners
