"""Hostile input by name: a pickle in a checkpoint, names that would run in a page, arguments that are no files."""

import hashlib
import io
import json
import os
import zipfile

import numpy as np
import pytest
import yaml
from fuzz import material
from fuzz.pages import check_page, foreign
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.lab.checkpoint import CheckpointError
from fedjax_bal.lab.checkpoint import load as load_checkpoint
from fedjax_bal.lab.folder import run_name
from fedjax_bal.report import write_run_page
from fedjax_bal.report.page import write_comparison_page
from fedjax_bal.report.sweep_page import write_sweep_page

METHODS = ("fedavg", "rebafl")
SCRIPT = "</title></style></svg><script>alert(1)</script><img src=x onerror=alert(1)>\"'"


def test_a_checkpoint_is_never_unpickled(tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([{}], object), allow_pickle=True)
    content = stream.getvalue()
    manifest = {"format": 1, "sha256": {"w.npy": hashlib.sha256(content).hexdigest()}}
    with zipfile.ZipFile(tmp_path / "round-00000001.npz", "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("w.npy", content)
    with pytest.raises(CheckpointError, match="pickle"):
        load_checkpoint(tmp_path / "round-00000001.npz", {"w": np.zeros(3)})


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
    names = {run_name(method, seed): run_name(scripted(method), seed) for method in METHODS for seed in (0, 1)}
    with np.load(folder / "confusion.npz") as matrices:
        renamed = {names[name]: matrices[name] for name in matrices.files}
    np.savez(folder / "confusion.npz", **renamed)
    for picture in list((folder / "pictures").iterdir()):
        picture.rename(picture.with_stem(names[picture.stem]))
    return folder


@pytest.mark.slow
def test_no_name_runs_in_the_pages_of_runs(tmp_path):
    one, other = hostile_run(tmp_path / "one"), hostile_run(tmp_path / f"two{SCRIPT.replace('/', '')}")
    page = write_run_page(one)
    check_page(page)
    text = page.read_text()
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 20  # they are all there, as text
    assert len(list((one / "plots").glob("*.svg"))) > 5
    for folder in (one, other):  # drawing it all once is enough
        (folder / "metrics.jsonl").write_text("")
    tree = json.loads((other / "config.yaml").read_text())
    (other / "config.yaml").write_text(json.dumps(tree | {f"extra{SCRIPT}": SCRIPT}))
    both = write_comparison_page([one, other], tmp_path / "both.html")
    check_page(both)
    assert "two&lt;title&gt;" in both.read_text() and "extra&lt;/title&gt;" in both.read_text()


@pytest.mark.slow
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
    page = write_sweep_page(tmp_path)
    check_page(page)
    assert page.read_text().count("&lt;script&gt;alert(1)&lt;/script&gt;") > 8


@pytest.mark.slow
def test_the_check_of_pages_finds_what_runs(tmp_path):
    material.small_run(tmp_path / "run")
    text = write_run_page(tmp_path / "run").read_text()
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "{folder}/pipe"], "pipe: can't be read (is a pipe); give a YAML file"),
        (["run", "{folder}/deep.yaml"], "nested deeper than 20 levels"),
        (["run", "name=../../x"], "name: received '../../x'"),
        (["report", "{folder}"], "holds no run or sweep"),
        (["data", "describe", "dataset.name=npz", "dataset.path={folder}/pipe"], "pipe: can't be read (is a pipe)"),
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
