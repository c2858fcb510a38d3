"""What `fedjax-bal verify` finds: folders that are whole, damaged in one place, or whose session hasn't ended."""

import re
import shutil
import subprocess

import pytest
import small_run
import small_sweep
from typer.testing import CliRunner

from fedjax_bal import load_run
from fedjax_bal.cli.app import app
from fedjax_bal.lab import FolderError, verify

CHECKPOINT = "checkpoints/method-0-seed-0/round-00000004.npz"


@pytest.fixture(scope="module")
def finished(trained, tmp_path_factory):
    """The folder of a run, with an export of each format that needs no library."""
    path = shutil.copytree(trained(*small_run.ONE), tmp_path_factory.mktemp("verified") / "run")
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


def command(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    return result.exit_code, result.output


@pytest.mark.slow
def test_a_whole_folder_is_whole_also_for_sha256sum(finished):
    assert command("verify", finished) == (
        0,
        f"{finished}: intact: 2 x checkpoint, config.yaml, confusion.npz, execution.json, metrics.jsonl, summary.json, "
        "2 x export\n",
    )
    file = finished / "exports" / "fedavg-seed-0.npz"
    assert command("verify", file) == (0, f"{file}: intact: export\n")
    asked = ["sha256sum", "--strict", "--check", "SHA256SUMS"]
    said = subprocess.run(asked, cwd=finished, capture_output=True, text=True, check=True).stdout
    assert said.count(": OK\n") == 7 and "metrics.jsonl: OK\n" in said


OTHER = "has changed since it was written: its sum differs from that in SHA256SUMS"
EXPORT = "exports/fedavg-seed-0"


def with_other_digit(content):
    """With another digit in the middle of the last long number."""
    found = list(re.finditer(rb"0\.\d{5}", content))[-1]
    return content[: found.end() - 1] + bytes([(content[found.end() - 1] - 47) % 10 + 48]) + content[found.end() :]


def with_other_byte(content):
    return content[:-1] + bytes([content[-1] ^ 1])


def without_beginning(content):
    return content[content.index(b"\n") + 1 :]


CHANGES = [
    ("metrics.jsonl", with_other_digit, OTHER),
    ("config.yaml", lambda content: content.replace(b"0.05", b"0.06"), OTHER),
    (CHECKPOINT, without_beginning, f"{OTHER}; the same command resumes from the one before it"),
    (f"{EXPORT}.npz", without_beginning, "damaged.*; export it again"),
    (f"{EXPORT}.safetensors", with_other_byte, "the checksum of params/.* is wrong.*export it again"),
]


@pytest.mark.parametrize(("name", "change", "says"), CHANGES)
def test_a_change_is_noticed_and_named(folder, name, change, says):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(change(content))
    assert (folder / name).read_bytes() != content
    [(place, damage)] = damages(folder).items()
    assert place == name and re.search(says, damage)
    code, output = command("verify", folder)
    assert code == 1 and f"damaged: {folder / name}: {damage}\n" in output
    assert output.endswith("fedjax-bal: 1 damaged, see above\n")


@pytest.mark.parametrize("name", ["metrics.jsonl", CHECKPOINT])
def test_a_missing_file_is_noticed(folder, name):
    (folder / name).unlink()
    assert re.search("is missing, but listed in SHA256SUMS", damages(folder)[name])
    assert command("verify", folder)[0] == 1


def test_a_file_that_no_session_has_written_is_noticed(folder):
    shutil.copy(folder / CHECKPOINT, folder / CHECKPOINT.replace("4.npz", "6.npz"))
    assert "is not listed in SHA256SUMS" in damages(folder)[CHECKPOINT.replace("4.npz", "6.npz")]


def test_a_folder_whose_session_has_not_ended_is_not_whole_but_not_damaged(folder, tmp_path):
    (folder / "SHA256SUMS").unlink()
    text = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / CHECKPOINT).unlink()
    (folder / "metrics.jsonl").write_text(text[0])
    code, output = command("verify", folder)
    assert code == 3 and "damaged" not in output
    assert f"{folder}: SHA256SUMS: missing: a session is running here, or was killed" in output
    whole = "checkpoint, config.yaml, confusion.npz, execution.json, metrics.jsonl, summary.json, 2 x export"
    assert f"{folder}: intact: {whole}\n" in output
    (folder / "metrics.jsonl").write_text(text[0] + text[0][:40])  # cut off
    assert damages(folder) == {}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("metrics.jsonl", "line 1: damaged .*put back a copy of it, or start over"),
        (CHECKPOINT, "damaged .*the same command resumes from the one before it"),
    ],
)
def test_damage_is_found_without_sums_too(folder, name, says):
    (folder / "SHA256SUMS").unlink()
    (folder / name).write_bytes(b"\xff" + (folder / name).read_bytes()[1:])
    assert list(damages(folder)) == [name] and re.search(says, damages(folder)[name])
    assert command("verify", folder)[0] == 1


def test_damaged_sums_are_named_and_nothing_leads_out_of_the_folder(folder):
    digest = "0" * 64
    for line in ("nonsense", f"{digest} one-space", f"{digest}  ../run/metrics.jsonl", f"{digest}  /etc/passwd"):
        (folder / "SHA256SUMS").write_text(f"{digest}  metrics.jsonl\n{line}\n")
        code, output = command("verify", folder)
        assert code == 2 and "SHA256SUMS: line 2: expected a SHA-256, two spaces and the name" in output


def test_reports_and_loaded_runs_refuse_what_is_not_what_was_written(folder):
    change(folder / "metrics.jsonl", b'"round": 2', b'"round": 1')
    code, output = command("report", folder)
    assert code == 2 and f"{folder}/metrics.jsonl: {OTHER}" in output
    with pytest.raises(FolderError, match="metrics.jsonl: has changed since it was written"):
        load_run(folder).metrics()
    change(folder / "config.yaml", b"0.05", b"0.06")
    with pytest.raises(FolderError, match="config.yaml: has changed since it was written"):
        load_run(folder)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a finished sweep of two points, and the sweep."""
    here = tmp_path_factory.mktemp("swept")
    plan = small_sweep.sweep(here, "sweep: [{training.optimizer.learning_rate: [0.05, 0.2]}]", small_sweep.FEDAVG)
    small_sweep.carry(plan, here / "out")
    return here / "out", plan


@pytest.mark.slow
def test_a_sweep_is_checked_with_its_points(swept, tmp_path):
    whole, plan = swept
    assert [own for own in verify(whole) if own.damage or own.remark] == []
    asked = ["sha256sum", "--strict", "--check", "SHA256SUMS"]
    said = subprocess.run(asked, cwd=whole, capture_output=True, text=True, check=True).stdout
    assert "results.csv: OK\n" in said and "points/learning_rate=0.2/metrics.jsonl: OK\n" in said
    before = {file: file.read_bytes() for file in whole.rglob("*") if file.is_file()}
    small_sweep.carry(plan, whole)  # nothing is left to do
    assert {file: file.read_bytes() for file in whole.rglob("*") if file.is_file()} == before
    path = shutil.copytree(whole, tmp_path / "out")
    change(path / "points" / "learning_rate=0.05" / "metrics.jsonl", b'"seed": 0', b'"seed": 1')
    change(path / "results.csv", b",done,", b",gone,")
    change(path / "costs.json", b'"seed": 0', b'"seed": 1')
    assert set(damages(path)) == {"results.csv", "costs.json", "points/learning_rate=0.05/metrics.jsonl"}
    code, output = command("report", path)
    assert code == 2 and f"results.csv: {OTHER}" in output
    with pytest.raises(FolderError, match="results.csv: has changed since it was written"):
        small_sweep.carry(plan, path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["results.csv", "points/learning_rate=0.2"])
def test_a_missing_part_of_a_sweep_is_noticed_and_not_made_again(swept, tmp_path, name):
    path = shutil.copytree(swept[0], tmp_path / "out")
    shutil.rmtree(path / name) if name.startswith("points") else (path / name).unlink()
    found = damages(path)
    assert found and all(file == name or file.startswith(f"{name}/") for file in found)
    assert all("is missing, but listed in SHA256SUMS" in said for said in found.values())
    with pytest.raises(FolderError, match=f"{name}: is missing, but listed|is not empty and not a sweep's folder"):
        small_sweep.carry(swept[1], path)


@pytest.mark.slow
def test_a_damaged_point_is_left_alone_while_the_others_are_done(swept, tmp_path):
    path = shutil.copytree(swept[0], tmp_path / "out")
    metrics = path / "points" / "learning_rate=0.2" / "metrics.jsonl"
    change(metrics, b'"seed": 0', b'"seed": 1')
    before = metrics.read_bytes()
    rows, _, _ = small_sweep.carry(swept[1], path)
    assert [row["status"] for row in rows] == ["done", "refused"]
    assert "has changed since it was written" in rows[1]["failure"]
    assert metrics.read_bytes() == before


def test_what_is_no_folder_of_a_run_is_refused(tmp_path):
    code, output = command("verify", tmp_path)
    assert code == 2 and output.endswith("a run or a sweep, nor an exported model; give one of these\n")
