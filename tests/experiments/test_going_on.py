"""A finished run that gets more rounds and seeds comes to the same bits as if it had had them from the start."""

import hashlib
import json
import zipfile

import jax
import numpy as np
import pytest
import quick
import small_run

from fedjax_bal.config import config_digest
from fedjax_bal.experiments import Stopped, set_up
from fedjax_bal.experiments.runner import Runner
from fedjax_bal.experiments.saved_runs import saved_template, unpack
from fedjax_bal.metrics import Counts
from fedjax_bal.runs import FolderError, RunFolder, checkpoint

METHODS = ("fedavg", "control variates")


@pytest.fixture(scope="module")
def at_once(tmp_path_factory):
    """A folder in which the small comparison, 7 rounds and two seeds, ran without interruption."""
    path = tmp_path_factory.mktemp("at_once") / "run"
    small_run.run(path, small_run.config(path.parent))
    return path


def short(tmp_path, rounds):
    """The small comparison's configuration with fewer rounds, and one of its seeds."""
    return small_run.config(tmp_path, f"training.rounds={rounds}", "seeds=[0]")


def stop_after(dispatches):
    """Asks to stop after so many dispatches."""
    left = iter(range(dispatches, 0, -1))
    return lambda: next(left, 0) <= 1


def results(path):
    """What a folder holds of its runs, but for times: of the last checkpoints the sums of all arrays."""
    summary = json.loads((path / "summary.json").read_text())
    sums = {}
    for folder in (path / "checkpoints").iterdir():
        with zipfile.ZipFile(max(folder.glob("*.npz"))) as archive:
            sums[folder.name] = json.loads(archive.read("manifest.json"))["sha256"]
    return small_run.metrics(path), summary["runs"], summary["finished"], sums


# Rounds are evaluated by twos, and two are in a dispatch: 4 ends both, 3 neither, and 1 is less than a dispatch.
@pytest.mark.parametrize("rounds", quick.only([1, 3, 4], 3))
def test_more_rounds_and_seeds_come_to_the_same_bits(at_once, tmp_path, rounds):
    path = tmp_path / "run"
    small_run.run(path, short(tmp_path, rounds))
    display = small_run.run(path, small_run.config(tmp_path))
    assert display.notes == [f"{name}, seed 0: going on after round {rounds}" for name in METHODS]
    assert results(path) == results(at_once)


@pytest.mark.slow
def test_stops_before_and_after_change_nothing(at_once, tmp_path):
    path = tmp_path / "run"
    brief, wanted = short(tmp_path, 5), small_run.config(tmp_path)
    for config, dispatches in ((brief, 4), (wanted, 1), (wanted, 4)):
        with pytest.raises(Stopped):
            small_run.run(path, config, should_stop=stop_after(dispatches))
    small_run.run(path, wanted)
    assert results(path) == results(at_once)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, 4])
def test_checkpoints_of_earlier_versions_are_continued_or_made_again(at_once, tmp_path, rounds):
    path, config = tmp_path / "run", short(tmp_path, rounds)
    small_run.run(path, config)
    for method in range(len(METHODS)):
        folder = RunFolder(path).checkpoints(method, 0)
        newest = checkpoint.generations(folder)[0]
        saved = checkpoint.load(newest, saved_template(set_up(config), (method, 0)), unpack)
        # These knew their whole configuration, and had nothing counted after their last round.
        owner = np.frombuffer(hashlib.sha256(f"{config_digest(config)} {method} 0".encode()).digest(), np.uint8)
        snapshot = saved.snapshot._replace(counts=Counts())
        checkpoint.save(folder, rounds, saved._replace(owner=owner, snapshot=snapshot))
    display = small_run.run(path, small_run.config(tmp_path))
    if rounds == 4:
        assert display.notes == [f"{name}, seed 0: going on after round 4" for name in METHODS]
    else:
        assert "fedavg, seed 0 was finished by an earlier version" in display.notes[0]
    assert results(path) == results(at_once)


def test_a_run_goes_on_after_rounds_in_which_all_clients_were_absent(tmp_path):
    config, run, folder = short(tmp_path, 7), (0, 0), RunFolder(tmp_path / "run")
    told = {"round": 2, "test_accuracy": 0.1, "bytes_up": 9, "bytes_down": 9, "wall_s": 1.0}
    with folder.claimed(config):
        runner = Runner(config, folder, small_run.Quiet())
        saved = saved_template(runner.comparison, run)
        state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), saved.snapshot.state)
        runner.save(run, saved._replace(snapshot=saved.snapshot._replace(round=3, state=state)))
        folder.write_metrics([{"method": "fedavg", "seed": 0, **told}])
        assert runner.resume()[run].snapshot.round == 3


@pytest.mark.slow
def test_a_run_goes_on_with_the_devices_that_it_began_with(tmp_path):
    path, brief, wanted = tmp_path / "run", short(tmp_path, 2), short(tmp_path, 4)
    small_run.run(path, brief)
    record = path / "execution.json"
    assert json.loads(record.read_text())["devices"] == 2
    record.unlink()  # as earlier versions leave a folder, which used one
    assert "begun on" not in "".join(small_run.run(path, wanted).notes)
    assert json.loads(record.read_text())["devices"] == 1
    asked = small_run.run(path, wanted, devices=2)
    assert "begun on 1 device(s), goes on with 2: last digits may differ" in asked.notes
    small_run.run(path, wanted, fresh=True)
    assert json.loads(record.read_text())["devices"] == 2


@pytest.mark.parametrize("text", ['{"devices": 0}', '{"devices": "2"}', '{"devices": 1e99}', '{"devices": 1e6}', "[]"])
def test_a_damaged_record_of_devices_is_that_of_an_earlier_version(tmp_path, text):
    folder = RunFolder(tmp_path)
    (tmp_path / "execution.json").write_text(text)
    assert folder.read_devices() is None
    (folder.checkpoints(0, 0)).mkdir(parents=True)
    (folder.checkpoints(0, 0) / "round-00000002.npz").touch()
    assert folder.read_devices() == 1
    folder.write_devices(4)
    assert folder.read_devices() == 4


@pytest.mark.slow
def test_a_folder_that_is_moved_with_its_configuration_trace_and_run_goes_on(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "phones.csv").write_text("round,client\n0,1\n0,2\n0,3\n1,4\n1,5\n1,6\n")
    trace = ("availability={name: trace, file: phones.csv}", "methods=[fedavg]", "seeds=[0]")
    moved = lambda folder, rounds: small_run.config(folder, *trace, f"training.rounds={rounds}")
    monkeypatch.chdir(here)
    small_run.run(here / "run", moved(here, 2))
    here.rename(there)
    monkeypatch.chdir(there)
    notes = small_run.run(there / "run", moved(there, 4)).notes
    assert notes == ["fedavg, seed 0: going on after round 2"]
    (there / "phones.csv").write_text("round,client\n0,1\n0,2\n0,4\n1,4\n1,5\n1,6\n")
    with pytest.raises(FolderError, match="was begun with other images, labels, partition or traces"):
        small_run.run(there / "run", moved(there, 6))
