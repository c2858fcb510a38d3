"""`SHA256SUMS`: written when a session ends, gone before anything that it covers changes."""

import hashlib
import os
import subprocess

import pytest

from fedjax_bal.files import write_atomically
from fedjax_bal.lab import FolderError, output_files
from fedjax_bal.lab.output_files import OutputFiles

NAMES = ("metrics.jsonl", "inner/a.npz")


@pytest.fixture
def files(tmp_path):
    """A sealed folder with two files that are covered, and one that isn't."""
    files = OutputFiles(tmp_path, ("metrics.jsonl", "inner/*.npz"))
    for name in (*NAMES, "page.html"):
        files.write(name, f"0.25 {name}\n".encode())
    files.seal()
    return files


def test_sums_are_those_of_the_covered_files_and_come_back(files, tmp_path):
    wanted = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in NAMES}
    assert files.sums() == wanted
    assert (tmp_path / "SHA256SUMS").read_text() == "".join(f"{wanted[name]}  {name}\n" for name in sorted(wanted))
    assert OutputFiles(tmp_path / "inner").sums() is None


ODD = (
    "a\\b.npz",
    "a\nb.npz",
    "a\rb.npz",
    "\\n.npz",
    "c\u2028d\x0c.npz",
    os.fsdecode(b"\xff\xe9.npz"),
    "名前 x.npz",
    " .npz",
)


@pytest.mark.slow
def test_sha256sum_understands_any_name(tmp_path):
    files = OutputFiles(tmp_path, ("*.npz",))
    for name in ODD:
        (tmp_path / name).write_bytes(os.fsencode(name))
    files.seal()
    assert files.sums() == {name: hashlib.sha256(os.fsencode(name)).hexdigest() for name in ODD}
    files.check_sums(*files.covered_names())
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 0
    (tmp_path / ODD[0]).write_bytes(b"changed")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 1
    with pytest.raises(FolderError, match="has changed since it was written"):
        files.check_sums(ODD[0])


def test_they_stay_where_nothing_changes(files, tmp_path):
    before = (tmp_path / "SHA256SUMS").stat().st_ino
    files.write("metrics.jsonl", b"0.25 metrics.jsonl\n")
    files.write("page.html", b"another")
    files.remove("inner/*.json")
    files.seal()
    assert (tmp_path / "SHA256SUMS").stat().st_ino == before


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.write("metrics.jsonl", b"other"),
        lambda files: files.write("inner/b.npz", b"new"),
        lambda files: files.append("metrics.jsonl", [b"more\n"]),
        lambda files: files.remove("inner/*"),
    ],
)
def test_they_are_gone_before_a_covered_file_changes(files, tmp_path, monkeypatch, change):
    def killed(*args, **rest):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(output_files, "write_atomically", killed)
        patched.setattr(output_files, "open_to_append", killed)
        unlink = lambda file, **rest: os.unlink(file) if file.name == "SHA256SUMS" else killed()
        patched.setattr(output_files.Path, "unlink", unlink)
        change(files)
    assert not files.is_sealed()
    assert [(tmp_path / name).read_text() for name in NAMES] == [f"0.25 {name}\n" for name in NAMES]
    change(files)
    files.seal()
    files.check_sums(*files.covered_names())


def test_lines_are_not_added_to_a_file_that_a_snapshot_shares(files, tmp_path):
    os.link(tmp_path / "metrics.jsonl", tmp_path / "snapshot")
    for line in (b"first\n", b"second\n"):
        files.append("metrics.jsonl", [line])
    assert (tmp_path / "snapshot").read_text() == "0.25 metrics.jsonl\n"
    assert (tmp_path / "metrics.jsonl").read_text() == "0.25 metrics.jsonl\nfirst\nsecond\n"


def test_lines_are_not_written_through_a_link(files, tmp_path):
    write_atomically(tmp_path / "outside", b"mine\n")
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").symlink_to("outside")
    with pytest.raises(OSError, match="metrics.jsonl"):
        files.append("metrics.jsonl", [b"line\n"])
    assert (tmp_path / "outside").read_text() == "mine\n"
