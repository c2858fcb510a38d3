"""Finding a cluster, and what is said where there is none; Ray itself isn't needed."""

import os
import socket
import sys
from types import SimpleNamespace

import pytest
import small_run
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.cli.running import _devices_per_batch
from fedjax_bal.lab.ray_cluster import connected


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
        connected(None).__enter__()


@pytest.mark.parametrize("variable", [None, "local"])
def test_by_default_a_cluster_is_started_that_tells_nobody(monkeypatch, variable):
    asked = fake(monkeypatch)
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    with connected(None):
        assert asked[0]["address"] == "local" and not asked[0]["include_dashboard"] and not asked[0]["log_to_driver"]
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert asked[1:] == ["shutdown"]


def test_a_cluster_that_answers_is_connected_to(monkeypatch):
    asked = fake(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with connected(address):
            assert asked[0]["address"] == address and "object_store_memory" not in asked[0]


def _closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("address", ["ray://host:10001", "host", "host:", ":6379", "host:0", "host:99999", ""])
def test_an_address_has_a_host_and_a_port(monkeypatch, address):
    asked = fake(monkeypatch)
    with pytest.raises(ValueError, match="--address: received '.*', must be HOST:PORT"):
        connected(address).__enter__()
    monkeypatch.setenv("RAY_ADDRESS", "host")
    with pytest.raises(ValueError, match="RAY_ADDRESS: received 'host', must be HOST:PORT"):
        connected(None).__enter__()
    assert not asked


def test_who_does_not_answer_is_not_waited_for(monkeypatch):
    asked = fake(monkeypatch)
    with pytest.raises(ValueError, match=r"--address: nothing answers at 127.0.0.1:\d+ \(connection refused\)"):
        connected(_closed()).__enter__()
    assert not asked


ERRORS = [
    (
        ConnectionError("Could not find any running Ray instance. Please"),
        "--address: auto: no Ray cluster is there that lets this machine in .Could not find any",
    ),
    (SystemExit(15), "the answer isn't from a Ray cluster"),
    (
        RuntimeError("Version mismatch: The cluster was started with:\n  Ray: 2.40.0\n  Python: 3.12.1"),
        "Ray: 2.40.0 Python: 3.12.1.*here are Ray 2.99.0 and Python .*use the cluster's own versions",
    ),
]


@pytest.mark.parametrize(("error", "message"), ERRORS, ids=["none", "another server", "versions"])
def test_what_ray_says_becomes_a_message(monkeypatch, error, message):
    asked = fake(monkeypatch, error)
    with pytest.raises(ValueError, match=message):
        connected("auto").__enter__()
    assert asked[-1] == "shutdown"


COMMANDS = [
    (["--engine", "rai"], "--engine: received 'rai'; allowed: local, ray; did you mean 'ray'?"),
    (["--address", "auto"], "--address: received 'auto', which is for --engine ray"),
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
