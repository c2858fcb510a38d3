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


@pytest.mark.parametrize("name", ODD)
def test_sha256sum_understands_any_name(tmp_path, name):
    files = OutputFiles(tmp_path, ("inner/*.npz",))
    (tmp_path / "inner").mkdir()
    for own in (name, "plain.npz"):
        (tmp_path / "inner" / own).write_bytes(os.fsencode(own))
    files.seal()
    assert files.sums() == {f"inner/{own}": hashlib.sha256(os.fsencode(own)).hexdigest() for own in (name, "plain.npz")}
    files.check_sums(*files.covered_names())
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 0
    (tmp_path / "inner" / name).write_bytes(b"changed")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 1
    with pytest.raises(FolderError, match="has changed since it was written"):
        files.check_sums(f"inner/{name}")


def test_a_name_is_escaped_as_sha256sum_does(tmp_path):
    for number, name in enumerate(ODD):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / name).write_bytes(b"")
        files = OutputFiles(tmp_path / f"{number}", ("*.npz",))
        files.seal()
        theirs = subprocess.run(["sha256sum", "--", name], cwd=tmp_path / f"{number}", capture_output=True)
        assert (tmp_path / f"{number}" / "SHA256SUMS").read_bytes() == theirs.stdout


@pytest.mark.parametrize("line", ["\\{}  a\\x", "{}  a\\\\b", "\\{}  a\\", "\\{}  ../a\\n", "{}  ", "{} a"])
def test_a_line_that_sha256sum_does_not_write_is_damage(tmp_path, line):
    (tmp_path / "SHA256SUMS").write_text(line.format("ab" * 32) + "\n")
    with pytest.raises(FolderError, match="SHA256SUMS: line 1: expected a SHA-256, two spaces"):
        OutputFiles(tmp_path).sums()


def test_any_changed_digit_is_noticed_and_its_file_named(files, tmp_path):
    files.check_sums(*NAMES)
    for name in NAMES:
        whole = (tmp_path / name).read_bytes()
        for at in (at for at, byte in enumerate(whole) if chr(byte).isdigit()):
            (tmp_path / name).write_bytes(whole[:at] + b"7" + whole[at + 1 :])
            with pytest.raises(FolderError, match=f"{name}: has changed since it was written"):
                files.check_sums(name)
        (tmp_path / name).unlink()
        with pytest.raises(FolderError, match=f"{name}: is missing, but listed"):
            files.check_sums(name)


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


def test_a_session_that_begins_while_a_file_is_read_is_no_damage(files, tmp_path, monkeypatch):
    def beginning(file):
        files.write("metrics.jsonl", b"the next session's")
        return "0" * 64

    monkeypatch.setattr(output_files, "sha256", beginning)
    files.check_sums("metrics.jsonl")
    assert not files.is_sealed()


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
