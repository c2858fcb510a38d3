"""A sweep on a Ray cluster: what a worker does with its part, and what is said where there is no cluster."""

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from small_sweep import FEDAVG, carry, outcome, sweep
from typer.testing import CliRunner

from fedjax_bal.cli import ray
from fedjax_bal.cli.app import app
from fedjax_bal.lab import SweepFolder

RATES = "sweep: [{training.optimizer.learning_rate: [0.05, 0.1, 0.2, 0.4]}]"


def begun(tmp_path):
    """A sweep whose folder exists, and what a worker gets for its second part of two."""
    plan, out = sweep(tmp_path, RATES, FEDAVG), tmp_path / "out"
    with SweepFolder(out).claimed(plan):
        SweepFolder(out).begin(plan.text, plan.configs)
    command = ("sweep", str(out / "sweep.yaml"), "--out", str(out), "--devices", "1", "--plain", "--part", "2/2")
    return plan, (command, plan.text, False, ray._environment())


@pytest.mark.slow
def test_a_worker_trains_its_part_in_the_shared_folder(tmp_path):
    plan, (command, *rest) = begun(tmp_path)
    assert ray._train_part(command, *rest) == 0
    trained = [folder.path.name for folder in SweepFolder(tmp_path / "out").points()]
    assert trained == [plan.points[1].label, plan.points[3].label]
    assert ray._train_part((*command[:-1], "1/2"), *rest) == 0
    rows, _ = carry(plan, tmp_path / "out", only_table=True)
    assert [row["status"] for row in rows] == ["done"] * 4


def test_a_machine_that_does_not_see_the_folder_says_so(tmp_path):
    _, (command, text, *rest) = begun(tmp_path)
    for path, seen in ((tmp_path / "elsewhere" / "sweep.yaml", text), (command[1], "a different sweep")):
        with pytest.raises(ValueError, match=f"{socket.gethostname()} doesn't see {Path(path).parent}.*--out"):
            ray._train_part((command[0], str(path), *command[2:]), seen, *rest)


def test_a_machine_with_other_versions_says_so(tmp_path):
    _, (command, text, gpus, environment) = begun(tmp_path)
    with pytest.raises(ValueError, match=r"jax .* in place of 0.9.9; install the same versions"):
        ray._train_part(command, text, gpus, {**environment, "jax": "0.9.9"})


def test_without_ray_or_a_cluster_a_message_says_so(tmp_path, monkeypatch):
    begun(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    asked = ["sweep", "sweep.yaml", FEDAVG, "--engine", "ray", "--out", "out"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2 and "ray can't be imported" in result.output
    monkeypatch.setitem(sys.modules, "ray", sys)  # any module: an address that doesn't answer is never passed on
    for address in ("nowhere", "127.0.0.1:1", "ray://127.0.0.1:1"):
        result = CliRunner().invoke(app, [*asked, "--address", address])
        assert result.exit_code == 2 and f"--address: received '{address}'" in result.output


@pytest.mark.nightly
def test_a_worker_of_a_real_cluster_is_killed_and_all_comes_to_the_same(tmp_path):
    pytest.importorskip("ray", reason="the extra cluster is not installed")
    plan, out = sweep(tmp_path, RATES, FEDAVG), tmp_path / "out"
    here, _ = carry(plan, tmp_path / "here", most=1)
    with SweepFolder(out).claimed(plan):
        SweepFolder(out).begin(plan.text, plan.configs)
    killed, notes = [], []

    def kill_one():
        while not killed:
            time.sleep(0.01)
            if any(out.glob("points/*/checkpoints/*/round-*.npz")):
                workers = [int(file.name) for file in Path("/proc").glob("[0-9]*") if "_train_part" in _command(file)]
                killed.extend(workers[:1])
                os.kill(killed[0], signal.SIGKILL)

    threading.Thread(target=kill_one, daemon=True).start()
    options = {"address": None, "devices": 1, "note": notes.append, "should_stop": lambda: False}
    failures = ray.train_on_ray(["--together", "1"], out / "sweep.yaml", len(plan.points), **options)
    assert killed and failures == [], notes
    rows, _ = carry(plan, out, only_table=True)
    assert [row["final_accuracy"] for row in rows] == [row["final_accuracy"] for row in here]
    assert outcome(out) == outcome(tmp_path / "here")


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:  # it has ended
        return ""
