"""What a run writes of itself can be read back, however many, large or strange its numbers are."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import small_run
from report.conftest import edit_summary
from rounding import DOUBLE, FORMULA

from fedjax_bal.lab import RunFolder
from fedjax_bal.lab.summary import compare_compositions
from fedjax_bal.metrics import RoundResult, RunHistory, pooled_confusion, record_round, summarise_run
from fedjax_bal.report import write_run_page
from fedjax_bal.types import EvaluationResult

SLOW = pytest.param(1e99, marks=pytest.mark.slow)
STRANGE = [1e18, 1.5e18, 1e25, SLOW, 1e100, 1.1e100, 1e300, 5e-324, -1e25, 0, -0.0, 2**63, 10**30, 10**120, 10**400]
STRANGE += [float("inf"), -float("inf"), float("nan"), None]


@pytest.mark.parametrize("value", STRANGE, ids=str)
def test_whatever_a_metric_comes_to_is_read_back(make_run, tmp_path, value):
    folder = make_run(tmp_path / "run", rounds=1, classes=2, clients=1, seeds=(0,))
    reported = {"simulated_s": value, "epsilon": value}
    lines = [_recorded(reported) | {"round": round, "bytes_up": 1, "bytes_down": 1} for round in (1, 2)]
    found = summarise_run(RunHistory(lines, 2))
    edit_summary(folder, lambda summary: summary["runs"][0].update(found))
    (run,) = [run for run in RunFolder(folder).read().summary["runs"] if run["method"] == "fedavg"]
    assert {name: run[name] for name in found} == found
    assert run["epsilon"] == (value if value is not None and abs(value) <= 1e100 else None)
    twice = 2 * value if value is not None and 2 * abs(value) <= 1e100 else None
    assert run["simulated_s"] == (twice if twice is None else pytest.approx(twice, abs=FORMULA))
    if value == 1e99:  # drawing takes longer than all else
        assert write_run_page(folder).exists()


def _recorded(reported):
    """The metrics of a round in which a method's parts, or clients' speeds, report something."""
    confusion = np.array([[1, 0], [0, 1]])
    plan = SimpleNamespace(clients=np.zeros((1, 1), int), delivered=np.ones((1, 1), bool))
    federation = SimpleNamespace(num_clients=1, class_counts=np.ones((1, 2)), tests=None)
    result = RoundResult(federation, plan, EvaluationResult(confusion, np.float32(1)), reported, {})
    return json.loads(json.dumps(record_round(result)))


@pytest.mark.parametrize(
    ("estimates", "clients", "rank"),
    [
        ([[3.0, 1.0], [0.0, 0.0], [4.0, 2.0]], 2, 0.0),  # counts in place of shares, and a client without any
        ([[np.nan, 1.0], [0.25, 0.75], [-1.0, 2.0]], 1, 1.0),
        ([[np.inf, 1.0], [0.0, 0.0], [0.0, 0.0]], 0, None),
    ],
)
def test_estimates_are_compared_where_they_are_known(estimates, clients, rank):
    found = compare_compositions(np.array(estimates), np.array([[1, 3], [1, 3], [4, 0]]))
    assert found == {"clients": clients, "rank_correlation": rank}


def test_many_classes_and_runs_are_read_back_in_little_room(make_run, tmp_path):
    methods, seeds, classes, images = [f"m{place}" for place in range(6)], range(6), 1010, 3030
    folder = make_run(tmp_path / "run", methods=methods, seeds=seeds, rounds=1, classes=2, clients=1)
    edit_summary(folder, lambda summary: summary.update(class_names=[f"c{k}" for k in range(classes)], partitions=[]))
    texts = (folder / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(text) | {"per_class_accuracy": None} for text in texts]
    RunFolder(folder).write_metrics(lines)
    rng, matrices = np.random.default_rng(0), {}
    for run in ((method, seed) for method in methods for seed in seeds):
        matrices[run] = np.zeros((classes, classes), np.int32)
        np.add.at(matrices[run], tuple(rng.integers(0, classes, (2, images))), 1)
    RunFolder(folder).write_confusion(matrices)
    assert (folder / "confusion.npz").stat().st_size < 500_000
    runs = RunFolder(folder).read().summary["runs"]
    assert len(runs) == 36
    total = sum(matrices["m3", seed] for seed in seeds).astype(float)
    shares = pooled_confusion(runs, "m3")
    np.testing.assert_allclose(shares, total / total.sum(1, keepdims=True), rtol=DOUBLE)


@pytest.mark.slow
def test_a_run_with_many_classes_has_its_page(tmp_path):
    classes, rng = 1010, np.random.default_rng(0)
    labels = np.tile(np.arange(classes), 2)
    rows = rng.normal(size=(len(labels), 2)).astype(np.float32)
    arrays = {"train_images": rows, "train_labels": labels, "test_images": rows, "test_labels": labels}
    np.savez(tmp_path / "many.npz", **arrays)
    changes = [f"dataset={{name: npz, path: {tmp_path / 'many.npz'}}}", "partition={scheme: iid, clients: 2, seed: 0}"]
    changes += ["model={name: mlp, hidden: [2]}", "rounds=1", "training.batch_size=500", "seeds=[0]"]
    changes += ["selection.clients_per_round=2", "execution.devices=1", "availability=always", "delivery=always"]
    wanted = small_run.config(tmp_path, *changes, "methods=[{recipe: fedavg}]")
    small_run.run(tmp_path / "run", wanted)
    (run,) = RunFolder(tmp_path / "run").read().summary["runs"]
    assert run["confusion_matrix"].sum() == len(labels)
    assert run["confusion_matrix"].diagonal().sum() / len(labels) == pytest.approx(run["final_accuracy"])
    assert write_run_page(tmp_path / "run").exists() and not list((tmp_path / "run" / "plots").glob("confusion-*"))
    assert (tmp_path / "run" / "summary.json").stat().st_size < 200_000
