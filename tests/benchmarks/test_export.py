"""What other programs read."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import export

from fedjax_bal import data
from fedjax_bal.bench.workloads import WORKLOADS, simulation_of, workload_federation

pytestmark = pytest.mark.slow


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["export", *map(str, arguments)])
    return export.main()


def test_a_file_holds_the_federation_and_its_cohorts(tmp_path, monkeypatch):
    file = tmp_path / "w2.npz"
    assert run(monkeypatch, "W2", file, "--rounds", 3) == 0
    federation = workload_federation(WORKLOADS["W2"])
    with np.load(file, allow_pickle=False) as archive:
        found = {name: archive[name] for name in archive.files}
    for name in ("images", "labels", "rows", "offsets", "mean", "std"):
        assert (found[name] == getattr(federation, name)).all()
    kinds = {"images": "u1", "labels": "i4", "rows": "i4", "offsets": "i8", "cohorts": "i4", "mean": "f4", "std": "f4"}
    assert {name: found[name].dtype.str[1:] for name in kinds} == kinds
    assert found["cohorts"].shape == (3, 10)
    assert all(len(set(cohort)) == 10 and set(cohort) <= set(range(50)) for cohort in found["cohorts"].tolist())
    assert found["spec"].shape == ()
    assert json.loads(str(found["spec"])) == {
        "name": "W2", "model": "conv2_lenet", "num_classes": 10, "input_shape": [28, 28, 1], "batch_size": 50,
        "local_epochs": 1, "optimizer": {"name": "sgd", "learning_rate": 0.01}, "params": 215_370,
    }  # fmt: skip


def test_cohorts_are_those_that_a_simulation_chooses():
    workload = WORKLOADS["W3"]._replace(clients_per_round=3)
    labels = np.arange(12) % 10
    federation = data.federate(np.zeros((12, 28, 28, 1), np.uint8), labels, np.split(np.arange(12), 6), 10)
    simulation = simulation_of(workload, federation)
    chosen = [simulation.plan(5, number, ())[0].clients[:, 0] for number in range(4)]
    assert (export.cohorts(workload, 6, 4, seed=5) == np.stack(chosen)).all()
