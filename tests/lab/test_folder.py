"""Whom a folder belongs to, and what is refused."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import small_run

from fedjax_bal.config import config_digest, load_config, resolved_yaml, run_digest
from fedjax_bal.lab import FolderError, Point, RunFolder, Sweep, SweepFolder
from fedjax_bal.lab.claim import claim_run_folder
from fedjax_bal.lab.errors import ForeignFolderError
from fedjax_bal.lab.folder import PERSONALISED, PICTURES, run_name
from fedjax_bal.models import automatic


def claim(path, config, fresh=False):
    folder = RunFolder(path)
    with folder.claimed(config):
        folder.begin(config, fresh=fresh)


def test_another_configuration_is_refused_and_named(tmp_path):
    path = tmp_path / "run"
    claim(path, small_run.config(tmp_path))
    before = (path / "config.yaml").read_bytes()
    for fresh in (False, True):
        with pytest.raises(FolderError, match=r"(?s)a different configuration.*training.rounds: 7 here, 5 asked for"):
            claim(path, small_run.config(tmp_path, "training.rounds=5"), fresh)
    assert (path / "config.yaml").read_bytes() == before


def test_the_next_folder_is_the_first_without_another_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notes = []

    def begin(*changes, lock=True):
        """Begins the folder that a session of these changes gets."""
        config = small_run.config(tmp_path, *changes)
        with contextlib.ExitStack() as session:
            folder, config = claim_run_folder(session, config, None, notes.append, lock=lock)
            if lock:
                folder.begin(config, fresh=False)
        return str(folder.path)

    assert begin(lock=False) == begin() == begin(lock=False) == "runs/small"
    assert begin("training.rounds=8") == begin("training.rounds=9", lock=False) == "runs/small" and not notes
    assert begin("training.rounds=5", lock=False) == begin("training.rounds=5") == "runs/small-2"
    differing = "runs/small holds different results; writing to runs/small-2. Differences:\n  "
    assert notes == [f"{differing}training.rounds: 8 here, 5 asked for"] * 2
    with RunFolder(Path("runs/small")).claimed(small_run.config(tmp_path, "training.rounds=8")):
        assert begin("training.rounds=6") == "runs/small-2"  # and hasn't taken the lock of the first on its way
    assert begin("training.rounds=4", lock=False) == "runs/small-3"
    assert not Path("runs/small-3").exists()
    Path("runs/small-3").mkdir()
    Path("runs/small-3/thesis.tex").write_text("precious")
    for lock in (True, False):
        with pytest.raises(FolderError, match="runs/small-3: is not empty and not a run folder"):
            begin("training.rounds=4", lock=lock)
    assert [file.name for file in Path("runs/small-3").iterdir()] == ["thesis.tex"]


def test_a_folder_that_another_process_begins_before_it_is_locked_is_compared_again(tmp_path, monkeypatch):
    path, config, create = tmp_path / "run", small_run.config(tmp_path), RunFolder.create
    other = resolved_yaml(small_run.config(tmp_path, "training.batch_size=7"))
    monkeypatch.setattr(RunFolder, "create", lambda self: create(self) or (path / "config.yaml").write_text(other))
    with pytest.raises(ForeignFolderError, match="batch_size: 7 here, 20 asked for"):
        claim(path, config)
    assert (path / "config.yaml").read_text() == other


def test_a_folder_of_somebody_elses_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    (tmp_path / "elsewhere").mkdir()
    config = small_run.config(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match="not a run folder"):
        claim(tmp_path, config, fresh=True)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_fresh_removes_only_what_a_run_writes(tmp_path):
    path, config = tmp_path / "run", small_run.config(tmp_path)
    claim(path, config)
    (path / "notes.txt").write_text("mine")
    (path / "metrics.jsonl").write_text("{}\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "round-00000002.npz").write_text("kept")
    (outside / "figure.svg").write_text("kept")
    (path / "checkpoints" / "fedavg-seed-0").symlink_to(outside)
    (path / "plots").symlink_to(outside)
    (path / "checkpoints" / "mine.pt").write_text("kept")
    claim(path, config, fresh=True)
    assert (path / "notes.txt").read_text() == "mine"
    assert not (path / "metrics.jsonl").exists()
    assert sorted(file.name for file in outside.iterdir()) == ["figure.svg", "round-00000002.npz"]
    assert (path / "checkpoints" / "mine.pt").exists()


def test_a_configuration_that_no_run_wrote_is_not_overwritten(tmp_path):
    config = small_run.config(tmp_path)
    (tmp_path / "small.yaml").rename(tmp_path / "config.yaml")
    with pytest.raises(FolderError, match="was not written by a run"):
        claim(tmp_path, config)
    assert (tmp_path / "config.yaml").read_text() == small_run.TEXT


def test_every_key_counts_in_the_digest(tmp_path):
    config = small_run.config(tmp_path)
    assert config_digest(config) == hashlib.sha256(resolved_yaml(config).encode()).hexdigest()
    for change in ("dataset.std=own", "model.hidden=[65]", "execution.precision=bfloat16"):
        assert config_digest(small_run.config(tmp_path, change)) != config_digest(config)


def test_a_folder_goes_on_with_its_form_of_convolution_where_auto_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(automatic, "form", lambda: "fast")
    (tmp_path / "small.yaml").write_text(small_run.TEXT)
    asked = lambda *changes: load_config(tmp_path / "small.yaml", ["model={name: tiny_bn}", *changes])
    path = tmp_path / "run"
    compared = lambda *changes: RunFolder(path).compared(asked(*changes))
    assert compared() == "fast"
    claim(path, asked("model.convolution=builtin"))
    assert compared() == compared("training.rounds=9") == "builtin"
    with pytest.raises(ForeignFolderError) as other:
        compared("training.batch_size=7")
    assert other.value.differences == "training.batch_size: 20 here, 7 asked for"
    with pytest.raises(ForeignFolderError) as explicit:
        compared("model.convolution=plain")
    assert explicit.value.differences == "model.convolution: 'builtin' here, 'plain' asked for"
    shutil.rmtree(path)
    claim(path, asked("model.convolution=plain"))
    with pytest.raises(ForeignFolderError) as plain:
        compared()
    assert plain.value.differences == "model.convolution: 'plain' here, 'fast' asked for"


def test_a_kill_while_starting_over_leaves_a_folder_that_can_be_used(tmp_path, monkeypatch):
    path, config = tmp_path / "run", small_run.config(tmp_path)
    claim(path, config)
    (path / "metrics.jsonl").write_text("{}\n")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "unlink", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        claim(path, config, fresh=True)
    claim(path, config, fresh=True)
    assert not (path / "metrics.jsonl").exists()


def test_two_processes_cannot_share_a_folder(tmp_path):
    path, config = tmp_path / "run", small_run.config(tmp_path)
    with (
        RunFolder(path).claimed(config),
        pytest.raises(FolderError, match="another process is using"),
        RunFolder(path).claimed(config),
    ):
        pass
    claim(path, config)


@pytest.mark.slow
def test_a_point_can_not_be_run_by_hand_while_its_sweep_trains(tmp_path):
    config = small_run.config(tmp_path)
    sweep, plan = SweepFolder(tmp_path / "sweep"), Sweep("sweep", (), (Point("a", {}, config),), "sweep: []\n")
    with sweep.claimed(plan):
        (sweep.path / "sweep.yaml").write_text(plan.text)
        with pytest.raises(FolderError, match=f"{sweep.path}: another process is using this folder"):
            claim(sweep.point("a").path, config)
    with RunFolder(sweep.point("a").path).claimed(config):
        claim(sweep.point("b").path, config)
        with sweep.claimed(plan):
            assert "another process" in str(sweep.refused["a"])
    later = SweepFolder(sweep.path)
    with later.claimed(plan):
        assert not later.refused


@pytest.mark.slow
def test_the_lock_of_a_killed_process_does_not_keep_others_out(tmp_path):
    path, config = tmp_path / "run", small_run.config(tmp_path)
    code = f"""
import time
from pathlib import Path
from fedjax_bal.config import load_config, with_convolution
from fedjax_bal.lab import RunFolder
config = with_convolution(load_config({str(tmp_path / "small.yaml")!r}), "fast")
with RunFolder(Path({str(path)!r})).claimed(config):
    Path({str(tmp_path / "locked")!r}).touch()
    time.sleep(300)
"""
    holder = subprocess.Popen([sys.executable, "-c", code])
    try:
        while not (tmp_path / "locked").exists():
            assert holder.poll() is None
            time.sleep(0.05)
        with pytest.raises(FolderError, match="another process is using") as same, RunFolder(path).claimed(config):
            pass
        other = small_run.config(tmp_path, "training.batch_size=7")
        with pytest.raises(FolderError, match="another process is using") as another, RunFolder(path).claimed(other):
            pass
        assert not isinstance(same.value, ForeignFolderError) and isinstance(another.value, ForeignFolderError)
    finally:
        holder.kill()
        holder.wait()
    claim(path, config)


def test_a_damaged_configuration_is_left_alone(tmp_path):
    path, config = tmp_path / "run", small_run.config(tmp_path)
    claim(path, config)
    (path / "config.yaml").write_text("name: [")
    with pytest.raises(FolderError, match=r"config.yaml: damaged.*choose another folder"):
        claim(path, config)


@pytest.mark.parametrize("place", ["/proc/run", "/dev/null/run"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    if not os.path.exists(os.path.dirname(place)):
        pytest.skip(f"no {place} on this system")
    with pytest.raises(FolderError, match=r"can't be written .*--out"):
        claim(Path(place), small_run.config(tmp_path))


def test_metrics_leave_out_a_line_that_is_cut_off_and_name_one_that_is_damaged(tmp_path):
    folder, file = RunFolder(tmp_path), tmp_path / "metrics.jsonl"
    first, second = (f'{{"method": "a", "seed": 0, "round": {round}}}\n' for round in (1, 2))
    file.write_text(first + second + second[:15])
    assert [line["round"] for line in folder.read_metrics()] == [1, 2]
    for damaged in ("garbage\n", "[1]\n", '{"method": "a"}\n'):
        file.write_text(first + damaged + second)
        with pytest.raises(FolderError, match="metrics.jsonl: damaged, or written by another version .line 2: "):
            folder.read_metrics()


def test_only_the_first_of_several_processes_touches_the_folder(tmp_path):
    path, config = tmp_path / "run", small_run.config(tmp_path)
    folder = RunFolder(path, first=False)
    run = ("fedavg", 0)
    for round in (1, 2):  # before and after the first process has written there
        folder.begin(config, fresh=True)
        folder.clear(*run, PICTURES, PERSONALISED)
        folder.save(*run, round, {"w": np.zeros(3)})
        folder.write_metrics([{"round": round}])
        folder.append_metrics([{"round": round}])
        folder.write_summary({"runs": []})
        folder.write_pictures(*run, {"real": np.zeros(3)})
        folder.write_analysis(PERSONALISED, *run, {})
        folder.finish()
        assert (folder.read_metrics(), folder.read_summary()) == ([], {})
        assert folder.read_analysis(PERSONALISED, *run) is None
        assert not path.exists() or [file.name for file in path.iterdir()] == ["summary.json"]
        path.mkdir(exist_ok=True)
        (path / "summary.json").write_text('{"runs": 1}')
    assert (path / "summary.json").read_text() == '{"runs": 1}'


def test_a_run_is_named_by_its_method_and_two_methods_never_share_a_name():
    assert run_name("fedavg+faults", 3) == "fedavg+faults-seed-3"
    names = ["a b", "a-b", "a/b", "../a b", "é", "ü", "x" * 300, "x" * 301, ".a", "a"]
    safe = [run_name(name, 0) for name in names]
    assert len(set(safe)) == len(names)
    assert all(len(name) < 120 and name.isascii() and "/" not in name and name[0] != "." for name in safe)


def test_sha256sum_checks_a_finished_folder_whatever_its_files_are_called(tmp_path):
    path = tmp_path / "run"
    weights = tmp_path / "my\\weights\n(1).npz"
    weights.write_bytes(b"0.5")
    config = small_run.config(tmp_path)
    method = config.methods[0].model_copy(
        update={"model": config.methods[0].model.model_copy(update={"weights": str(weights)})}
    )
    config = config.model_copy(update={"methods": (method, *config.methods[1:])})
    claim(path, config)
    folder = RunFolder(path)
    folder.write_metrics([{"method": "fedavg", "seed": 0, "round": 1}])
    folder.save("fedavg", 0, 1, {"w": np.zeros(3)})
    folder.finish()
    check = lambda: subprocess.run(["sha256sum", "--strict", "--check", "SHA256SUMS"], cwd=path, capture_output=True)
    assert check().returncode == 0 and check().stdout.count(b"OK") == 4
    (path / "metrics.jsonl").write_text("")
    assert check().returncode == 1
    folder.begin(config, fresh=False)
    assert not (path / "SHA256SUMS").exists()


def test_a_run_is_repeated_from_the_copies_of_its_files_alone(tmp_path):
    files = [tmp_path / name / "w.npz" for name in ("a", "b")]
    for number, file in enumerate(files):
        file.parent.mkdir()
        file.write_bytes(bytes([number]))
    methods = f"methods=[fedavg, {{recipe: scaffold, model: {{weights: {files[1]}}}}}]"
    config = small_run.config(tmp_path, f"model.weights={files[0]}", methods)
    path = tmp_path / "run"
    claim(path, config)
    _, text = RunFolder(path).read_sheet()
    assert str(tmp_path) not in text
    for file in files:
        file.unlink()
    empty = tmp_path / "empty"
    shutil.copytree(path / "files", empty / "files")
    (empty / "config.yaml").write_text(text)
    again = load_config(empty / "config.yaml")
    assert run_digest(again) == run_digest(config)
    named = [Path(method.model.weights) for method in again.methods]
    assert [(file.name, file.read_bytes()) for file in named] == [("w.npz", b"\0"), ("w.npz", b"\1")]
