"""Traces: what a file says about who is there, and what is wrong with files that can't be used."""

import zipfile

import numpy as np
import pytest

from fedjax_bal import selection
from fedjax_bal.selection import Choice, tables, trace
from fedjax_bal.selection.choice import SELECTORS

TABLE = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]], bool)
EVERYBODY = np.ones(4, bool)


def written(tmp_path, text, name="trace.csv"):
    file = tmp_path / name
    file.write_text(text)
    return file


def sparse(table):
    return "round,client\n" + "".join(f"{t},{c}\n" for t, c in np.argwhere(table)[::-1])


def dense(table):
    return "round, client, available\n" + "".join(f"{t},{c},{int(v)}\n" for (t, c), v in np.ndenumerate(table))


def masks(read, rounds, eligible=EVERYBODY):
    return [read.mask(0, "availability", t, eligible).tolist() for t in rounds]


@pytest.mark.parametrize("form", ["sparse", "dense", "npz", "integers", "version 2"])
def test_all_forms_say_the_same(tmp_path, form):
    if form in ("sparse", "dense"):
        file = written(tmp_path, {"sparse": sparse, "dense": dense}[form](TABLE))
    elif form == "version 2":
        file = tmp_path / "trace.npz"
        with zipfile.ZipFile(file, "w") as archive, archive.open("available.npy", "w") as member:
            np.lib.format.write_array(member, TABLE, version=(2, 0))
    else:
        file = tmp_path / "trace.npz"
        np.savez_compressed(file, available=TABLE.astype(np.int64 if form == "integers" else bool), other=np.zeros(3))
    read = trace(file)
    assert masks(read, range(3)) == TABLE.tolist()
    assert read.digest == trace(written(tmp_path, sparse(TABLE), "other.csv")).digest
    assert read.digest != trace(written(tmp_path, sparse(TABLE | EVERYBODY), "other.csv")).digest


def test_after_its_end_a_trace_repeats_or_holds(tmp_path):
    file = written(tmp_path, sparse(TABLE))
    assert masks(trace(file), (3, 4, 8)) == TABLE[[0, 1, 2]].tolist()
    assert masks(trace(file, at_end="hold"), (2, 3, 8)) == TABLE[[2, 2, 2]].tolist()


def test_who_can_not_train_is_not_there_and_who_is_not_named_neither(tmp_path):
    read = trace(written(tmp_path, sparse(TABLE[:, :3])))
    assert masks(read, [2], np.array([True, True, False, True])) == [[False, True, False, False]]
    read.check_clients(4)


@pytest.mark.parametrize("name", ["uniform", "round_robin", "by_size", "power_of_choice", "mediated", "cucb", "greedy"])
def test_selectors_choose_nobody_where_nobody_is_there(name):
    class Few:
        """As much of a federation as selectors look at."""

        class_counts, sizes, num_classes, num_clients = np.ones((4, 2), np.int64), np.full(4, 2), 2, 4

    assert name in SELECTORS
    options = {"mediated": (("size", 2),), "power_of_choice": (("candidates", 2),)}.get(name, ())
    chooser = Choice(name, options).build(2, Few())  # pyright: ignore[reportArgumentType]
    clients, _ = chooser.select(chooser.init(0, 4), 0, 0, np.zeros(4, bool))
    assert (clients == 4).all()
    assert not selection.make_plan(clients, EVERYBODY).delivered.any()


WRONG = {
    "no header": ("0,1\n", "its first line is '0,1', must be round,client or round,client,available"),
    "no line": ("round,client\n", "has a header and nothing below it"),
    "text": ("round,client\n0,0\none,0\n", "line 3: round: received 'one'"),
    "too few": ("round,client\n0\n", "line 2: has 1 values, must have 2"),
    "not 0 or 1": ("round,client,available\n0,0,0.5\n", "line 2: available: received '0.5', must be an integer from 0"),
    "twice": ("round,client,available\n0,1,1\n0,1,0\n", "has more than one line for round 0, client 1"),
    "rounds from 1": ("round,client\n1,0\n2,0\n", "has no line of round 0, with which rounds begin"),
    "nobody": ("round,client,available\n0,1,0\n", "no client is ever available"),
    "large table": (
        "round,client\n0,0\n2000000,2000000\n",
        "a table of 4,000,004,000,001 places; at most 1,000,000,000",
    ),
    "quotes": ('round,client\n"0,0\n', "unexpected end"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_csv_files_are_refused_with_the_line(tmp_path, name):
    text, message = WRONG[name]
    with pytest.raises(ValueError, match=f"trace.csv: .*{message}"):
        trace(written(tmp_path, text))


def test_other_numbers_of_clients_are_refused(tmp_path):
    with pytest.raises(ValueError, match="names client 3, but there are 3 clients, numbered from 0 to 2"):
        trace(written(tmp_path, sparse(TABLE))).check_clients(3)
    np.savez(tmp_path / "trace.npz", TABLE)
    with pytest.raises(ValueError, match=r"shape \(3, 4\), but there are 5 clients"):
        trace(tmp_path / "trace.npz").check_clients(5)


ARRAYS = {
    "one dimension": ({"available": np.ones(3)}, r"shape \(3,\) .*must have 2 dimension"),
    "no numbers": ({"available": np.array([["a"]])}, "<U1, must .* of numbers"),
    "objects": ({"available": np.array([[None]])}, "never opened"),
    "fractions": ({"available": np.full((2, 2), 0.5)}, "holds other numbers than 0 and 1"),
    "not finite": ({"available": np.full((2, 2), np.nan)}, "numbers that are not finite"),
    "nothing": ({"available": np.zeros((0, 3))}, r"shape \(0, 3\) of float64, must"),
    "other names": ({"a": TABLE, "b": TABLE}, "holds 'a', 'b', must hold one array, or one called available"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_wrong_arrays_are_refused(tmp_path, name):
    arrays, message = ARRAYS[name]
    np.savez(tmp_path / "trace.npz", **arrays)
    with pytest.raises(ValueError, match=f"trace.npz: .*{message}"):
        trace(tmp_path / "trace.npz")


def test_files_that_are_no_npz_are_refused(tmp_path):
    file = tmp_path / "trace.npz"
    for content in (b"", b"PK\x03\x04 and no more", b"\x80\x04K\x01."):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is not an npz file"):
            trace(file)


def test_files_that_are_none_or_too_large_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="nowhere.csv: .*No such file"):
        trace(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="is a directory"):
        trace(tmp_path)
    (tmp_path / "trace.csv").write_bytes(b"round,client\n\xff\xfe\n")
    with pytest.raises(ValueError, match="trace.csv: .*utf-8"):
        trace(tmp_path / "trace.csv")
    monkeypatch.setattr(tables, "LARGEST_TEXT", 10)
    with pytest.raises(ValueError, match="is longer than 10 bytes"):
        trace(tmp_path / "trace.csv")
    with pytest.raises(ValueError, match="at_end: received 'wrap'"):
        trace(tmp_path / "trace.csv", at_end="wrap")
