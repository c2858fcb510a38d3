"""Broken clients in a run folder: counted and named, the same after an interruption; a divergence leaves a way back."""

import json

import jax
import numpy as np
import pytest
import small_run

from fedjax_bal.lab import FolderError, RunFolder, Stopped, checkpoint
from fedjax_bal.lab.compare import open_comparison
from fedjax_bal.lab.outline import dry_run
from fedjax_bal.lab.setup import SharedInputs
from fedjax_bal.lab.sweep_plan import Point, Sweep
from fedjax_bal.report import write_run_page

FAULTS = "{name: faults, kind: not_a_number, clients: [0, 1, 2, 3, 4], rounds: [4, 5]}"
METHOD = f"methods=[{{recipe: [fedavg, {FAULTS}], name: tried}}]"
COMMON = ("seeds=[0]", "delivery={name: always}", "availability={name: always}", "selection.clients_per_round=6")


@pytest.fixture(scope="module")
def excluded(tmp_path_factory):
    """A folder of a run that leaves clients out, and what was shown."""
    path = tmp_path_factory.mktemp("excluded") / "run"
    display = small_run.run(path, small_run.config(path.parent, METHOD, *COMMON, "execution.broken_clients=exclude"))
    return path, display


@pytest.mark.slow
def test_lines_summary_notes_and_report_say_who_was_left_out(excluded):
    path, display = excluded
    lines = small_run.metrics(path)
    named = [row for line in lines for row in line["broken_clients"]]
    assert [line["round"] for line in lines] == [2, 4, 6, 7]
    assert {row[0] for row in named} == {4, 5} and {row[1] for row in named} <= {0, 1, 2, 3, 4}
    assert [line["excluded"] for line in lines] == [sum(row[0] == round for row in named) for round in (2, 4, 5, 7)]
    assert all(line["excluded"] <= line["dropped"] for line in lines)
    run = json.loads((path / "summary.json").read_text())["runs"][0]
    assert (run["excluded"], run["clipped"], run["failure"]) == (len(named), 0, None)
    assert run["broken_clients"].startswith(f"client {named[0][1]} in round 4 (not finite)")
    notes = [note for note in display.notes if "left out" in note]
    assert len(notes) == 2  # one for each dispatch
    assert notes[0].startswith(f"tried, seed 0: left out: client {named[0][1]} in round 4 (not finite)")
    page = write_run_page(path).read_text()
    assert f">tried</th><td>0</td><td>{len(named)}</td><td>0</td><td>client {named[0][1]} in round 4" in page


@pytest.mark.slow
def test_an_interruption_changes_none_of_it(excluded, tmp_path):
    path, _ = excluded
    config = small_run.config(
        tmp_path, METHOD, *COMMON, "execution.broken_clients=exclude", "execution.checkpoint_every=1"
    )
    calls = iter([False, True])
    with pytest.raises(Stopped):
        small_run.run(tmp_path / "run", config, should_stop=lambda: next(calls))
    small_run.run(tmp_path / "run", config)
    assert small_run.metrics(tmp_path / "run") == small_run.metrics(path)


@pytest.mark.slow
def test_a_divergence_leaves_the_last_good_checkpoint(tmp_path):
    config = small_run.config(tmp_path, METHOD, *COMMON)
    display = small_run.run(tmp_path / "run", config)
    folder = RunFolder(tmp_path / "run")
    files = checkpoint.generations(folder.checkpoints("tried", 0))
    assert [file.name for file in files] == ["round-00000002.npz"]
    [run] = open_comparison(config, folder, display.note, SharedInputs()).runs
    saved = run.load_checkpoint()
    assert int(saved.snapshot.round) == 2
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(saved.snapshot.state))
    (note,) = [note for note in display.notes if "diverged" in note]
    assert "diverged in round 4: the update" in note and note.endswith(f"its last good checkpoint is {files[0]}")
    again = small_run.run(tmp_path / "run", config)  # goes on from there, and comes to the same
    assert "tried, seed 0: resuming after round 2" in again.notes
    assert note in again.notes
    with pytest.raises(FolderError, match=r"another folder with\s+--out.*\n.*learning_rate"):
        small_run.run(
            tmp_path / "run", small_run.config(tmp_path, METHOD, *COMMON, "training.optimizer.learning_rate=0.01")
        )


def test_a_dry_run_counts_a_run_that_diverged_as_left(tmp_path):
    folder, config = RunFolder(tmp_path / "run"), small_run.config(tmp_path, "methods=[fedavg]", *COMMON)
    with folder.claimed(config):
        folder.begin(config, fresh=False)
        folder.write_summary({"runs": [{"method": "fedavg", "seed": 0, "rounds": 0, "failure": "round 1: not finite"}]})
    sweep = Sweep(config.name, (), (Point("", {}, config),), "")
    first = next(dry_run(sweep, {"": folder}, SharedInputs(devices=1, plan=True), 1))
    assert first.startswith("small: 1 of 1 runs to train")
