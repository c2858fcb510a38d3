"""Trackers beside a run: told of every line once, over stops and failures, and never part of what is computed."""

import shutil

import pytest
import small_run
from remembering import Remembering
from typer.testing import CliRunner

from fedjax_bal import register
from fedjax_bal.cli import app, running
from fedjax_bal.lab import RunFolder, Stopped

ONE = "methods=[{recipe: fedavg}]"


def by_run(path):
    """The lines of metrics.jsonl by run, of one method."""
    found = {}
    for line in RunFolder(path).read_metrics():
        found.setdefault(f"0-{line['seed']}", []).append(line)
    return found


@pytest.mark.slow
def test_a_tracker_has_the_lines_of_the_metrics_over_a_stop_and_others_failures(tmp_path):
    path, config = tmp_path / "run", small_run.config(tmp_path, ONE)
    tracker, failing = Remembering(), Remembering("failing", {"log"})
    asked = iter([False] * 4 + [True])
    with pytest.raises(Stopped):
        small_run.run(path, config, should_stop=lambda: next(asked), trackers=[tracker, failing])
    assert set(tracker.shown) == {"0-0", "0-1"}  # the second run was begun
    display = small_run.run(path, config, trackers=[tracker])
    assert tracker.shown == by_run(path)
    assert [line["round"] for line in tracker.shown["0-1"]] == [2, 4, 6, 7]
    assert tracker.calls.count(("begin", "0-0")) == tracker.calls.count(("begin", "0-1")) == 2
    assert display.notes[-1] == "remembering: nowhere to look"
    later = Remembering("later")
    display = small_run.run(path, config, trackers=[tracker, later])
    assert later.shown == tracker.shown
    assert [round for _, _, round in display.steps] == [7, 7]  # nothing was trained


def test_the_command_line_passes_trackers_on(trained, tmp_path, monkeypatch):
    tracker, folders = Remembering("mine"), []
    register("tracker", "mine")(lambda folder: folders.append(folder) or tracker)
    monkeypatch.setattr(running, "show_comparison", lambda *arguments: None)
    (tmp_path / "small.yaml").write_text(small_run.TEXT)
    shutil.copytree(trained(*small_run.ONE), tmp_path / "runs" / "small")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app.app, ["run", "small.yaml", *small_run.ONE, "--plain", "--track", "mine"])
    assert result.exit_code == 0, result.output
    assert [str(folder) for folder in folders] == ["runs/small"]
    assert tracker.shown == by_run(tmp_path / "runs" / "small")
    assert "mine: nowhere to look" in result.output
    assert "track" not in (tmp_path / "runs" / "small" / "config.yaml").read_text()


def test_fresh_removes_what_trackers_wrote_and_nothing_else(tmp_path):
    path, config = tmp_path / "run", small_run.config(tmp_path)
    folder = RunFolder(path)
    with folder.claimed(config):
        folder.begin(config, fresh=False)
    own = ["tensorboard/fedavg/seed0/events.out.tfevents.0000000001.fedjax-bal.7.0"]
    own += ["wandb/offline-run-20261121_100000-fedjax-bal-01234567-0-0/files/requirements.txt"]
    others = ["tensorboard/mine/events.out.tfevents.1.host", "wandb/offline-run-20261121_100000-abc/files/x"]
    for name in own + others:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("x")
    with folder.claimed(config):
        folder.begin(config, fresh=True)
    assert [name for name in own + others if (path / name).exists()] == others
