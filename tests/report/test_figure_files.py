"""Figures as files for papers."""

import io
import re

import pytest
from PIL import Image
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.lab import FolderError
from fedjax_bal.report import write_figures

SWEEP = "name: mine\nsweep: [{lr: [0.1, 0.2]}]\n"
TABLE = "lr,point,method,seed,status,last5_accuracy,failure\n0.1,p,fedavg,0,done,0.5,\n0.2,p,fedavg,0,done,0.6,\n"


@pytest.fixture
def sweep(tmp_path):
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "sweep.yaml").write_text(SWEEP)
    (folder / "results.csv").write_text(TABLE)
    return folder


def widths(folder):
    """The widths of the files in inches, by name."""
    box = re.compile(rb"/MediaBox \[ ?0 0 ([\d.]+) ")
    pages = {file.name: float(box.search(file.read_bytes())[1]) / 72 for file in folder.glob("*.pdf")}
    return pages | {file.name: Image.open(io.BytesIO(file.read_bytes())).width / 300 for file in folder.glob("*.png")}


def test_figures_of_a_sweep_are_as_wide_as_asked(sweep, tmp_path):
    assert [file.name for file in write_figures([sweep], tmp_path / "new" / "out", 3.25)] == ["mean-accuracy-0.pdf"]
    found = widths(tmp_path / "new" / "out")
    assert sorted(found) == ["mean-accuracy-0.pdf", "mean-accuracy-0.png"]
    assert list(found.values()) == pytest.approx([3.25] * 2, abs=0.01)


@pytest.mark.slow
def test_figures_of_a_run_and_of_a_comparison(make_run, tmp_path):
    folders = [make_run(tmp_path / name, methods=("fedavg",), seeds=(0,), rounds=2) for name in "ab"]
    names = [file.stem for file in write_figures(folders[:1], tmp_path / "one", 5.5)]
    assert names == ["accuracy", "traffic", "classes", "predictions", "partition-1", "confusion-1"]
    assert list(widths(tmp_path / "one").values()) == pytest.approx([5.5] * 12, abs=0.01)
    before = {file.name: file.read_bytes() for file in (tmp_path / "one").iterdir()}
    write_figures(folders[:1], tmp_path / "one", 5.5)
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "one").iterdir()}
    assert "confusion-2" in [file.stem for file in write_figures(folders, tmp_path / "two", 3.25)]


def test_a_place_that_cannot_be_written_is_an_error_in_words(sweep, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="the figures can't be written there"):
        write_figures([sweep], tmp_path / "file", 3.25)


def test_the_command_says_where_figures_are(sweep, tmp_path):
    found = CliRunner().invoke(app, ["report", str(sweep), "--figures", str(tmp_path / "out"), "--width", "3.5"])
    assert found.exit_code == 0, found.output
    assert "(1 as PDF and PNG, 3.5 inches wide)" in " ".join(found.output.split())
    assert (sweep / "sweep.html").exists()
