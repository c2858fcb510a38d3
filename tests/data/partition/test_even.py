import numpy as np
import pytest
from data.partition.drawn import rng

from fedjax_bal.data import partition


def test_iid_sizes_and_randomness():
    labels = np.zeros(10, int)
    assert [len(part) for part in partition.iid(rng(), labels, 4)] == [3, 3, 2, 2]
    assert partition.iid(rng(1), labels, 1)[0].tolist() != partition.iid(rng(2), labels, 1)[0].tolist()


def test_shards_are_runs_of_the_sorted_labels():
    labels = rng().permutation(np.repeat(np.arange(10), 100))
    order = np.argsort(labels, kind="stable").reshape(100, 10)
    shard_of = {tuple(sorted(shard)): number for number, shard in enumerate(order.tolist())}
    drawn = []
    for part in partition.shards(rng(), labels, 50, 2):
        halves = part.reshape(2, 10)
        drawn += [shard_of[tuple(sorted(half))] for half in halves.tolist()]
        assert len(np.unique(labels[part])) <= 2
    assert sorted(drawn) == list(range(100))
    assert drawn != sorted(drawn)


def test_shards_per_client():
    with pytest.raises(ValueError, match="5 clients x 2 shards for 9 rows"):
        partition.shards(rng(), np.zeros(9, int), 5, 2)
