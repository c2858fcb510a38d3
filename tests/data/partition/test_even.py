import numpy as np
import pytest

from fedjax_bal.data import partition

ARGUMENTS = {"iid": (), "shards": (), "pathological": (1,), "dirichlet": (1.0,), "long_tail": (0.9,)}
ARGUMENTS |= {"flcir_realworld": (), "astraea": (), "normal_density": (), "quantity": ()}
ARGUMENTS |= {"client_dirichlet": (1.0,), "balanced_dirichlet": (1.0,), "extended_dirichlet": (1, 1.0)}
ARGUMENTS |= {"refilled_dirichlet": (1.0,), "equal_cut_dirichlet": (1.0,), "file": ("clients.txt",)}


def rng(seed=0):
    return np.random.default_rng(seed)


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


@pytest.mark.parametrize("clients", [0, -1, 1.5, "3", None, True])
def test_number_of_clients(clients):
    for scheme, extra in ARGUMENTS.items():
        with pytest.raises(ValueError, match=r"num_clients: .*integer of at least 1"):
            partition.SCHEMES[scheme](rng(), np.zeros(9, int), clients, *extra)


@pytest.mark.parametrize("labels", [[], [[1]], [0.5], ["a"], [True, False], 3])
def test_labels(labels):
    for scheme, extra in ARGUMENTS.items():
        with pytest.raises(ValueError, match="labels has shape"):
            partition.SCHEMES[scheme](rng(), np.array(labels), 1, *extra)


def test_shards_per_client():
    with pytest.raises(ValueError, match="shards_per_client: received 0"):
        partition.shards(rng(), np.zeros(9, int), 2, 0)
    with pytest.raises(ValueError, match="5 clients x 2 shards for 9 rows"):
        partition.shards(rng(), np.zeros(9, int), 5, 2)


def test_schemes():
    assert set(partition.SCHEMES) == {*ARGUMENTS, "natural"}
    assert all(partition.SCHEMES[name] is getattr(partition, name) for name in partition.SCHEMES)
