"""Trackers beside a run: told of every line once, over stops and failures, and never part of what is computed."""

import shutil

import pytest
import small_run
import small_sweep
from remembering import Remembering
from typer.testing import CliRunner

from fedjax_bal import register
from fedjax_bal.cli import app, running
from fedjax_bal.lab import RunFolder, Stopped
from fedjax_bal.lab.trackers import Trackers

ONE = "methods=[{recipe: fedavg}]"


def by_run(path):
    """The lines of metrics.jsonl by run."""
    found = {}
    for line in RunFolder(path).read_metrics():
        found.setdefault(f"{line['method']}-seed-{line['seed']}", []).append(line)
    return found


@pytest.mark.slow
def test_a_tracker_has_the_lines_of_the_metrics_over_a_stop_and_others_failures(tmp_path):
    path, config = tmp_path / "run", small_run.config(tmp_path, ONE)
    tracker, failing = Remembering(), Remembering({"log"})
    asked = iter([False] * 4 + [True])
    with pytest.raises(Stopped):
        small_run.run(path, config, should_stop=lambda: next(asked), trackers={"mine": tracker, "failing": failing})
    assert set(tracker.shown) == {"fedavg-seed-0", "fedavg-seed-1"}  # the second run was begun
    ids = {place: run.id for place, run in tracker.runs.items()}
    # Another method, put first, changes nothing.
    config = small_run.config(tmp_path, "methods=[{recipe: fedprox, mu: 0.1}, {recipe: fedavg}]")
    display = small_run.run(path, config, trackers={"mine": tracker})
    assert {place: tracker.runs[place].id for place in ids} == ids and len({*ids.values()}) == 2
    assert tracker.shown == by_run(path)
    assert [line["round"] for line in tracker.shown["fedavg-seed-1"]] == [2, 4, 6, 7]
    assert tracker.calls.count(("begin", "fedavg-seed-0")) == tracker.calls.count(("begin", "fedavg-seed-1")) == 2
    assert display.notes[-1] == "mine: nowhere to look"
    assert {*tracker.shown} - {*ids} == {"fedprox-seed-0", "fedprox-seed-1"}
    later = Remembering()
    display = small_run.run(path, config, trackers={"mine": tracker, "later": later})
    assert later.shown == tracker.shown
    assert [round for _, _, round in display.steps] == [7, 7, 7, 7]  # nothing was trained


def test_the_command_line_passes_trackers_on(trained, tmp_path, monkeypatch):
    tracker, folders = Remembering(), []
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
    own = ["tensorboard/fedavg-seed-0/events.out.tfevents.0000000001.fedjax-bal.7.0"]
    own += ["wandb/offline-run-20261121_100000-fedjax-bal-01234567-89abcdef/files/requirements.txt"]
    own += ["tracking-id"]
    others = ["tensorboard/mine/events.out.tfevents.1.host", "wandb/offline-run-20261121_100000-abc/files/x"]
    for name in own + others:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("x")
    with folder.claimed(config):
        folder.begin(config, fresh=True)
    assert [name for name in own + others if (path / name).exists()] == others


def test_a_folder_keeps_its_part_of_the_ids(tmp_path):
    folder = RunFolder(tmp_path)
    drawn = folder.tracking_id()
    assert RunFolder(tmp_path).tracking_id() == drawn
    (tmp_path / "tracking-id").unlink()
    assert folder.tracking_id() != drawn


@pytest.mark.slow
def test_each_run_of_a_sweep_is_a_run_of_the_tracker_and_stays_the_same_when_resumed(tmp_path):
    wanted = small_sweep.sweep(tmp_path, "sweep: [{lr: [0.05, 0.1]}]", small_sweep.FEDAVG)
    tracker, notes = Remembering(), []
    ids = []
    for stop in (True, False):
        trackers = Trackers({"mine": tracker}, wanted.name, notes.append, sweep=True)
        small_sweep.carry(wanted, tmp_path / "sweep", should_stop=lambda stop=stop: stop, callbacks=[trackers])
        ids.append({place: run.id for place, run in tracker.runs.items()})
    assert ids[0] == ids[1] and len({*ids[0].values()}) == 2
    rates = {run.config["training"]["optimizer"]["learning_rate"] for run in tracker.runs.values()}
    assert rates == {0.05, 0.1} and {run.group for run in tracker.runs.values()} == {"mine"}
    for place, shown in tracker.shown.items():
        point = place.partition("/")[0]
        assert shown == RunFolder(tmp_path / "sweep" / "points" / point).read_metrics()
