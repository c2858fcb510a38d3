"""Sweeps on a cluster: workers that get lost, refuse or run out of memory; in this process, without Ray itself."""

import os
import re
import socket
import sys
from types import SimpleNamespace

import pytest
import small_run
from fake_ray import ActorDiedError, FakeRay
from small_sweep import FEDAVG, carry, outcome, read_table, sweep, watch
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.cli.running import _devices_per_batch
from fedjax_bal.lab import ray_cluster as engine
from fedjax_bal.lab import training
from fedjax_bal.lab.ray_cluster import RayBackend

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
    assert "tried 3 times" in failed["failure"] and said.count("resuming after round 0") == 2


@pytest.mark.slow
def test_a_stop_saves_what_trains_and_drops_what_waits(alone, tmp_path):
    asked, ray = iter((False,) + (True,) * 99), FakeRay({"CPU": 2.0})
    _, stopped, said = far(tmp_path, ray, should_stop=lambda: next(asked))
    assert stopped and ray.alive == 0 and "finished after" not in said
    rows, stopped, _ = far(tmp_path, FakeRay())
    assert not stopped
    assert figures(rows) == figures(alone[0])
    assert outcome(tmp_path / "out") == alone[1]


def _with_sent(monkeypatch, change):
    """Changes what a worker's `train` is called with: versions, jobs and the data's folder."""
    train = engine.Worker.train
    monkeypatch.setattr(engine.Worker, "train", lambda self, *sent: train(self, *change(*sent)))


def _other_jax(monkeypatch):
    _with_sent(monkeypatch, lambda versions, *rest: ({**versions, "jax": "0.9.9"}, *rest))


def _broken(monkeypatch):
    def broken(*_):
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(training, "train_batch", broken)


REFUSED = [
    (_other_jax, "on .*: jax .* in place of 0.9.9; install the same versions on all machines"),
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
    assert "1 program to compile for 3 batches;" in said
    assert said.count("  program") == len(re.findall(rf"{program}, one at a time, 0\.2\d* MB of state\n", said)) == 1
    _, _, said = far(tmp_path, ray, most=3, dry_run=True)
    assert "1 program to compile;" in said and re.search(rf"{program}, 0\.6\d* MB of state\n", said)


def test_gpus_are_asked_for_where_there_are_any():
    ray = FakeRay({"CPU": 8.0}, {"CPU": 64.0, "GPU": 8.0})
    assert RayBackend(ray, 2, None).on_gpus and RayBackend(ray, 2, None).concurrent_batches == 4
    with pytest.raises(ValueError, match="asks for 9 GPU.*has 8: ask for fewer with --devices"):
        RayBackend(ray, 9, None)
    with pytest.raises(ValueError, match=r"asks for 3 CPU.*the largest of the cluster's 2 has 2"):
        RayBackend(FakeRay({"CPU": 2.0}, {"CPU": 1.0}), 3, None)


# Finding a cluster, and what is said where there is none.


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness"):
        monkeypatch.delenv(name, raising=False)
    kept = dict(os.environ)
    yield
    for name in set(os.environ) - set(kept):
        del os.environ[name]


def fake(monkeypatch, error=None):
    """A Ray that notes how it is started, or can't be."""
    asked = []

    def init(**options):
        asked.append(options)
        if error:
            raise error

    module = SimpleNamespace(init=init, shutdown=lambda: asked.append("shutdown"), __version__="2.99.0")
    monkeypatch.setitem(sys.modules, "ray", module)
    return asked


def test_without_ray_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"--engine ray: ray can't be imported .*pip install 'fedjax_bal\[cluster\]'"):
        engine.connected(None).__enter__()


@pytest.mark.parametrize("variable", [None, "local"])
def test_by_default_a_cluster_is_started_that_tells_nobody(monkeypatch, variable):
    asked = fake(monkeypatch)
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    with engine.connected(None):
        assert asked[0]["address"] == "local" and not asked[0]["include_dashboard"] and not asked[0]["log_to_driver"]
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert asked[1:] == ["shutdown"]


def test_a_cluster_that_answers_is_connected_to(monkeypatch):
    asked = fake(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with engine.connected(address):
            assert asked[0]["address"] == address and "object_store_memory" not in asked[0]


@pytest.mark.parametrize("address", ["ray://host:10001", "host", "host:", ":6379", "host:0", "host:99999", ""])
def test_an_address_has_a_host_and_a_port(monkeypatch, address):
    asked = fake(monkeypatch)
    with pytest.raises(ValueError, match="--address: received '.*'"):
        engine.connected(address).__enter__()
    monkeypatch.setenv("RAY_ADDRESS", "host")
    with pytest.raises(ValueError, match="RAY_ADDRESS: received 'host'"):
        engine.connected(None).__enter__()
    assert not asked


def test_who_does_not_answer_is_not_waited_for(monkeypatch):
    asked = fake(monkeypatch)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # held, so that no other process gets the port, but nothing listens
        port = silent.getsockname()[1]
        with pytest.raises(ValueError, match=rf"--address: nothing answers at 127.0.0.1:{port} \(connection refused\)"):
            engine.connected(f"127.0.0.1:{port}").__enter__()
    assert not asked


ERRORS = [
    (
        ConnectionError("Could not find any running Ray instance. Please"),
        "--address: auto: no Ray cluster is there that lets this machine in .Could not find any",
    ),
    (SystemExit(15), "the answer isn't from a Ray cluster"),
    (
        RuntimeError("Version mismatch: The cluster was started with:\n  Ray: 2.40.0\n  Python: 3.12.1"),
        "Ray: 2.40.0 Python: 3.12.1.*here are Ray 2.99.0 and Python .*use the cluster's versions",
    ),
]


@pytest.mark.parametrize(("error", "message"), ERRORS, ids=["none", "another server", "versions"])
def test_what_ray_says_becomes_a_message(monkeypatch, error, message):
    asked = fake(monkeypatch, error)
    with pytest.raises(ValueError, match=message):
        engine.connected("auto").__enter__()
    assert asked[-1] == "shutdown"


COMMANDS = [
    (["--address", "auto"], "--address: is for --engine ray"),
    (["--engine", "ray", "--devices", "all"], "--devices: received all, but with --engine ray"),
    (["--engine", "ray", "--address", "here"], "--address: received 'here', must be HOST:PORT"),
]


@pytest.mark.parametrize(("options", "message"), COMMANDS, ids=[" ".join(options) for options, _ in COMMANDS])
def test_the_command_says_what_is_wrong(tmp_path, monkeypatch, options, message):
    fake(monkeypatch)
    (tmp_path / "sweep.yaml").write_text(small_run.TEXT + "sweep: [{training.rounds: [2, 3]}]")
    shown = CliRunner().invoke(app, ["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out"), *options])
    assert shown.exit_code == 2 and f"fedjax-bal: {message}" in shown.output
    assert "Traceback" not in shown.output


def test_groups_ask_for_as_many_devices_as_the_largest_configuration(tmp_path):
    plan = lambda *devices: SimpleNamespace(
        points=[SimpleNamespace(config=small_run.config(tmp_path, f"execution.devices={number}")) for number in devices]
    )
    assert _devices_per_batch(plan("auto"), None) == 1
    assert _devices_per_batch(plan(2, 4, "auto"), None) == 4
    assert _devices_per_batch(plan(2), 3) == 3
