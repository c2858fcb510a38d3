"""A changed digit is noticed and named, in whatever a folder holds as text."""

import json

import pytest

from fedjax_bal.runs import FolderError, RunFolder, SweepFolder
from fedjax_bal.runs.checksums import ChecksumError, sealed, unsealed

OWN = {"train_loss": float("nan"), "test_loss": float("inf"), "per_class_accuracy": [0.5, None], "é": "\ud800"}
LINES = [
    {"method": "a", "seed": 0, "round": round, "test_accuracy": 0.1 * round, "bytes_up": 1, "bytes_down": 2}
    | {"wall_s": 1e-7, **OWN}
    for round in (1, 2, 3)
]
ROWS = [
    {"lr": rate, "seeds": [0, 1], "point": f"lr={rate}", "method": "a", "seed": 0, "status": "done"}
    | {"final_accuracy": 0.1 + rate, "compile_s": None, "failure": 'two\nlines, and "quotes"' if rate < 1 else None}
    for rate in (1e-05, 0.1, 2.5)
]


def other_digits(content):
    """The content with each of its digits changed in turn, and that digit's place."""
    for at, byte in enumerate(content):
        if chr(byte).isdigit():
            yield at, content[:at] + (b"1" if byte != ord("1") else b"7") + content[at + 1 :]


def test_values_come_back_without_their_checksum_and_a_change_is_noticed():
    for values in ({}, {"a": [1, {"b": 0.1}]}, OWN):
        text = json.dumps(sealed(values))
        assert repr(unsealed(json.loads(text))) == repr(values)  # nan is not equal to itself
        assert unsealed(json.loads(text, parse_constant=lambda name: None)).keys() == values.keys()
    for changed in ({**sealed({"a": 1}), "a": 2}, {**sealed({"a": 1}), "b": 1}, {**sealed({"a": 1}), "checksum": 0}):
        with pytest.raises(ChecksumError):
            unsealed(changed)
    assert unsealed({"a": 1}) == {"a": 1} and unsealed([1]) == [1]


def test_any_changed_digit_of_metrics_is_noticed_and_its_line_named(tmp_path):
    folder, notes = RunFolder(tmp_path), []
    folder.write_metrics(LINES[:2])
    folder.append_metrics(LINES[2:])
    assert repr(folder.read_metrics(notes.append)) == repr(LINES) and notes == []
    file = tmp_path / "metrics.jsonl"
    whole = file.read_bytes()
    for at, changed in other_digits(whole):
        file.write_bytes(changed)
        number = whole[:at].count(b"\n") + 1
        kept = folder.read_metrics(notes.append)
        assert [line["round"] for line in kept] == [line["round"] for line in LINES if line["round"] != number]
        reason = "its checksum is wrong"
        if chr(whole[at - 1]) == "u" or b"u" in whole[at - 4 : at]:  # the escape of the lone surrogate
            assert notes[-1].startswith(f"warning: {file}, line {number}: damaged (")
        else:
            assert notes[-1] == f"warning: {file}, line {number}: damaged ({reason}); it is left out"
    assert len(notes) == sum(chr(byte).isdigit() for byte in whole)


def test_more_damaged_lines_are_counted_and_a_last_one_that_is_cut_off_is_not_damaged(tmp_path):
    folder, notes = RunFolder(tmp_path), []
    folder.write_metrics(LINES)
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(file.read_bytes().replace(b"1e-07", b"1e-06")[:-3])
    assert folder.read_metrics(notes.append) == []
    assert notes == [f"warning: {file}, line 1: damaged (its checksum is wrong); it is left out, and so are 1 more"]


def test_any_changed_digit_of_a_table_is_noticed_and_its_line_named(tmp_path):
    folder = SweepFolder(tmp_path)
    folder.write_results(ROWS)
    wanted = [{**row, "seeds": "[0, 1]", "failure": row["failure"] or ""} for row in ROWS]
    assert folder.read_results(["lr"]) == wanted
    whole = folder.results.read_bytes()
    for at, changed in other_digits(whole):
        folder.results.write_bytes(changed)
        with pytest.raises(FolderError, match=r"results.csv, line \d: its checksum is wrong; the file is damaged"):
            folder.read_results(["lr"])
        damaged = [row.place for row in folder.examine_results() if row.damage]
        last = whole[:at].count(b"\n") + 1
        assert len(damaged) == 1 and int(damaged[0].rpartition(" ")[2]) - last in (0, 1)  # a row may have two lines


def test_any_changed_digit_of_an_object_is_noticed(tmp_path):
    folder, notes = RunFolder(tmp_path), []
    folder.write_summary({"wall_s": 12.5, "runs": [{"final_accuracy": 0.75}]})
    assert folder.read_summary(notes.append) == {"wall_s": 12.5, "runs": [{"final_accuracy": 0.75}]} and notes == []
    file = tmp_path / "summary.json"
    for _, changed in other_digits(file.read_bytes()):
        file.write_bytes(changed)
        assert folder.read_summary(notes.append) == {}
        assert notes.pop() == f"warning: {file}: damaged (its checksum is wrong); what it held is left out"
    file.unlink()
    assert folder.read_summary(notes.append) == {} and notes == []
