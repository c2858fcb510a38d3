"""Estimates of training time, and the paces that earlier runs leave behind."""

import json
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import small_run

from fedjax_bal import Execution
from fedjax_bal.lab import RunFolder, dry_run, paces
from fedjax_bal.lab.schema import RunId
from fedjax_bal.lab.sweep import SweepSession


def simulation(*shifts, every=1, tested=0, delivering=lambda number: [True, True]):
    """A simulation of four rounds and two devices, in which two clients of 3 and 5 steps are selected."""
    setting = SimpleNamespace(
        model=SimpleNamespace(name="", options=(), input_shape=()), batch_size=10, parts=(),
        execution=Execution(precision="float32"),
        evaluation=SimpleNamespace(every=every), test_images=tested, layout=SimpleNamespace(devices=2),
        parts_with=lambda role: [SimpleNamespace(needs_gradient=needs) for needs in shifts],
    )  # fmt: skip
    selector = SimpleNamespace(passes=1, closed_loop=False, asynchrony=None, init=lambda seed, clients: None)
    planner = SimpleNamespace(steps=lambda plan: np.array([3, 5]) * plan.delivered)
    return SimpleNamespace(
        setting=setting, selector=selector, planner=planner, rounds=4, federation=SimpleNamespace(num_clients=2),
        plan=lambda seed, number, state: (SimpleNamespace(delivered=np.array(delivering(number))), state),
    )  # fmt: skip


def test_steps_are_counted_with_gradients_and_evaluations():
    steps = 3 * 8 / 2  # rounds, steps of a round; divided by devices
    assert paces.count_steps(simulation(), 3, 0) == paces.count_steps(simulation(False), 3, 0) == steps
    assert paces.count_steps(simulation(True), 3, 0) == 2 * steps
    tested = paces.count_steps(simulation(every=2, tested=90), 3, 0)
    assert tested == pytest.approx(steps + 2 * 9 / 3 / 2)  # two evaluations of nine batches, forward only


def test_clients_that_are_absent_take_no_steps():
    half = simulation(delivering=lambda number: [number % 2 == 0, False])
    assert paces.count_steps(half, 4, 0) == 2 * 3 / 2  # the first client in two of four rounds


def test_a_selector_that_learns_is_asked_for_its_first_round_only():
    learns = simulation(delivering={0: [True, False]}.__getitem__)
    learns.selector.closed_loop = True
    assert paces.count_steps(learns, 4, 0) == 4 * 3 / 2


@pytest.mark.parametrize("busy", [False, True])
def test_finished_runs_of_the_same_kind_are_the_estimate(remembered, monkeypatch, busy):
    run = simulation(every=2, tested=90, delivering=lambda number: [number % 2 == 0, True])
    recorder = Mock()
    recorder.comparison.simulation.return_value = run
    for pace in (8.0, 4.0):
        callback = paces.Paces()
        clock = iter((0.0, 10.0, 1000.0, 1010.0))  # one dispatch was paused
        # A quarter of two processors, or both.
        worked = iter((0.0, 5.0, 6.0, 11.0) if busy else (0.0, 20.0, 40.0, 60.0))
        monkeypatch.setattr(paces.time, "perf_counter", lambda clock=clock: next(clock))
        monkeypatch.setattr(paces.time, "process_time", lambda worked=worked: next(worked))
        for clients_per_s in (pace, 0.0, pace, pace / 100, pace):
            callback.recorded(recorder, RunId(0, 0), clients_per_s)
        callback.ended(recorder, RunId(0, 0), None)
    steps = (4 * 5 + 2 * 3) / 2 + 2 * 9 / 3 / 2  # of a device: four rounds of one client, two of the other; evaluations
    seconds = [6 / pace / steps for pace in (8.0, 4.0)]
    alone = 1 / 4 if busy else 1
    expected = [seconds[0] * alone, seconds[0], seconds[1] * alone, seconds[1]]
    assert list(json.loads(remembered.read_text()).values()) == [pytest.approx(expected)]
    assert paces.pace_of(run, {}) == pytest.approx((min(expected), max(expected)))
    remembered.write_text("[broken")
    paces._remembered.cache_clear()
    timed = {("", (), (), 10, "float32"): paces.Pace(1.0, 2.0)}
    assert paces.pace_of(run, timed) == (1.0, 2.0)


def test_the_pace_of_a_cluster_is_not_that_of_this_machine():
    def remembers(backend):
        session = SweepSession(Mock(), Mock(), Mock(), max_batch_size=None, backend=backend, verbose=False)
        return any(isinstance(callback, paces.Paces) for callback in session.callbacks)

    assert remembers(None) and not remembers(Mock())


@pytest.mark.slow
def test_a_plan_needs_no_files(tmp_path):
    config = small_run.config(tmp_path, "dataset=cifar10", "model=mlp", "partition={scheme: iid, clients: 10}")
    lines = list(dry_run(config, RunFolder(tmp_path / "run"), None, None, fresh=False))
    assert any("50,000" in line for line in lines) and "without the files of cifar10" in " ".join(lines)
