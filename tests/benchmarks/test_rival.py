"""What rivals share, and who competes in which pass."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import _rival
import run_all

pytestmark = pytest.mark.slow


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "w.npz"
    np.savez(
        path,
        images=rng.integers(0, 256, (6, 2, 2, 3), np.uint8),
        labels=np.arange(6, dtype=np.int32),
        rows=np.array([5, 4, 3, 2, 1, 0], np.int32),
        offsets=np.array([0, 1, 3, 6]),
        cohorts=np.array([[0, 1], [2, 0]], np.int32),
        mean=np.array([0.1, 0.2, 0.3], np.float32),
        std=np.array([0.5, 0.25, 2.0], np.float32),
        spec=np.array(json.dumps({"name": "W0", "params": 7})),
    )
    return path


def test_clients_rounds_and_pixels_are_those_of_the_file(file):
    workload = _rival.load(file)
    assert workload.client(1).tolist() == [4, 3] and workload.size(2) == 3
    assert [workload.cohort(number).tolist() for number in range(3)] == [[0, 1], [2, 0], [0, 1]]
    expected = (workload.images / 255.0 - workload.mean) / workload.std
    np.testing.assert_allclose(workload.pixels(), expected, atol=1e-5)
    assert workload.pixels().dtype == np.float32
    assert _rival.load(file, 1).cohorts.tolist() == [[0], [2]]


def test_the_first_round_counts_for_nothing(file, monkeypatch):
    ticks = iter([0.0, 100.0, 102.0, 105.0])
    monkeypatch.setattr(_rival.time, "perf_counter", lambda: next(ticks))
    workload, watch = _rival.load(file), _rival.Stopwatch(4.0)
    trained = []
    for number in watch.rounds():
        trained.append(number)
        watch.lap(2.0 - number)
    figures = _rival.result(workload, watch)
    assert trained == [0, 1, 2]
    assert figures["round_seconds"] == [2.0, 3.0] and figures["train_loss"] == [2.0, 1.0, 0.0]
    assert figures["client_updates_per_s"] == 4 / 5
    assert figures["samples_per_s"] == (4 + 3) / 5  # rounds 1 and 2: clients 2 and 0, then 0 and 1


def test_a_network_of_another_size_is_refused(file, tmp_path):
    workload, watch = _rival.load(file), _rival.Stopwatch(1.0)
    watch.round_seconds, watch.train_loss = [2.0], [1.0, 1.0]
    said = {"processes": 1, "packages": ("numpy",)}
    with pytest.raises(SystemExit, match=r"toy: its network has 8 parameters, the workload's 7"):
        _rival.write(tmp_path / "out", "toy", workload, watch, params=8, **said)
    _rival.write(tmp_path / "out", "toy", workload, watch, params=7, **said)
    assert json.loads((tmp_path / "out").read_text())["client_updates_per_s"] == 2 / 2.0


@pytest.mark.parametrize("workload", run_all.WORKLOADS["cpu"])
def test_the_fastest_run_in_every_pass_and_all_in_the_first(workload):
    first, second = (set(run_all.contestants("cpu", workload, number)) for number in (0, 1))
    assert second == {run_all.OURS, *run_all.FASTEST[workload], *run_all.LOOPS}
    everyone = {run_all.OURS, *run_all.LOOPS, *run_all.ALL}
    assert first == {one for one in everyone if workload not in one.lacks}
    assert set(run_all.contestants("cpu", workload, 0, short=True)) == second
