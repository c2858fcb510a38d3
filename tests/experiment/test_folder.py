"""Whom a folder belongs to, and what is refused."""

import os
from pathlib import Path

import pytest
import small_run

from fedjax_bal.experiment.folder import FolderError, RunFolder


def claim(path, config, fresh=False):
    folder = RunFolder(path)
    with folder.claimed(config):
        folder.begin(config, fresh=fresh)


def test_another_configuration_is_refused_and_named(tmp_path):
    path = tmp_path / "run"
    claim(path, small_run.config(tmp_path))
    before = (path / "config.yaml").read_bytes()
    for fresh in (False, True):
        with pytest.raises(FolderError, match=r"(?s)another configuration.*training.rounds: 7 here, 9 asked for"):
            claim(path, small_run.config(tmp_path, "training.rounds=9"), fresh)
    assert (path / "config.yaml").read_bytes() == before


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
    (outside / "kept.npz").write_text("kept")
    (path / "checkpoints" / "link").symlink_to(outside)
    claim(path, config, fresh=True)
    assert (path / "notes.txt").read_text() == "mine"
    assert not (path / "metrics.jsonl").exists()
    assert (outside / "kept.npz").exists()


def test_two_processes_cannot_share_a_folder(tmp_path):
    path, config = tmp_path / "run", small_run.config(tmp_path)
    with (
        RunFolder(path).claimed(config),
        pytest.raises(FolderError, match="another process is running"),
        RunFolder(path).claimed(config),
    ):
        pass
    claim(path, config)


def test_a_damaged_configuration_is_left_alone(tmp_path):
    path, config = tmp_path / "run", small_run.config(tmp_path)
    claim(path, config)
    (path / "config.yaml").write_text("name: [")
    with pytest.raises(FolderError, match=r"config.yaml can't be read"):
        claim(path, config)


@pytest.mark.parametrize("place", ["/proc/run", "/dev/null/run"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    if not os.path.exists(os.path.dirname(place)):
        pytest.skip(f"no {place} on this system")
    with pytest.raises(FolderError, match=r"can't be written .*--out"):
        claim(Path(place), small_run.config(tmp_path))


def test_metrics_stop_at_a_line_that_was_cut_off(tmp_path):
    folder = RunFolder(tmp_path)
    good = '{"method": "a", "seed": 0, "round": 1}\n'
    (tmp_path / "metrics.jsonl").write_text(good + good.replace("1}", "2}") + good[:15])
    assert [line["round"] for line in folder.read_metrics()] == [1, 2]
