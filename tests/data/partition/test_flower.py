"""Partitions in distribution against those of Flower Datasets, where it is installed (the extra `flower`)."""

import numpy as np
import pytest
import scipy.stats
from data.partition.drawn import counts_of

from fedjax_bal.data import partition

# What another library warns of is not ours to mend.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
REASON = "Flower Datasets is not installed; pip install 'fedjax_bal[flower]'"
LABELS = np.repeat(np.arange(5), [120, 100, 80, 60, 40])
CLIENTS, SEEDS = 8, range(50)


@pytest.fixture(scope="module")
def flower():
    """The class counts of a partitioner of Flower Datasets, `Int[N, C]`, for a partitioner's name and arguments."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        datasets = pytest.importorskip("datasets", reason=REASON)
        partitioner = pytest.importorskip("flwr_datasets.partitioner", reason=REASON)
    datasets.disable_progress_bars()

    def drawn(name, labels=LABELS, **arguments):
        made = getattr(partitioner, f"{name}Partitioner")(**arguments)
        made.dataset = datasets.Dataset.from_dict({"label": labels.tolist()})
        held = [np.asarray(made.load_partition(client)["label"], int) for client in range(made.num_partitions)]
        return np.stack([np.bincount(own, minlength=labels.max() + 1) for own in held])

    return drawn


def ours(name, seed, labels=LABELS, **parameters):
    parts = partition.SCHEMES[name](np.random.default_rng(seed), labels, CLIENTS, **parameters)
    return counts_of(labels, parts)


def assert_alike(first, second):
    """Two samples of class counts `Int[S, N, C]`: a client's classes, its size, its largest class, its classes held.

    One client of each partition, since those of one depend on each other.
    """
    for client in (0, CLIENTS - 1):
        for label in (0, 4):
            assert_same_law(first[:, client, label], second[:, client, label])
        for statistic in (lambda c: c.sum(-1), lambda c: c.max(-1), lambda c: (c > 0).sum(-1)):
            assert_same_law(statistic(first[:, client]), statistic(second[:, client]))


def assert_same_law(first, second):
    if (first != first[0]).any() or (second != first[0]).any():
        assert scipy.stats.ks_2samp(first, second).pvalue > 0.002
        error = np.sqrt((first.var() + second.var()) / len(first))
        assert abs(first.mean() - second.mean()) <= 3.5 * error


PAIRS = {
    "dirichlet, plain": (
        ("dirichlet", {"alpha": 0.4, "form": "plain", "min_size": 0}),
        ("Dirichlet", {"alpha": 0.4, "self_balancing": False, "min_partition_size": 0}),
    ),
    "dirichlet, balanced": (
        ("dirichlet", {"alpha": 0.4, "min_size": 0}),
        ("Dirichlet", {"alpha": 0.4, "self_balancing": True, "min_partition_size": 0}),
    ),
    "dirichlet, nobody below ten": (
        ("dirichlet", {"alpha": 2.0, "min_size": 10}),
        ("Dirichlet", {"alpha": 2.0, "self_balancing": True, "min_partition_size": 10}),
    ),
    "client_dirichlet": (
        ("client_dirichlet", {"alpha": 0.4}),
        ("InnerDirichlet", {"alpha": 0.4, "partition_sizes": [50] * CLIENTS}),
    ),
    "pathological": (
        ("pathological", {"classes_per_client": 2, "form": "niid_bench"}),
        ("Pathological", {"num_classes_per_partition": 2, "class_assignment_mode": "first-deterministic"}),
    ),
    "shards": (("shards", {"shards_per_client": 2}), ("Shard", {"num_shards_per_partition": 2})),
}


def pair(flower, first, second):
    """Class counts `Int[S, N, C]` of a scheme and of a partitioner."""
    (scheme, parameters), (partitioner, arguments) = PAIRS[first][0], PAIRS[second][1]
    common = {"partition_by": "label"}
    if "partition_sizes" not in arguments:
        common["num_partitions"] = CLIENTS
    theirs = np.stack([flower(partitioner, seed=seed, **common, **arguments) for seed in SEEDS])
    return np.stack([ours(scheme, seed, **parameters) for seed in SEEDS]), theirs


@pytest.mark.parametrize("name", PAIRS)
def test_class_counts_have_the_same_law(flower, name):
    assert_alike(*pair(flower, name, name))


def test_other_laws_are_told_apart(flower):
    for first in ("dirichlet, balanced", "client_dirichlet", "pathological", "shards"):
        with pytest.raises(AssertionError):
            assert_alike(*pair(flower, first, "dirichlet, plain"))


def test_equal_sizes(flower):
    shuffled = np.random.default_rng(0).permutation(LABELS)  # Flower's takes rows in their order
    assert sorted(flower("Iid", shuffled, num_partitions=7).sum(1)) == sorted(
        len(rows) for rows in partition.iid(np.random.default_rng(0), LABELS, 7)
    )


@pytest.mark.parametrize(("name", "partitioner"), [("linear", "Linear"), ("square", "Square"), ("exponential",) * 2])
def test_sizes_by_position(flower, name, partitioner):
    labels = np.zeros(5000, int)
    alias = partition.resolve(name)
    theirs = flower(partitioner.capitalize(), labels, num_partitions=CLIENTS)[:, 0]
    drawn = ours(alias.scheme, 0, labels, **alias.parameters)[:, 0]
    # Theirs are rounded down, and the last one gets what is left.
    assert np.abs(drawn - theirs).max() <= CLIENTS
    assert np.abs(drawn - theirs)[:-1].max() <= 1


def test_given_sizes(flower):
    sizes = [1, 2, 3, 4, 50, 60, 70, 10]
    drawn = ours("quantity", 0, sizes="given", values=sizes)
    assert drawn.sum(1).tolist() == flower("Size", partition_sizes=sizes).sum(1).tolist() == sizes
