"""Estimates of training time, and the paces that earlier runs leave behind."""

import json
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import small_run

from fedjax_bal import Execution
from fedjax_bal.lab import RunFolder, dry_run, paces
from fedjax_bal.lab.sweep import SweepSession


def simulation(*shifts, every=1, tested=0):
    setting = SimpleNamespace(
        model=SimpleNamespace(name="", options=(), input_shape=()), batch_size=10, parts=(),
        execution=Execution(precision="float32"),
        evaluation=SimpleNamespace(every=every), test_images=tested, layout=SimpleNamespace(devices=2),
        parts_with=lambda role: [SimpleNamespace(needs_gradient=needs) for needs in shifts],
    )  # fmt: skip
    selector = SimpleNamespace(chains=2, chain_length=1, passes=1)
    return SimpleNamespace(setting=setting, selector=selector, steps_of_clients=np.array([3, 5]), rounds=4)


def test_steps_are_counted_with_gradients_and_evaluations():
    steps = 3 * 2 * 4 / 2  # rounds, clients, steps of a client; divided by devices
    assert paces.count_steps(simulation(), 3) == paces.count_steps(simulation(False), 3) == steps
    assert paces.count_steps(simulation(True), 3) == 2 * steps
    tested = paces.count_steps(simulation(every=2, tested=90), 3)
    assert tested == pytest.approx(steps + 2 * 9 / 3 / 2)  # two evaluations of nine batches, forward only


def test_finished_runs_of_the_same_kind_are_the_estimate(remembered):
    run = simulation(every=2, tested=90)
    recorder = Mock()
    recorder.comparison.simulation.return_value = run
    for pace in (8.0, 4.0):
        callback = paces.Paces()
        for clients_per_s in (pace, 0.0, pace / 100, pace):  # one dispatch was paused
            callback.recorded(recorder, (0, 0), clients_per_s)
        callback.ended(recorder, (0, 0), None)
    steps = 4 * 2 * 4 / 2 + 2 * 9 / 3 / 2  # of a device in four rounds of two clients, and in two evaluations
    seconds = [4 * 2 / pace / steps for pace in (8.0, 4.0)]
    assert list(json.loads(remembered.read_text()).values()) == [pytest.approx(seconds)]
    assert paces.pace_of(run, {}) == pytest.approx((min(seconds), max(seconds)))
    remembered.write_text("[broken")
    paces._remembered.cache_clear()
    timed = {("", (), (), 10, "float32"): paces.Pace(1.0, 2.0)}
    assert paces.pace_of(run, timed) == (1.0, 2.0)


def test_the_pace_of_a_cluster_is_not_that_of_this_machine():
    def remembers(backend):
        session = SweepSession(Mock(), Mock(), Mock(), max_batch_size=None, backend=backend, detail=None)
        return any(isinstance(callback, paces.Paces) for callback in session.callbacks)

    assert remembers(None) and not remembers(Mock())


@pytest.mark.slow
def test_a_plan_needs_no_files(tmp_path):
    config = small_run.config(tmp_path, "dataset=cifar10", "model=mlp", "partition={scheme: iid, clients: 10}")
    lines = list(dry_run(config, RunFolder(tmp_path / "run"), None, None, fresh=False))
    assert any("50,000" in line for line in lines) and "without the files of cifar10" in " ".join(lines)
