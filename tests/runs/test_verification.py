"""What `fedjax-bal verify` finds: folders that are whole, damaged in one place, or of an earlier version."""

import json
import re
import shutil

import pytest
import small_run
import small_sweep
from typer.testing import CliRunner

from fedjax_bal import load_run
from fedjax_bal.cli.app import app
from fedjax_bal.runs import RunFolder, verify

ONE = ("methods=[{recipe: fedavg}]", "seeds=[0]", "training.rounds=4")
CHECKPOINT = "checkpoints/method-0-seed-0/round-00000004.npz"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run, with an export of each format that needs no library."""
    path = tmp_path_factory.mktemp("verified") / "run"
    small_run.run(path, small_run.config(path.parent, *ONE))
    for kind in ("npz", "safetensors"):
        load_run(path).export(kind=kind)
    return path


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "run")


def damages(path):
    return {own.place.removeprefix(f"{path}/"): own.damage for own in verify(path) if own.damage}


def change(file, old, new):
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new, 1))


def strip(text):
    return {key: value for key, value in json.loads(text).items() if key != "checksum"}


def command(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    return result.exit_code, result.output


def test_a_whole_folder_is_whole(finished):
    assert command("verify", finished) == (
        0,
        f"{finished}: whole: config.yaml, 2 x checkpoint, metrics.jsonl, execution.json, summary.json, confusion.npz, "
        "2 x export\n",
    )
    file = finished / "exports" / "fedavg-seed-0.npz"
    assert command("verify", file) == (0, f"{file}: whole: export\n")


def number_changed(content):
    """With another digit in the middle of a long number."""
    found = list(re.finditer(rb"0\.\d{5}", content))[-1]
    return content[: found.end() - 1] + bytes([(content[found.end() - 1] - 47) % 10 + 48]) + content[found.end() :]


@pytest.mark.parametrize(
    ("name", "place", "says"),
    [
        ("metrics.jsonl", "metrics.jsonl, line 2", "its checksum is wrong; the same command again trains that run"),
        ("summary.json", "summary.json", "its checksum is wrong; the same command again writes it anew"),
        ("exports/fedavg-seed-0.safetensors", None, r"its checksum is wrong.*export it again"),
        ("config.yaml", CHECKPOINT, "belongs to another run; put back a copy of config.yaml"),
    ],
)
def test_a_changed_digit_is_noticed_and_named(folder, name, place, says):
    content = (folder / name).read_bytes()
    changed = content.replace(b"0.05", b"0.06") if name == "config.yaml" else number_changed(content)
    (folder / name).write_bytes(changed)
    found = damages(folder)
    assert place in found or place is None
    assert re.search(says, found[place or name])
    code, output = command("verify", folder)
    assert code == 1 and f"damaged: {folder / (place or name)}: {found[place or name]}\n" in output
    assert output.endswith(f"fedjax-bal: {len(found)} damaged, see above\n")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "metrics.jsonl",
            "lacks round 2 of fedavg, seed 0; the same command again trains",
        ),
        (CHECKPOINT, "damaged.*; the same command again goes on from the one before it"),
        ("exports/fedavg-seed-0.npz", "damaged.*; export it again"),
        ("exports/fedavg-seed-0.safetensors", "damaged.*; export it again"),
        ("config.yaml", "put back a copy of it: without it nothing in the folder is used"),
    ],
)
def test_a_file_that_has_lost_its_beginning_is_damaged(folder, name, says):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[content.index(b"\n") + 1 :])
    assert list(damages(folder)) == [name] and re.search(says, damages(folder)[name])


def test_no_changed_byte_of_a_tensor_gets_past(folder):
    file = folder / "exports" / "fedavg-seed-0.safetensors"
    content = file.read_bytes()
    for at in (len(content) - 1, len(content) // 2):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert "the checksum of params/" in damages(folder)[f"exports/{file.name}"]


def test_an_export_and_a_checkpoint_of_another_run_are_noticed(folder, tmp_path):
    other = tmp_path / "other"
    small_run.run(other, small_run.config(tmp_path, *ONE, "training.optimizer.learning_rate=0.1"))
    shutil.copy(load_run(other).export(), folder / "exports" / "fedavg-seed-0.npz")
    shutil.copy(other / CHECKPOINT, folder / CHECKPOINT)
    assert all("belongs to another run" in text for text in damages(folder).values())
    assert set(damages(folder)) == {"exports/fedavg-seed-0.npz", CHECKPOINT}


def test_a_folder_of_an_earlier_version_is_no_damaged_one_and_goes_on(folder):
    for name in ("summary.json", "execution.json"):
        (folder / name).write_text(json.dumps(strip((folder / name).read_text())))
    lines = [strip(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(folder / "exports")
    code, output = command("verify", folder)
    assert code == 0 and f"{folder}: metrics.jsonl: no checksums: written by an earlier version\n" in output
    assert output.count("no checksums") == 3
    assert len(RunFolder(folder).read().lines) == 2
    display = small_run.run(folder, small_run.config(folder.parent, *ONE))
    assert display.notes == [] and [own for own in verify(folder) if own.damage or own.remark] == []


def test_a_run_says_which_line_is_damaged_and_makes_it_again(folder, finished):
    change(folder / "metrics.jsonl", b'"round": 2', b'"round": 3')
    code, output = command("report", folder)
    assert code == 2 and f"{folder}/metrics.jsonl, line 1: its checksum is wrong; the file is damaged: run" in output
    with pytest.warns(UserWarning, match="metrics.jsonl, line 1: damaged"):
        load_run(folder).metrics()
    display = small_run.run(folder, small_run.config(folder.parent, *ONE))
    assert display.notes[:2] == [
        f"warning: {folder}/metrics.jsonl, line 1: damaged (its checksum is wrong); it is left out",
        "warning: metrics.jsonl lacks rounds of fedavg, seed 0; starting it again",
    ]
    assert damages(folder) == {} and small_run.metrics(folder) == small_run.metrics(finished)


@pytest.mark.slow
def test_a_sweep_is_checked_with_its_points(tmp_path):
    plan = small_sweep.sweep(tmp_path, "sweep: [{training.optimizer.learning_rate: [0.05, 0.2]}]", small_sweep.FEDAVG)
    path = tmp_path / "out"
    small_sweep.carry(plan, path)
    assert [own for own in verify(path) if own.damage or own.remark] == []
    first = path / "points" / "learning_rate=0.05"
    change(first / "metrics.jsonl", b'"seed": 0', b'"seed": 1')
    change(path / "results.csv", b",done,", b",gone,")
    change(path / "costs.json", b'"seed": 0', b'"seed": 1')
    wrong = "its checksum is wrong; the same command again "
    assert damages(path) == {
        "results.csv, line 2": f"{wrong}writes it anew",
        "costs.json": f"{wrong}writes it anew",
        "points/learning_rate=0.05/metrics.jsonl, line 1": f"{wrong}trains that run from the start",
    }
    code, output = command("report", path)
    assert code == 2 and "results.csv, line 2: its checksum is wrong" in output


def test_what_is_no_folder_of_a_run_is_refused(tmp_path):
    code, output = command("verify", tmp_path)
    assert code == 2 and output.endswith("is no folder of a run or a sweep, and no exported model; give one of these\n")
