"""What a configuration holds out: how much, from where, and that neither partition nor training sees it."""

import numpy as np
import pytest
import small_run

from fedjax_bal import data
from fedjax_bal.config import ConfigError
from fedjax_bal.experiments.setup import SetupError, set_up

IID = "partition={scheme: iid, clients: 10, seed: 0}"


def prepared(tmp_path, *overrides):
    """The first method's federation and fingerprint."""
    comparison = set_up(small_run.config(tmp_path, *overrides))
    return comparison.simulations[0].federation, comparison.fingerprints[0]


@pytest.mark.parametrize(("key", "each"), [("per_class: 30", 30), ("fraction: 0.05", 50)])
def test_validation_images_are_taken_out_of_all_else(tmp_path, key, each):
    validation = f"evaluation.validation={{{key}}}"
    federation, _ = prepared(tmp_path, IID, "auxiliary.per_class=7", validation)
    taken, labels = federation.auxiliary["validation"], np.asarray(federation.labels)
    assert np.bincount(labels[taken]).tolist() == [each] * 10
    rows = [*taken, *federation.auxiliary["balanced"], *federation.rows]
    assert sorted(rows) == list(range(len(labels)))
    without, _ = prepared(tmp_path, IID, "auxiliary.per_class=7")
    assert np.array_equal(federation.auxiliary["balanced"], without.auxiliary["balanced"])


def test_clients_hold_out_their_share_and_train_on_the_rest(tmp_path):
    whole, _ = prepared(tmp_path)
    federation, _ = prepared(tmp_path, "evaluation.client_test.fraction=0.2")
    assert np.diff(federation.offsets).tolist() == [32] * 10
    assert np.diff(federation.tests.offsets).tolist() == [8] * 10
    for client in range(10):
        spans = [(x.rows, x.offsets) for x in (whole, federation, federation.tests)]
        before, training, tests = (rows[offsets[client] : offsets[client + 1]] for rows, offsets in spans)
        assert sorted([*training, *tests]) == sorted(before)
        counts = np.bincount(np.asarray(federation.labels)[training], minlength=10)
        assert federation.class_counts[client].tolist() == counts.tolist()


def test_clients_may_be_tested_on_the_test_set_instead(tmp_path):
    dataset, (whole, _) = data.load("fashion_mnist_small"), prepared(tmp_path)
    federation, _ = prepared(tmp_path, "evaluation.client_test.per_client=9")
    assert np.array_equal(federation.rows, whole.rows)
    tests, labels = federation.tests, np.asarray(federation.labels)
    own = [tests.rows[a:b] for a, b in zip(tests.offsets[:-1], tests.offsets[1:], strict=True)]
    for client, rows in enumerate(own):
        counts, held = np.bincount(labels[rows], minlength=10), federation.class_counts[client]
        assert sorted(counts[held > 0].tolist()) == [4, 5]  # half of each of two classes
        assert counts.sum() == 9
    first = len(dataset.train_labels)
    assert np.array_equal(np.asarray(federation.images)[tests.rows], dataset.test_images[tests.rows - first])


def test_what_is_held_out_belongs_to_what_a_run_is_begun_with(tmp_path):
    settings = ((), ("evaluation.validation.per_class=5",), ("evaluation.client_test.fraction=0.1",),
                ("evaluation.client_test.per_client=5",))  # fmt: skip
    assert len({prepared(tmp_path, *overrides)[1].tobytes() for overrides in settings}) == 4


BAD = [
    (("evaluation.validation.per_class=100000",), SetupError, "evaluation.validation: per_class=100000, but class"),
    (
        ("partition={scheme: iid, clients: 10000, seed: 0}", "evaluation.client_test.fraction=0.2"),
        SetupError,
        "evaluation.client_test: fraction: no client has two rows or more",
    ),
    (
        ("evaluation.validation={fraction: 0.1, per_class: 3}",),
        ConfigError,
        "evaluation.validation: received per_class 3 and fraction 0.1; give one of them and set the other to null",
    ),
    (
        ("evaluation.client_test={fraction: 0.1, per_client: 3}",),
        ConfigError,
        "evaluation.client_test: received fraction 0.1 and per_client 3; give one of them",
    ),
    (("evaluation.validation.fraction=1",), ConfigError, "fraction: received 1, must be .* above 0 and below 1, or nu"),
    (("evaluation.shots.few=300",), ConfigError, "evaluation.shots: received few 300 above many 100"),
    (
        ("training.early_stopping.patience=3",),
        ConfigError,
        "training.early_stopping: received 3, needs validation images: set evaluation.validation",
    ),
    (
        ("methods.0.training={early_stopping: {patience: 3}}",),
        ConfigError,
        "methods.0.training.early_stopping: received 3, needs validation images",
    ),
    (
        ("evaluation.personalised=2",),
        ConfigError,
        "evaluation.personalised: received 2, needs test images of clients: set evaluation.client_test",
    ),
    (
        (
            "evaluation={client_test: {fraction: 0.2}, personalised: 2}",
            "training.optimizer.schedule={name: cosine, length: 7}",
        ),
        SetupError,
        r"evaluation \(of fedavg\): personalised: the learning rate is 0 after the last of 7 rounds",
    ),
    (
        ("training.early_stopping.metric=validation_acuracy",),
        ConfigError,
        "training.early_stopping.metric: received 'validation_acuracy'; .*did you mean 'validation_accuracy'",
    ),
]


@pytest.mark.parametrize(("overrides", "kind", "message"), BAD, ids=[case[0][0] for case in BAD])
def test_what_cannot_be_is_refused_with_a_reason(tmp_path, overrides, kind, message):
    with pytest.raises(kind, match=message):
        prepared(tmp_path, *overrides)
