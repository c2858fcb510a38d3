"""Partitions into clients of equal size: at random, or by shards of sorted data."""

import numpy as np

from fedjax_bal.annotations import Count, checked
from fedjax_bal.data.partition.dealing import equal_sizes, even_sizes, split_at_sizes


@checked
def iid(rng: np.random.Generator, labels: np.ndarray, num_clients: Count) -> list[np.ndarray]:
    """Deals all rows out at random, regardless of their labels.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; only their number matters.
        num_clients: N, at most D.

    Returns:
        N disjoint arrays of row numbers that cover all rows; their sizes differ by at most 1.

    Raises:
        ValueError: fewer rows than clients, or invalid arguments.

    Example:
        >>> [len(rows) for rows in iid(np.random.default_rng(0), np.zeros(7, int), 3)]
        [3, 2, 2]
    """
    sizes = equal_sizes(len(labels), num_clients)
    return split_at_sizes(rng.permutation(len(labels)), sizes)


@checked
def shards(
    rng: np.random.Generator, labels: np.ndarray, num_clients: Count, shards_per_client: Count = 2
) -> list[np.ndarray]:
    """Cuts the label-sorted data into equal shards and deals each client the same number of them.

    A client holds few labels, usually as many as shards; a shard may straddle two labels and a client may draw two
    shards of one label. If the rows don't divide evenly, the first shards are longer by one.

    Args:
        rng: source of randomness.
        labels: `Int[D]`.
        num_clients: N.
        shards_per_client: shards that each client gets; N times this at most D.

    Returns:
        N disjoint arrays of row numbers that cover all rows.

    Raises:
        ValueError: fewer rows than shards, or invalid arguments.

    Example:
        >>> parts = shards(np.random.default_rng(0), np.repeat(np.arange(4), 10), 4)
        >>> [len(rows) for rows in parts]
        [10, 10, 10, 10]

    References:
        McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017, section 3.
    """
    count = num_clients * shards_per_client
    if count > len(labels):
        raise ValueError(
            f"{num_clients} clients x {shards_per_client} shards for {len(labels)} rows; every shard needs at least "
            "one row: use fewer clients or fewer shards per client."
        )
    pieces = split_at_sizes(np.argsort(labels, kind="stable"), even_sizes(len(labels), count))
    dealt = rng.permutation(count)
    sizes = np.fromiter(map(len, pieces), np.int64, count)[dealt].reshape(num_clients, -1).sum(axis=1)
    return split_at_sizes(np.concatenate([pieces[shard] for shard in dealt.tolist()]), sizes)
