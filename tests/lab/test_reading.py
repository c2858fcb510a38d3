"""What reports read of a run folder, and how damage is named."""

import json

import numpy as np
import pytest
from report.conftest import edit_summary

from fedjax_bal.lab import FolderError, RunFolder


@pytest.fixture
def folder(make_run, tmp_path):
    return make_run(tmp_path / "run", rounds=3, classes=3, clients=2)


def test_a_line_cut_off_is_ignored_and_a_whole_one_without_newline_counts(folder):
    path = folder / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + '{"method": "fedavg", "é'.encode()[:-1])
    assert len(RunFolder(folder).read().lines) == 18
    path.write_bytes(whole.rstrip(b"\n"))
    assert len(RunFolder(folder).read().lines) == 18


def test_of_a_repeated_round_the_later_line_counts(folder):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"method": "fedavg", "seed": 0, "round": 1, "test_accuracy": 0.125}) + "\n")
    lines = [
        line
        for line in RunFolder(folder).read().lines
        if (line["method"], line["seed"], line["round"]) == ("fedavg", 0, 1)
    ]
    assert [line["test_accuracy"] for line in lines] == [0.125]


def test_not_a_number_is_read_as_undefined(folder):
    path = folder / "metrics.jsonl"
    path.write_text('{"method": "a", "seed": 0, "round": 1, "test_accuracy": NaN, "train_loss": Infinity}\n')
    assert RunFolder(folder).read().lines == [
        {"method": "a", "seed": 0, "round": 1, "test_accuracy": None, "train_loss": None}
    ]


def test_a_first_session_that_has_not_ended_can_be_read(folder):
    (folder / "summary.json").unlink()
    run = RunFolder(folder).read()
    assert (len(run.lines), run.summary["runs"], run.summary["finished"]) == (18, [], False)
    assert run.summary["class_names"] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.yaml", b"a: 1\nb: [", "line 2, column 5"),
        ("summary.json", b'{\n"a": 1,\n"b" 2}', "line 3"),
        ("summary.json", b'{"format": 2, "runs": []}', "its format isn't 1"),
        ("summary.json", b'{"format": 1, "name": "a"}', "KeyError: 'runs'"),
        ("metrics.jsonl", b'{"method": "a"}\n', "line 1: 'seed'"),
        ("clients.csv", b"method,seed,client\na,0,1\n", "KeyError: 'training_rows'"),
        ("confusion.npz", b"no archive", "is not an npz file"),
    ],
)
def test_a_damaged_file_is_named_with_the_damage_and_a_remedy(folder, name, content, expected):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    with pytest.raises(
        FolderError, match=rf"{name}: damaged, or written by another version \(.*{expected}.*\); restore"
    ):
        RunFolder(folder).read()


def test_a_flipped_byte_of_an_array_is_noticed(folder):
    file = folder / "confusion.npz"
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    file.write_bytes(content)
    with pytest.raises(FolderError, match="confusion.npz: damaged"):
        RunFolder(folder).read()


def test_arrays_of_objects_are_never_unpickled(folder):
    np.savez(folder / "confusion.npz", **{"fedavg-seed-0": np.array([{}], object)}, allow_pickle=True)
    with pytest.raises(FolderError, match="confusion.npz: damaged.*allow_pickle=False"):
        RunFolder(folder).read()


def test_pictures_are_those_of_the_first_seed_of_methods_that_are_there(folder):
    (folder / "pictures").mkdir()
    edit_summary(folder, lambda s: [run.update(seed=run["seed"] + 9) for run in s["runs"]])
    for pixel, name in ((9, "fedavg-seed-9"), (10, "fedavg-seed-10"), (1, "other-seed-9")):
        np.savez(folder / "pictures" / f"{name}.npz", real=np.full((3, 2, 4, 4, 1), pixel, np.uint8))
    ((method, found),) = RunFolder(folder).read().pictures.items()
    assert method == "fedavg" and (found["real"] == 9).all()


def test_a_run_without_an_evaluation_has_no_matrix(folder):
    matrix = np.array([[3, 0, 1], [0, 0, 0], [0, 2, 2]])
    RunFolder(folder).write_confusion({("rebafl", 2): matrix})
    runs = RunFolder(folder).read().summary["runs"]
    found = {(run["method"], run["seed"]): run["confusion_matrix"] for run in runs}
    np.testing.assert_array_equal(found.pop(("rebafl", 2)).toarray(), matrix)
    assert set(found.values()) == {None}
    (folder / "confusion.npz").unlink()
    assert RunFolder(folder).read().summary["runs"][-1]["confusion_matrix"] is None


def test_a_folder_without_a_run_is_told_with_one_that_has_one(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FolderError, match="empty: holds no run or sweep"):
        RunFolder(tmp_path / "empty").read()
    with pytest.raises(FolderError, match=f"holds no run or sweep; .*, such as {folder}$"):
        RunFolder(folder.parent).read()
