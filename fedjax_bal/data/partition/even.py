"""Partitions into clients of equal size: at random, or by shards of sorted data."""

import numpy as np

from fedjax_bal.data.partition.arguments import check_clients_below_rows
from fedjax_bal.data.row_numbers import cut, even_sizes
from fedjax_bal.validate import check_generator, checked_labels, whole_number


def iid(rng: np.random.Generator, labels: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """Deals all rows out at random, regardless of their labels.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; only their number matters.
        num_clients: N, at most D.

    Returns:
        N disjoint arrays of row numbers that cover all rows; their sizes differ by at most 1.

    Raises:
        ValueError: fewer rows than clients, or arguments of the wrong kind.

    Example:
        >>> [len(rows) for rows in iid(np.random.default_rng(0), np.zeros(7, int), 3)]
        [3, 2, 2]
    """
    check_generator(rng)
    labels, num_clients = checked_labels(labels), whole_number("num_clients", num_clients)
    check_clients_below_rows(num_clients, len(labels))
    return cut(rng.permutation(len(labels)), even_sizes(len(labels), num_clients))


def shards(
    rng: np.random.Generator, labels: np.ndarray, num_clients: int, shards_per_client: int = 2
) -> list[np.ndarray]:
    """Cuts the label-sorted data into equal shards and deals each client the same number of them.

    A client holds few labels, usually as many as shards; a shard may straddle two labels and a client may draw two
    shards of one label. Where the rows don't divide, the first shards are longer by one.

    Args:
        rng: source of randomness.
        labels: `Int[D]`.
        num_clients: N.
        shards_per_client: shards that each client gets; N times this at most D.

    Returns:
        N disjoint arrays of row numbers that cover all rows.

    Raises:
        ValueError: fewer rows than shards, or arguments of the wrong kind.

    Example:
        >>> parts = shards(np.random.default_rng(0), np.repeat(np.arange(4), 10), 4)
        >>> [len(rows) for rows in parts]
        [10, 10, 10, 10]

    References:
        McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017, section 3.
    """
    check_generator(rng)
    labels, num_clients = checked_labels(labels), whole_number("num_clients", num_clients)
    count = num_clients * whole_number("shards_per_client", shards_per_client)
    if count > len(labels):
        raise ValueError(
            f"{num_clients} clients x {shards_per_client} shards for {len(labels)} rows; every shard needs at least "
            "one row: take fewer clients or fewer shards per client."
        )
    pieces = cut(np.argsort(labels, kind="stable"), even_sizes(len(labels), count))
    dealt = rng.permutation(count)
    sizes = np.fromiter(map(len, pieces), np.int64, count)[dealt].reshape(num_clients, -1).sum(axis=1)
    return cut(np.concatenate([pieces[shard] for shard in dealt.tolist()]), sizes)
