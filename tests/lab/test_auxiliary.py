"""The server's balanced rows: where they come from, and that no client has them."""

import numpy as np
import pytest
import small_run

from fedjax_bal import data
from fedjax_bal.config import ConfigError
from fedjax_bal.lab.setup import SetupError, set_up


def prepared(tmp_path, *overrides):
    """The first method's federation and fingerprint."""
    comparison = set_up(small_run.config(tmp_path, *overrides))
    return comparison.simulations[0].federation, comparison.fingerprints[0]


def test_training_rows_are_taken_out_before_the_partition(tmp_path):
    dataset = data.load("fashion_mnist_small")
    federation, _ = prepared(tmp_path, "auxiliary={per_class: 7}")
    taken = federation.auxiliary["balanced"]
    assert dataset.train_labels[taken].tolist() == np.repeat(np.arange(10), 7).tolist()
    assert not np.isin(taken, federation.rows).any()
    assert np.unique(taken).size == 70
    assert np.array_equal(federation.images, dataset.train_images)
    # every client still has what the scheme promises, counted by the labels of its own rows
    for client in range(10):
        own = federation.rows[federation.offsets[client] : federation.offsets[client + 1]]
        counts = np.bincount(dataset.train_labels[own], minlength=10)
        assert counts.tolist() == federation.class_counts[client].tolist()
        assert sorted(counts[counts > 0].tolist()) == [20, 20]


def test_all_other_rows_go_to_the_clients_and_none_twice(tmp_path):
    scheme = "partition={scheme: iid, clients: 10, seed: 0}"
    federation, _ = prepared(tmp_path, scheme, "auxiliary.per_class=3")
    taken = federation.auxiliary["balanced"]
    assert sorted([*taken, *federation.rows]) == list(range(len(federation.labels)))


def test_the_carved_rows_follow_the_partitions_seed_alone(tmp_path):
    rows = {
        (seed, clients): prepared(
            tmp_path, "auxiliary.per_class=5", f"partition.seed={seed}", f"partition.clients={clients}"
        )[0]
        .auxiliary["balanced"]
        .tolist()
        for seed, clients in ((0, 10), (0, 5), (1, 10))
    }
    assert rows[0, 10] == rows[0, 5] != rows[1, 10]


def test_test_images_are_the_first_of_each_class_and_the_partition_stays(tmp_path):
    dataset = data.load("fashion_mnist_small")
    without, _ = prepared(tmp_path)
    federation, _ = prepared(tmp_path, "auxiliary={per_class: 4, source: test}")
    assert np.array_equal(federation.rows, without.rows)
    assert np.array_equal(federation.offsets, without.offsets)
    images, labels = np.asarray(federation.images), np.asarray(federation.labels)
    taken = federation.auxiliary["balanced"]
    seen = dict.fromkeys(range(10), 0)
    expected = {label: [] for label in range(10)}
    for image, label in zip(dataset.test_images, dataset.test_labels.tolist(), strict=True):
        if seen[label] < 4:
            expected[label].append(image)
            seen[label] += 1
    assert labels[taken].tolist() == np.repeat(np.arange(10), 4).tolist()
    assert np.array_equal(images[taken], np.concatenate([expected[label] for label in range(10)]))
    assert np.array_equal(images[: len(dataset.train_images)], dataset.train_images)
    assert len(images) == len(dataset.train_images) + 40


def test_without_it_there_is_no_set_and_all_images_go_to_clients(tmp_path):
    federation, _ = prepared(tmp_path)
    assert dict(federation.auxiliary) == {}
    assert prepared(tmp_path, "auxiliary.source=test")[0].auxiliary == {}


def test_the_fingerprint_tells_them_apart(tmp_path):
    settings = ((), ("auxiliary.per_class=4",), ("auxiliary.per_class=5",), ("auxiliary={per_class: 4, source: test}",))
    prints = [prepared(tmp_path, *overrides)[1].tobytes() for overrides in settings]
    assert len(set(prints)) == 4
    assert prepared(tmp_path)[1].tobytes() == prints[0]


def test_methods_may_differ_in_it(tmp_path):
    comparison = set_up(small_run.config(tmp_path, "methods.1.auxiliary={per_class: 4}"))
    plain, balanced = (simulation.federation for simulation in comparison.simulations)
    assert dict(plain.auxiliary) == {}
    assert len(balanced.auxiliary["balanced"]) == 40


BAD = [
    (("auxiliary.per_class=-1",), ConfigError, "auxiliary.per_class: received -1, must be an integer of at least 0"),
    (("auxiliary.source=tset",), ConfigError, "auxiliary.source: received 'tset'.*did you mean 'test'"),
    (("auxiliary.per_clas=1",), ConfigError, "auxiliary.per_clas: unknown key.*did you mean 'per_class'"),
    (("auxiliary.per_class=100000",), SetupError, "auxiliary: per_class=100000, but class . has only"),
    (
        ("auxiliary={per_class: 201, source: test}",),
        SetupError,
        "auxiliary: per_class: received 201, but the test set has only 200 images of class 0",
    ),
]


@pytest.mark.parametrize(("overrides", "kind", "message"), BAD, ids=[overrides[0] for overrides, _, _ in BAD])
def test_what_cannot_be_is_refused_with_a_reason(tmp_path, overrides, kind, message):
    with pytest.raises(kind, match=message):
        prepared(tmp_path, *overrides)
