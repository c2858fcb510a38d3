import json

import numpy as np
import pytest
from report.conftest import edit_summary

from fedjax_bal.config import LARGEST_YAML
from fedjax_bal.lab import FolderError, RunFolder
from fedjax_bal.lab.schema import check_readable

LINE = b'{"method": "a", "seed": 0, "round": 1, %s}\n'


@pytest.fixture
def folder(make_run, tmp_path):
    return make_run(tmp_path / "run", rounds=3, classes=3, clients=2)


def test_reads_what_was_written(folder):
    run = RunFolder(folder).read()
    assert len(run.lines) == 2 * 3 * 3
    assert run.config["model"] == {"name": "rebafl_fmnist"}
    assert run.config_text == (folder / "config.yaml").read_text()


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


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "summary.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(FolderError, match=rf"{name}: missing"):
        RunFolder(folder).read()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "config.yaml",
            b"a: 1\nb: [",
            "config.yaml: line 2, column 5: expected .* the file is damaged",
        ),
        ("summary.json", b'{\n"a": 1,\n"b" 2}', "summary.json: .*line 3"),
        ("summary.json", b"{}", "name: Field required"),
        ("metrics.jsonl", b'\n{"method": "a"}\n', "metrics.jsonl, line 2: seed: Field required"),
        ("metrics.jsonl", b"{}}\n{}\n", "metrics.jsonl, line 1: Extra data"),
        ("metrics.jsonl", LINE % b'"bytes_up": 1e999', "bytes_up"),
        (
            "metrics.jsonl",
            LINE % b'"per_class_accuracy": [1, 2]',
            "per_class_accuracy",
        ),
        (
            "metrics.jsonl",
            LINE % b'"client_accuracies": [NaN, "1"]',
            r"client_accuracies\[1\].*: .* number",
        ),
    ],
)
def test_damage_is_named_with_file_line_and_what_was_expected(folder, name, content, expected):
    (folder / name).write_bytes(content)
    with pytest.raises(FolderError, match=expected):
        RunFolder(folder).read()


COMPOSITION = {"clients": 2, "rank_correlation": 0.5}
AUGMENTATION = {"before": [1, 2, 3], "after": [3, 2, 3], "extra_rows": 2, "extra_bytes": 1568}
BATCHES = {"methods": ["cbfl"], "kl_before": 0.5, "kl_after": 0.25}


def test_optional_figures_are_read_and_absent_metrics_are_null(folder):
    edit_summary(folder, lambda s: s.update(batches=[BATCHES]))
    edit_summary(folder, lambda s: s["partitions"][0].update(augmentation=AUGMENTATION))
    edit_summary(folder, lambda s: s["runs"][0].update(composition=COMPOSITION, copies=12))
    summary = RunFolder(folder).read().summary
    assert summary["batches"] == [BATCHES]
    assert summary["partitions"][0]["augmentation"] == AUGMENTATION
    first, *others = summary["runs"]
    assert (first["composition"], first["copies"]) == (COMPOSITION, 12)
    assert all(run["copies"] is None and "composition" not in run for run in others)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s["runs"].append(3), r"runs\[6\]: Input should be"),
        (lambda s: s["runs"][1].pop("method"), r"runs\[1\].method: Field required"),
        (lambda s: s["runs"][0].update(final_accuracy="x"), r"runs\[0\].final_accuracy"),
        (lambda s: s["runs"][0].update(composition={**COMPOSITION, "clients": -1}), r"composition.clients: .*to 0"),
        (lambda s: s["partitions"][0]["class_counts"][0].pop(), r"class_counts\[0\]"),
        (lambda s: s["partitions"][0]["shown"].pop(), r"partitions\[0\].class_counts"),
        (
            lambda s: s["partitions"][0].update(augmentation={**AUGMENTATION, "before": [1, 2, -3]}),
            r"augmentation.before\[2\]: .*received -3",
        ),
        (lambda s: s.update(batches=[{**BATCHES, "kl_before": None}]), r"batches\[0\].kl_before: .*null"),
    ],
)
def test_a_summary_that_does_not_fit_is_refused(folder, change, expected):
    edit_summary(folder, change)
    with pytest.raises(FolderError, match=rf"summary.json: .*{expected}"):
        RunFolder(folder).read()


def test_pictures_are_those_of_the_first_seed_of_methods_that_are_there(folder):
    (folder / "pictures").mkdir()
    edit_summary(folder, lambda s: [run.update(seed=run["seed"] + 9) for run in s["runs"]])
    for pixel, name in ((9, "0-seed-9"), (10, "0-seed-10"), (1, "9-seed-9"), (2, "x-seed-9")):
        np.savez(folder / "pictures" / f"method-{name}.npz", real=np.full((3, 2, 4, 4, 1), pixel, np.uint8))
    ((method, found),) = RunFolder(folder).read().pictures.items()
    assert method == "fedavg" and (found["real"] == 9).all()


def test_pictures_are_those_of_their_method_where_an_earlier_one_never_began(folder):
    (folder / "pictures").mkdir()
    edit_summary(folder, lambda s: s.update(runs=[run for run in s["runs"] if run["method"] == "rebafl"]))
    np.savez(folder / "pictures" / "method-1-seed-0.npz", real=np.zeros((3, 2, 4, 4, 1), np.uint8))
    assert list(RunFolder(folder).read().pictures) == ["rebafl"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"real": np.zeros((3, 2, 4, 4, 1))}, r"'real': float64\[3, 2, 4, 4, 1\]"),
        ({"real": np.zeros((4, 2, 4, 4, 1), np.uint8)}, r"'real': uint8\[4, 2, 4, 4, 1\]"),
        ({"real": np.array([{}], object)}, "never opened"),
        (None, "is not an npz file"),
    ],
)
def test_pictures_that_do_not_fit_are_refused(folder, content, expected):
    (folder / "pictures").mkdir()
    path = folder / "pictures" / "method-0-seed-0.npz"
    path.write_bytes(b"no archive") if content is None else np.savez(path, **content, allow_pickle=True)
    with pytest.raises(FolderError, match=expected):
        RunFolder(folder).read()


def test_a_run_without_an_evaluation_has_no_matrix(folder):
    matrix = np.array([[3, 0, 1], [0, 0, 0], [0, 2, 2]])
    RunFolder(folder).write_confusion({(1, 2): matrix})
    runs = RunFolder(folder).read().summary["runs"]
    found = {(run["method"], run["seed"]): run["confusion_matrix"] for run in runs}
    np.testing.assert_array_equal(found.pop(("rebafl", 2)).toarray(), matrix)
    assert set(found.values()) == {None}
    (folder / "confusion.npz").unlink()
    assert RunFolder(folder).read().summary["runs"][-1]["confusion_matrix"] is None


@pytest.mark.parametrize(
    "cells",
    [
        np.zeros((3, 3)),
        np.zeros((2, 3), np.int64),
        np.array([[0], [3], [1]]),
        np.array([[0], [0], [-1]]),
        np.array([{}], object),
    ],
)
def test_confusion_that_does_not_fit_is_refused(folder, cells):
    np.savez(folder / "confusion.npz", **{"method-0-seed-0": cells}, allow_pickle=True)
    with pytest.raises(FolderError, match="confusion.npz: .*fedjax-bal run"):
        RunFolder(folder).read()


def test_a_configuration_that_could_not_be_read_back_is_not_written(tmp_path):
    with pytest.raises(FolderError, match="config.yaml: would be too large to be read back"):
        check_readable(tmp_path / "config.yaml", "a: " + "x" * LARGEST_YAML)
    check_readable(tmp_path / "config.yaml", "methods: []")


def test_a_folder_without_a_run_is_told_with_one_that_has_one(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FolderError, match="empty: holds no run or sweep"):
        RunFolder(tmp_path / "empty").read()
    with pytest.raises(FolderError, match=f"holds no run or sweep; .*, such as {folder}$"):
        RunFolder(folder.parent).read()


def test_a_report_error_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="no such folder; give the folder that a run wrote"):
        RunFolder(tmp_path / "nowhere").read()
