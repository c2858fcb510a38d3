"""Hostile input by name: bombs, pipes, links that lead out, and names that would run in a page."""

import hashlib
import io
import json
import os
import re
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from data.conftest import most_memory
from fuzz import material
from fuzz.guard import attempt
from fuzz.pages import check_page, foreign
from fuzz.values import TEXTS
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.config import load_config
from fedjax_bal.config.yaml_text import dump_yaml, parse_yaml
from fedjax_bal.contrib.trackers.wandb import WeightsAndBiases
from fedjax_bal.data import DataError, load
from fedjax_bal.lab import FolderError, RunFolder
from fedjax_bal.lab.checkpoint import CheckpointError
from fedjax_bal.lab.checkpoint import load as load_checkpoint
from fedjax_bal.lab.schema import read_pictures
from fedjax_bal.report import build
from fedjax_bal.report.page import build_comparison
from fedjax_bal.report.sweep_page import build_sweep

LITTLE = 20 * 2**20
SCRIPT = "</title></style></svg><script>alert(1)</script><img src=x onerror=alert(1)>\"'"


@pytest.fixture
def run(tmp_path):
    """A run's folder."""
    material.small_run(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def outside(tmp_path):
    """A file of somebody else's."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("mine")
    yield tmp_path / "outside"
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["precious"]
    assert (tmp_path / "outside" / "precious").read_text() == "mine"


# Headers that claim, and archives that swell.


def npy(array, shape=None):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    content = stream.getvalue()
    return content if shape is None else content.replace(str(array.shape).encode(), shape.encode())


def archive(file, members, kind=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(file, "w", kind) as made:
        for name, content in members.items():
            made.writestr(name, content)


@pytest.mark.slow
def test_pictures_of_a_run_that_swell(run):
    file = run / "pictures" / "method-0-seed-0.npz"
    archive(file, {"real.npy": npy(np.zeros((3, 2, 10_000, 10_000, 1), np.uint8))})
    assert file.stat().st_size < 2**20  # which would be six hundred times as much
    message = "claims arrays of 600000128 bytes, at most 268435456 are read"
    with most_memory(LITTLE), pytest.raises(FolderError, match=message):
        read_pictures(file, 3)
    with pytest.raises(FolderError, match=message):
        build(run)


def test_a_checkpoint_that_swells_or_claims(tmp_path):
    def refused(message):
        with most_memory(LITTLE), pytest.raises(CheckpointError, match=message):
            load_checkpoint(file, {"w": np.zeros(3)})

    file = tmp_path / "round-00000001.npz"
    archive(file, {"manifest.json": '{"sha256": {}}' + " " * 10**8})
    refused("damaged .it is packed")
    claiming, pickled = npy(np.zeros(3), "(1000000000000,)"), npy(np.array([{}], object))
    for content, message in ((claiming, "damaged"), (pickled, "array of objects, which is a pickle")):
        manifest = {"format": 1, "sha256": {"w.npy": hashlib.sha256(content).hexdigest()}}
        archive(file, {"manifest.json": json.dumps(manifest), "w.npy": content}, zipfile.ZIP_STORED)
        refused(message)


def test_a_text_for_a_pixel_takes_no_room_for_each(tmp_path):
    material.leaf(tmp_path)
    tree = json.loads((tmp_path / "train" / "train_0.json").read_text())
    tree["user_data"]["f0_1"]["x"][0][5] = "9" * 500_000
    (tmp_path / "train" / "train_0.json").write_text(json.dumps(tree))
    with most_memory(LITTLE), pytest.raises(DataError, match="writer f0_1: expected pixels from 0 to 1"):
        load("femnist", tmp_path)


# Text.


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_names_stay_names(text):
    assert parse_yaml(dump_yaml({"name": text}), "mine.yaml")["name"] == text
    outcome = attempt(lambda: load_config(None, [f"name={json.dumps(text)}"]))
    assert not outcome.bad
    assert (outcome.kind == "success") == bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text)), outcome


def test_a_tracker_does_not_wait_for_its_id(tmp_path):
    tracker = object.__new__(WeightsAndBiases)  # as if its package were there
    tracker._root = tmp_path / "wandb"
    run = SimpleNamespace(key="fedavg-seed-0")
    name = tracker._id(run)
    assert re.fullmatch("fedjax-bal-[0-9a-f]{8}-fedavg-seed-0", name)
    assert tracker._id(run) == name and (tmp_path / "wandb" / "fedjax-bal-id").read_text() in name
    (tmp_path / "wandb" / "fedjax-bal-id").unlink()
    os.mkfifo(tmp_path / "wandb" / "fedjax-bal-id")
    with pytest.raises(OSError, match="is a pipe"):
        tracker._id(run)


def test_a_tracker_makes_no_folder_through_a_link(tmp_path, outside):
    tracker = object.__new__(WeightsAndBiases)  # as if its package were there
    tracker._root = tmp_path / "wandb"
    tracker._root.symlink_to(outside)
    with pytest.raises(OSError, match="wandb is a link"):
        tracker._id(SimpleNamespace(key="fedavg-seed-0"))


# Links that lead out.


@pytest.mark.slow
def test_a_report_is_not_written_through_links(run, outside):
    (run / "plots").mkdir()
    for name in ("report.html", ".report.html.part", "plots/accuracy.svg", "plots/.accuracy.svg.part"):
        (run / name).symlink_to(outside / "precious")
    page = build(run)
    assert not page.is_symlink() and "<h1>" in page.read_text()
    for file in (run / "plots").iterdir():
        file.unlink()
    (run / "plots").rmdir()
    (run / "plots").symlink_to(outside)
    with pytest.raises(FolderError, match="can't be written .plots is a link"):
        build(run)


def test_a_lock_and_checkpoints_are_not_made_through_links(tmp_path, outside):
    config = load_config(None)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / ".lock").symlink_to(outside / "precious")
    with pytest.raises(FolderError, match="can't be written .*symbolic links"), folder.claimed(config):
        pass
    (folder.path / ".lock").unlink()
    (folder.path / "checkpoints").symlink_to(outside)
    with pytest.raises(FolderError, match="can't be written .*checkpoints is a link"):
        folder.begin(config, fresh=False)
    (folder.path / "checkpoints").unlink()
    folder.begin(config, fresh=False)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "round-00000001.npz").touch()
    folder.checkpoints(0, 0).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="method-0-seed-0 is a link"):
        folder.save(0, 0, 5, {"weights": np.zeros(2)})
    assert [file.name for file in (tmp_path / "elsewhere").iterdir()] == ["round-00000001.npz"]


# Folders of runs.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("summary", lambda tree: tree["versions"].update(jax=eval("[" * 60 + "]" * 60)), "nested at most 20 deep"),
        ("summary", lambda tree: tree.update(wall_s=10**4000), "numbers of at most 100 digits"),
        ("summary", lambda tree: tree["runs"][0].update(seed=10**30), None),
        ("summary", lambda tree: tree.update(compile_s=10**60), None),
        ("config", lambda tree: tree.update(seeds=[{}, [], 0]), None),
        ("config", lambda tree: tree["paper"].update(which=["best"]), None),
    ],
)
def test_values_that_broke_the_page(name, change, message, run):
    file, reader, writer = {
        "summary": (run / "summary.json", json.loads, json.dumps),
        "config": (run / "config.yaml", yaml.safe_load, yaml.safe_dump),
    }[name]
    tree = reader(file.read_text())
    change(tree)
    file.write_text(writer(tree))
    outcome = attempt(lambda: check_page(build(run)), (run,))
    assert not outcome.bad, outcome
    assert re.search(message, outcome.told) if message else outcome.kind == "success", outcome


# Pages.


def hostile_run(folder):
    """A run's folder in which every text is a script."""

    def scripted(value, key=""):
        if isinstance(value, dict):
            return {name: scripted(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [scripted(inner, f"{key} {place}") for place, inner in enumerate(value)]
        return f"{value}{SCRIPT}" if isinstance(value, str) else value

    material.run_folder(folder)
    for name in ("summary.json", "config.yaml"):
        tree = yaml.safe_load((folder / name).read_text())
        (folder / name).write_text(json.dumps(scripted(tree) | {f"key{SCRIPT}": {f"inner{SCRIPT}": 1}}))
    lines = [scripted(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.slow
def test_no_name_runs_in_the_pages_of_runs(tmp_path):
    one, other = hostile_run(tmp_path / "one"), hostile_run(tmp_path / f"two{SCRIPT.replace('/', '')}")
    page = build(one)
    check_page(page)
    text = page.read_text()
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 20  # they are all there, as text
    assert len(list((one / "plots").glob("*.svg"))) > 5
    for folder in (one, other):  # drawing it all once is enough
        (folder / "metrics.jsonl").write_text("")
    tree = json.loads((other / "config.yaml").read_text())
    (other / "config.yaml").write_text(json.dumps(tree | {f"extra{SCRIPT}": SCRIPT}))
    both = build_comparison([one, other], tmp_path / "both.html")
    check_page(both)
    assert "two&lt;title&gt;" in both.read_text() and "extra&lt;/title&gt;" in both.read_text()


def test_no_name_runs_in_the_page_of_a_sweep(tmp_path):
    material.sweep_folder(tmp_path)
    sheet = yaml.safe_load((tmp_path / "sweep.yaml").read_text())
    key = f"training.{SCRIPT}"
    sheet["sweep"][0] = {key: [0.01, 0.1]}
    (tmp_path / "sweep.yaml").write_text(json.dumps(sheet | {"name": SCRIPT}))
    quoted = lambda text: '"' + text.replace('"', '""') + '"'
    table = (tmp_path / "results.csv").read_text().replace("training.optimizer.learning_rate", quoted(key))
    table = table.replace(",fedavg,", f",{quoted('fedavg' + SCRIPT)},").replace(
        "done,,", f"failed,{quoted(SCRIPT)},", 1
    )
    (tmp_path / "results.csv").write_text(table)
    page = build_sweep(tmp_path)
    check_page(page)
    assert page.read_text().count("&lt;script&gt;alert(1)&lt;/script&gt;") > 8


def test_the_check_of_pages_finds_what_runs(run):
    text = build(run).read_text()
    assert foreign(text) == []
    for planted, found in (
        ("<script>alert(1)</script>", "<script>"),
        ("<img src=x onerror=alert(1)>", "the link 'x'"),
        ("<p onclick=alert(1)></p>", "onclick"),
        ('<a href="javascript:alert(1)"></a>', "the link 'javascript:alert(1)'"),
        ("<!-- -->", "comment"),
        ("</p>", "out of place"),
        ("<main>", "2 times <main>"),
    ):
        assert any(found in told for told in foreign(text.replace("<h2", f"{planted}<h2", 1))), planted


# The command line.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "{folder}/pipe"], "pipe: can't be read (is a pipe); give a YAML file"),
        (["run", "{folder}/deep.yaml"], "nested deeper than 20 levels"),
        (["sweep", "{folder}/deep.yaml"], "nested deeper than 20 levels"),
        (["run", "name=../../x"], "name: received '../../x'"),
        (["run", "name={folder}/" + "x" * 300], "name: received"),
        (["run", "x" * 5000], "is neither a file nor a built-in configuration"),
        (["report", "{folder}"], "holds no run or sweep"),
        (["report", "x" * 5000], "no such folder" if sys.version_info >= (3, 14) else "name too long"),
        (["data", "describe", "{folder}/pipe"], "pipe: can't be read (is a pipe)"),
        (["data", "describe", "npz", "dataset.path={folder}/pipe"], "pipe: can't be read (is a pipe)"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else None,
)
def test_commands_end_with_a_message(arguments, message, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "deep.yaml").write_text("[" * 10_000)
    result = CliRunner().invoke(app, [argument.replace("{folder}", str(tmp_path)) for argument in arguments])
    assert result.exit_code == 2, result.output
    assert message.lower() in result.output.lower()
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
