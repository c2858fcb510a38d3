"""Offline runs of Weights & Biases: what they hold, and that nothing is written anywhere else."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from remembering import run

from fedjax_bal.contrib.trackers import LikeWandb, WeightsAndBiases
from fedjax_bal.lab import RunFolder
from fedjax_bal.lab.trackers import Trackers

SESSION = """
import sys
from pathlib import Path
from remembering import run

from fedjax_bal.lab.trackers import Trackers, open_trackers
from fedjax_bal.plugins import load_plugins

folder, rounds, finished = Path(sys.argv[1]), [int(text) for text in sys.argv[3:]], sys.argv[2] == "finished"
folder.mkdir(exist_ok=True)
load_plugins(["fedjax_bal.contrib.trackers"])
trackers = Trackers(open_trackers(["wandb"], folder), "mine", print)
runs = [run("fedavg", 0), run("flcir", 1)]  # both open at a time
for last in rounds:
    lines = [{"round": n, "test_accuracy": n / 8, "per_class_accuracy": [n / 4, None]} for n in range(1, last + 1)]
    for each in runs:
        each.lines, each.is_over = lines, finished and last == rounds[-1]
        trackers.recorded(each, 0.0)
trackers.close()
"""


def session(tmp_path, state, *rounds):
    """What a process prints that shows so many rounds, then so many; its home and working folder are the test's."""
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here, tmp_path / "temporary"):
        folder.mkdir(exist_ok=True)
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "XDG_"))}
    surroundings |= {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(home), "TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "-c", SESSION, str(tmp_path / "run"), state, *map(str, rounds)]
    done = subprocess.run(command, cwd=here, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def records(file):
    """The records of a transaction log: blocks of 32 KiB with pieces of (checksum, length, kind, bytes)."""
    from wandb.proto import wandb_internal_pb2

    content, place, piece = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        piece += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(piece)
            yield record
            piece = b""


def read(folder):
    """Name, group, settings and curve of a W&B run."""
    about, curve = None, []
    for record in records(next(folder.glob("*.wandb"))):
        if record.HasField("run"):
            about = record.run
        if record.HasField("history"):
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            curve.append((record.history.step.num, items["test_accuracy"], items["per_class_accuracy/0"]))
    settings = {item.key: json.loads(item.value_json) for item in about.config.update}
    return about.run_id, about.display_name, about.run_group, settings, curve


class Server:
    """W&B's `init`, which refuses ids; its runs only count lines."""

    def __init__(self, refused=(), error=None):
        self.refused, self.error, self.asked = set(refused), error, []

    def init(self, *, id, **_):
        self.asked.append(id)
        if self.error or id in self.refused:
            raise self.error or RuntimeError(f"Error 409: run {id} was previously created and deleted\ntry a new one")
        return SimpleNamespace(log=lambda line, step: None, finish=lambda: None)

    def session(self, folder, monkeypatch):
        """What a session prints that follows a run."""
        module = SimpleNamespace(init=self.init, Settings=lambda **options: options)
        monkeypatch.setitem(sys.modules, "wandb", module)
        monkeypatch.setitem(sys.modules, "wandb.sdk", module)
        for variable in ("CACHE_DIR", "DATA_DIR", "ARTIFACT_DIR", "ERROR_REPORTING", "INIT_TIMEOUT", "FINISH_TIMEOUT"):
            monkeypatch.setenv(f"WANDB_{variable}", "set")
        monkeypatch.setenv("WANDB_MODE", "online")
        printed = []
        trackers = Trackers({"wandb": WeightsAndBiases(folder)}, "mine", printed.append)
        trackers.recorded(run(lines=[{"round": 1}], is_over=True, token=RunFolder(folder).tracking_id()), 0.0)
        trackers.close()
        return printed


def test_an_id_that_the_server_refuses_names_the_file_that_gives_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server, folder = Server(), Path("runs/mine")
    folder.mkdir(parents=True)
    assert server.session(folder, monkeypatch) == ["wandb: WANDB_MODE is online"]
    server.refused = {*server.asked}
    for _ in range(2):  # without the remedy it stays refused
        (message,) = server.session(folder, monkeypatch)
        assert "Error 409" in message and server.asked[0] in message and "tracking-id" in message
    assert len({*server.asked}) == 1
    (folder / "tracking-id").unlink()
    assert server.session(folder, monkeypatch) == ["wandb: WANDB_MODE is online"]
    assert len({*server.asked}) == 2


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionError("no route to the server")])
def test_after_another_error_the_run_keeps_its_id(tmp_path, monkeypatch, error):
    server = Server(error=error)
    (message,) = server.session(tmp_path, monkeypatch)
    assert (str(error) or "TimeoutError") in message and "tracking-id" in message
    server.error = None
    server.session(tmp_path, monkeypatch)
    assert len(server.asked) == 2 and len({*server.asked}) == 1


def test_a_package_with_the_same_interface_gets_the_same_runs(tmp_path, monkeypatch):
    asked = []
    logged = []

    def init(**options):
        asked.append(options)
        return SimpleNamespace(log=lambda line, step: logged.append((step, line)), finish=lambda: logged.append("end"))

    monkeypatch.setitem(sys.modules, "similar", SimpleNamespace(init=init, __name__="similar"))
    trackers = Trackers({"similar": LikeWandb("similar", tmp_path)}, "mine", print)
    trackers.recorded(run("fedavg", 7, [{"round": 2, "test_accuracy": 0.5}], is_over=True), 0.0)
    assert asked == [
        {"project": "mine", "group": "fedavg", "name": "fedavg, seed 7 (0a1b2c3d-07070707)", "resume": "allow",
         "config": {"training": {"rounds": 50}, "seed": 7}}
    ]  # fmt: skip
    assert logged == [(2, {"test_accuracy": 0.5}), "end"]


@pytest.mark.nightly
def test_offline_runs_hold_each_round_once_and_go_on_as_the_same_runs(tmp_path):
    printed, errors = session(tmp_path, "stopped", 2, 3)
    assert errors == ""
    assert printed == f"wandb: upload with: wandb sync {tmp_path}/run/wandb/offline-run-*\n"
    before = {read(folder)[0] for folder in (tmp_path / "run" / "wandb").glob("offline-run-*")}
    session(tmp_path, "finished", 4, 5)
    found = sorted((read(folder) for folder in (tmp_path / "run" / "wandb").glob("offline-run-*")), key=lambda x: x[1])
    assert {entry[0] for entry in found} == before
    assert [entry[1:3] for entry in found] == [("fedavg, seed 0", "fedavg"), ("flcir, seed 1", "flcir")]
    for entry, seed in zip(found, (0, 1), strict=True):
        assert entry[3]["training"]["rounds"] == 50
        assert entry[3]["seed"] == seed
        assert entry[4] == [(n, n / 8, n / 4) for n in range(1, 6)]
    for outside in ("home", "here", "temporary"):
        assert not list((tmp_path / outside).rglob("*"))
