"""A finished run that gets more rounds and seeds comes to the same bits as if it had had them from the start."""

import json
import shutil
import zipfile

import jax
import numpy as np
import pytest
import small_run
import yaml

from fedjax_bal.config import load_config, with_convolution
from fedjax_bal.engine.host import strategy
from fedjax_bal.lab import FolderError, RunFolder, Stopped
from fedjax_bal.lab.compare import open_comparison
from fedjax_bal.lab.environment import numeric_settings
from fedjax_bal.lab.folder import RecordedExecution
from fedjax_bal.lab.loaded_run import load_run
from fedjax_bal.lab.setup import SharedInputs
from fedjax_bal.models import automatic

METHODS = ("fedavg", "control variates")


def short(tmp_path, rounds):
    """The small comparison's configuration with fewer rounds, and one of its seeds."""
    return small_run.config(tmp_path, f"training.rounds={rounds}", "seeds=[0]")


def results(path):
    """What a folder holds of its runs, but for times: of the last checkpoints the sums of all arrays."""
    summary = json.loads((path / "summary.json").read_text())
    sums = {}
    for folder in (path / "checkpoints").iterdir():
        with zipfile.ZipFile(max(folder.glob("*.npz"))) as archive:
            sums[folder.name] = json.loads(archive.read("manifest.json"))["sha256"]
    return small_run.metrics(path), summary["runs"], summary["finished"], sums


# Rounds are evaluated by twos, and two are in a dispatch: 3 ends neither, and 1 is less than a dispatch.
@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 3])
def test_more_rounds_and_seeds_come_to_the_same_bits(trained, tmp_path, rounds):
    path = tmp_path / "run"
    small_run.run(path, short(tmp_path, rounds))
    display = small_run.run(path, small_run.config(tmp_path))
    assert display.notes[2:] == [f"{name}, seed 0: resuming after round {rounds}" for name in METHODS]
    assert results(path) == results(trained())


@pytest.mark.slow
def test_stops_before_and_after_change_nothing(trained, tmp_path):
    path = tmp_path / "run"
    brief, wanted = short(tmp_path, 5), small_run.config(tmp_path)
    for config, dispatches in ((brief, 4), (wanted, 1), (wanted, 4)):
        with pytest.raises(Stopped):
            small_run.run(path, config, should_stop=small_run.stop_after(dispatches))
        assert json.loads((path / "summary.json").read_text())["finished"] is False
    small_run.run(path, wanted)
    assert results(path) == results(trained())


def test_a_run_goes_on_after_rounds_in_which_all_clients_were_absent(tmp_path):
    config, folder = short(tmp_path, 7), RunFolder(tmp_path / "run")
    told = {"round": 2, "test_accuracy": 0.1, "bytes_up": 9, "bytes_down": 9, "wall_s": 1.0}
    with folder.claimed(config):
        [run, _] = open_comparison(config, folder, print, SharedInputs()).runs
        snapshot = run.simulation.state_shapes()
        state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), snapshot.state)
        run.save(snapshot._replace(round=3, state=state))
        folder.write_metrics([{"method": "fedavg", "seed": 0, **told}])
        comparison = open_comparison(config, folder, print, SharedInputs())
        folder.write_execution(RecordedExecution(2, numeric_settings(), {}))
        comparison.resume(config)
        assert comparison.runs[0].round == 3


@pytest.mark.slow
def test_a_run_goes_on_with_the_devices_that_it_began_with(tmp_path):
    path, brief, wanted = tmp_path / "run", short(tmp_path, 2), short(tmp_path, 4)
    small_run.run(path, brief)
    record = path / "execution.json"
    assert json.loads(record.read_text())["devices"] == 2
    assert "begun on" not in "".join(small_run.run(path, wanted).notes)
    asked = small_run.run(path, short(tmp_path, 6), devices=1)
    assert "started on 2 device(s), resumes on 1: last digits may differ" in asked.notes
    assert json.loads(record.read_text())["devices"] == 2  # as it began
    small_run.run(path, short(tmp_path, 6), devices=1, fresh=True)
    assert json.loads(record.read_text())["devices"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("began", ["vmap", "map"])
def test_a_run_goes_on_with_the_strategy_that_auto_stood_for_when_it_began(tmp_path, monkeypatch, began):
    def rule(chosen):
        monkeypatch.setattr(strategy, "FEWEST", {"vmap": 1, "map": 100}[chosen])

    small = ("model={name: mlp, hidden: [4]}", "seeds=[0]", "methods=fedavg")
    wanted = lambda rounds: small_run.config(tmp_path, *small, f"training.rounds={rounds}")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    rule(began)
    small_run.run(whole, wanted(4))
    small_run.run(parts, wanted(2))
    rule({"map": "vmap", "vmap": "map"}[began])
    small_run.run(parts, wanted(4))
    assert json.loads((parts / "execution.json").read_text())["strategies"] == {"fedavg": began}
    assert results(parts) == results(whole)


def begin(path, *changes):
    """Begins a folder, or resumes in it, and trains nothing; returns the form of convolution."""
    loaded = load_config(path.parent / "small.yaml", ["model={name: tiny_bn}", "seeds=[0]", *changes])
    folder = RunFolder(path)
    with folder.claimed(loaded) as form:
        config = with_convolution(loaded, form)
        open_comparison(config, folder, print, SharedInputs()).resume(config)
    assert yaml.safe_load((path / "config.yaml").read_text())["model"]["convolution"] == form
    return form


@pytest.fixture
def machine(monkeypatch):
    """Sets whether this machine can use jaxlib's own oneDNN."""

    def able(reason):
        monkeypatch.setattr(automatic, "why_not_builtin", lambda: reason)
        monkeypatch.setattr(automatic, "choice", lambda: ("fast" if reason else "builtin", reason))

    return able


@pytest.mark.slow
def test_a_run_goes_on_with_the_form_of_convolution_that_it_began_with_or_stops(tmp_path, machine):
    path = tmp_path / "run"
    small_run.config(tmp_path)
    machine("")
    assert begin(path) == begin(path) == "builtin"
    machine("no such CPU")
    with pytest.raises(ValueError, match=r"convolution='builtin': .*: no such CPU; choose another"):
        begin(path)
    assert begin(tmp_path / "other") == "fast"
    machine("")
    assert begin(tmp_path / "other") == "fast"
    with pytest.raises(FolderError, match=r"model.convolution: 'builtin' here, 'plain' asked for"):
        begin(path, "model.convolution=plain")


def test_a_run_can_be_read_where_its_form_of_convolution_cannot_be_used(tmp_path, machine):
    small_run.config(tmp_path)
    machine("")
    begin(tmp_path / "run")
    machine("no such CPU")
    run = load_run(tmp_path / "run")
    assert run.model.name == "tiny_bn"
    assert run.config.model.convolution == "builtin"


def test_networks_without_convolutions_ask_no_machine(tmp_path, monkeypatch):
    monkeypatch.delattr(automatic, "choice")
    small_run.config(tmp_path)
    assert begin(tmp_path / "run", "model={name: mlp}") == "fast"


@pytest.mark.parametrize(
    "text", ['{"devices": 0}', '{"format": 2, "cores": 4}', '{"format": 1, "devices": 2}', "[]", "{", None]
)
def test_a_run_whose_record_of_execution_is_damaged_or_missing_does_not_go_on(tmp_path, text):
    folder = RunFolder(tmp_path)
    assert folder.read_execution() is None
    folder.checkpoints("fedavg", 0).mkdir(parents=True)
    (folder.checkpoints("fedavg", 0) / "round-00000002.npz").touch()
    if text is not None:
        (tmp_path / "execution.json").write_text(text)
    with pytest.raises(FolderError, match=r"execution.json: (missing|damaged, or written by another version).*--fresh"):
        folder.read_execution()
    folder.write_execution(RecordedExecution(4, {"jax_enable_x64": "False"}, {}))
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
    assert notes[2:] == ["fedavg, seed 0: resuming after round 2"]  # after data and training
    (there / "phones.csv").write_text("round,client\n0,1\n0,2\n0,4\n1,4\n1,5\n1,6\n")
    with pytest.raises(FolderError, match="started with different .*traces"):
        small_run.run(there / "run", moved(there, 6))


@pytest.mark.slow
def test_a_method_that_is_added_to_a_finished_comparison_is_trained_alone(trained, tmp_path):
    path = shutil.copytree(trained(*small_run.ONE), tmp_path / "run")
    before = small_run.metrics(path)
    checkpoints = {file: file.read_bytes() for file in (path / "checkpoints" / "fedavg-seed-0").iterdir()}
    both = small_run.config(tmp_path, *small_run.ONE, "methods=[{recipe: fedprox, mu: 0.1}, {recipe: fedavg}]")
    display = small_run.run(path, both)
    assert display.steps == [("fedavg", 0, 4), *(("fedprox", 0, round) for round in (0, 2, 4))]
    lines = small_run.metrics(path)
    assert [line for line in lines if line["method"] == "fedavg"] == before
    assert {line["method"] for line in lines} == {"fedprox", "fedavg"}
    assert {file: file.read_bytes() for file in (path / "checkpoints" / "fedavg-seed-0").iterdir()} == checkpoints
    with pytest.raises(FolderError, match="belongs to a different configuration"):  # whose results it would leave out
        small_run.run(path, small_run.config(tmp_path, *small_run.ONE))
