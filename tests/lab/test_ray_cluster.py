"""Sweeps on a cluster: workers that get lost, refuse or run out of memory; in this process, without Ray itself."""

import pickle
import re
import time
from collections import deque
from types import SimpleNamespace

import pytest
from fake_ray import ActorDiedError, FakeRay
from small_sweep import FEDAVG, carry, outcome, read_table, sweep, watch

from fedjax_bal.lab import ray_cluster as engine
from fedjax_bal.lab import training
from fedjax_bal.lab.ray_cluster import RayBackend, Resources
from fedjax_bal.lab.training import Started, Stopped

RATES = "sweep: [{training.optimizer.learning_rate: [0.05, 0.1, 0.2]}]"


@pytest.fixture(autouse=True)
def _jax_has_started(monkeypatch):
    monkeypatch.setattr(engine, "_start_jax", lambda devices, gpus: None)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What the sweep comes to in one process."""
    tmp_path = tmp_path_factory.mktemp("alone")
    rows, _, _ = carry(sweep(tmp_path, RATES, FEDAVG), tmp_path / "out", most=2)
    return rows, outcome(tmp_path / "out")


def far(tmp_path, ray, *, most=2, **options):
    """The sweep on a cluster: the rows, whether it was stopped, and what was said."""
    wanted, engine = sweep(tmp_path, RATES, FEDAVG), RayBackend(ray, 1, None)
    return carry(wanted, tmp_path / "out", most=most, backend=engine, **options)


def dies(*moments):
    """Makes workers die after some events, each a name and its number among those of that name."""

    def before(name, number):
        if (name, number) in moments:
            raise ActorDiedError("its process has died")

    return before


def figures(rows):
    return [(row["point"], row["method"], row["status"], row["final_accuracy"], row["failure"]) for row in rows]


@pytest.mark.slow
def test_whoever_is_killed_all_comes_to_the_same(alone, tmp_path, monkeypatch):
    moments = [("Started", 1), ("StepResult", 1), ("BuiltBatch", 3)]
    ray = FakeRay({"CPU": 2.0}, before=dies(*moments))
    monkeypatch.setattr("fedjax_bal.lab.sweep._SHARE", 1e9)
    tables = []
    rows, stopped, said = far(tmp_path, ray, should_stop=watch(tmp_path / "out", tables))
    assert not stopped and ray.alive == 0
    assert {0, 3} < {len(table) for table in tables}  # rows came as groups were done
    assert tables[-1] == read_table(tmp_path / "out")
    assert said.count("its worker was killed, or its machine is gone; resuming after round") == len(moments)
    assert figures(rows) == figures(alone[0])
    assert outcome(tmp_path / "out") == alone[1]


@pytest.mark.slow
def test_a_group_that_never_gets_on_is_given_up_and_the_others_are_done(tmp_path):
    rows, _, said = far(tmp_path, FakeRay(before=dies(*(("Started", number) for number in (1, 2, 3)))))
    assert sorted(row["status"] for row in rows) == ["done", "done", "failed"]
    [failed] = [row for row in rows if row["status"] == "failed"]
    assert failed["failure"] == "its worker was killed, or its machine is gone (tried 3 times without getting on)"
    assert said.count("resuming after round 0") == 2


@pytest.mark.slow
def test_a_stop_saves_what_trains_and_drops_what_waits(alone, tmp_path):
    asked, ray = iter((False,) + (True,) * 99), FakeRay({"CPU": 2.0})
    _, stopped, said = far(tmp_path, ray, should_stop=lambda: next(asked))
    assert stopped and ray.alive == 0 and "finished after" not in said
    rows, stopped, _ = far(tmp_path, FakeRay())
    assert not stopped
    assert figures(rows) == figures(alone[0])
    assert outcome(tmp_path / "out") == alone[1]


def test_a_worker_that_hangs_is_named_and_one_stop_ends_it(monkeypatch):
    for name in ("_SILENCE_S", "_STOP_S"):
        monkeypatch.setattr(engine, name, 0.02)
    said, ray = [], FakeRay({"CPU": 2.0})
    backend = RayBackend(ray, 1, None, said.append)

    def send(training):
        ray.alive += 1
        actor = SimpleNamespace(alive=True, stop=SimpleNamespace(remote=lambda: None))
        return engine.RemoteBatch(training, actor, training, time.monotonic(), Started("here", training), built=True)

    monkeypatch.setattr(ray, "wait", lambda streams, timeout: ([], streams))
    monkeypatch.setattr(backend, "_send", send)
    with pytest.raises(Stopped):
        list(backend.train(deque(["1", "2"]), lambda: len(said) >= 4))
    assert ray.alive == 0
    for worker_ in "12":
        own = [text for text in said if text.startswith(f"worker {worker_} on here hasn't answered for")]
        assert ["Ctrl-C ends the sweep" in text for text in own[:2]] == [True] * 2 and "and is ended" in own[-1]
        assert len(own) < 7  # after twice as long each time


def test_what_does_not_fit_there_is_halved_and_then_left_out(tmp_path, monkeypatch):
    tried = []

    def refuse(members, snapshots):
        tried.append(len(members))
        raise ValueError("needs 7.0 GB")

    monkeypatch.setattr(training, "open_stack", refuse)
    rows, _, _ = far(tmp_path, FakeRay(), most=3)
    assert sorted(tried) == [1, 1, 1, 2, 3]
    assert {(row["status"], row["failure"]) for row in rows} == {("failed", "needs 7.0 GB")}


def _with_sent(monkeypatch, change):
    """Changes what a worker's `train` is called with: versions, jobs and the data's folder."""
    train = engine.Worker.train
    monkeypatch.setattr(engine.Worker, "train", lambda self, *sent: train(self, *change(*sent)))


def _other_jax(monkeypatch):
    _with_sent(monkeypatch, lambda versions, *rest: ({**versions, "jax": "0.9.9"}, *rest))


def _other_random_numbers(monkeypatch):
    _with_sent(monkeypatch, lambda versions, *rest: ({**versions, "jax_random_seed_offset": "5"}, *rest))


def _other_data(monkeypatch):
    def change(versions, jobs, data_dir):
        spoilt = [job._replace(fingerprint=job.fingerprint ^ 1) for job in pickle.loads(jobs)]
        return versions, pickle.dumps(spoilt), data_dir

    _with_sent(monkeypatch, change)


def _no_data(monkeypatch):
    def missing(*_, **__):
        raise ValueError("dataset: there is no folder data")

    monkeypatch.setattr(engine, "set_up", missing)


def _broken(monkeypatch):
    def broken(*_):
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(engine, "train_batch", broken)


REFUSED = [
    (_other_jax, "on .*: jax .* in place of 0.9.9; install the same versions on all machines"),
    (_other_random_numbers, "on .*: jax_random_seed_offset 0 in place of 5; .* set the same JAX_\\* variables"),
    (_other_data, "on .*: images, labels, partition or traces are others there than here"),
    (_no_data, "on .*: dataset: there is no folder data"),
    (_broken, "the worker failed: KeyError: 'a mistake of ours'"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("spoil", "message"), REFUSED, ids=[spoil.__name__[1:] for spoil, _ in REFUSED])
def test_what_is_wrong_with_a_machine_is_told(tmp_path, monkeypatch, spoil, message):
    spoil(monkeypatch)
    ray = FakeRay()
    rows, stopped, _ = far(tmp_path, ray, most=3)
    assert not stopped and ray.alive == 0 and ray.seen == {"Started": 1}
    assert {row["status"] for row in rows} == {"failed"}
    for row in rows:
        assert re.search(message, row["failure"])


def test_every_place_gets_a_group_unless_told_otherwise(tmp_path):
    ray = FakeRay({"CPU": 1.0}, {"CPU": 2.0})
    _, _, said = far(tmp_path, ray, most=None, dry_run=True)
    assert "Ray: 2 machines with room for 3 group(s) at a time, 1 CPU each" in said
    program = "program 1: fedavg: 3 runs of 4 rounds"
    assert "1 program(s) to compile for 3 batches;" in said
    assert said.count("  program") == said.count(f"{program} in 3 batches, 0.2 MB of state at a time") == 1
    _, _, said = far(tmp_path, ray, most=3, dry_run=True)
    assert "1 program(s) to compile;" in said and f"{program}, 0.6 MB of state\n" in said


def test_gpus_are_asked_for_where_there_are_any():
    ray = FakeRay({"CPU": 8.0}, {"CPU": 64.0, "GPU": 8.0})
    assert RayBackend(ray, 2, None).needs == Resources(1, 2) and RayBackend(ray, 2, None).places == 4
    with pytest.raises(ValueError, match="asks for 9 GPU.*has 8: ask for fewer with --devices"):
        RayBackend(ray, 9, None)
    with pytest.raises(ValueError, match=r"asks for 3 CPU.*the largest of the cluster's 2 has 2"):
        RayBackend(FakeRay({"CPU": 2.0}, {"CPU": 1.0}), 3, None)
