import json
import tracemalloc

import numpy as np
import pytest

from fedjax_bal.config import LARGEST_YAML
from fedjax_bal.lab import FolderError, RunFolder
from fedjax_bal.lab.record import check_readable


@pytest.fixture
def folder(make_run, tmp_path):
    return make_run(tmp_path / "run", rounds=3, classes=3, clients=2)


def edit(path, change):
    summary = json.loads(path.read_text())
    change(summary)
    path.write_text(json.dumps(summary))


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
            r"config.yaml: line 2, column 5: expected .* the file is damaged: put back",
        ),
        ("config.yaml", b"- 1\n", "config.yaml: expected a mapping"),
        (
            "config.yaml",
            b"a: &x [*x]\n",
            r"line 1, column 4: anchors \(&\) and aliases \(\*\) are not allowed",
        ),
        ("config.yaml", b"[" * 100_000, "config.yaml: line 1, column 21: nested deeper than 20 levels"),
        ("config.yaml", b"a: 1\nb: \xff\n", "config.yaml: .*byte 0xff"),
        ("summary.json", b'{\n"a": 1,\n"b" 2}', "summary.json: .*line 3"),
        ("summary.json", b"[]", "all of it: Input should be a valid dictionary.*; received"),
        ("summary.json", b"{}", "finished: Input should be a valid boolean; received null"),
        ("summary.json", b"[" * 100_000, "summary.json: .*recursion"),
        ("metrics.jsonl", b'\n{"method": "a"}\n', "metrics.jsonl, line 2: seed: Input should be a valid integer"),
        ("metrics.jsonl", b"{}}\n{}\n", "metrics.jsonl, line 1: Extra data"),
        (
            "metrics.jsonl",
            b'{"method": "a", "seed": true, "round": 1}\n',
            r"seed: Input .* integer; received true",
        ),
        ("metrics.jsonl", b'{"method": "a", "seed": 0, "round": 1, "bytes_up": 1e999}\n', "bytes_up: must be a number"),
        (
            "metrics.jsonl",
            b'{"method": "a", "seed": 0, "round": 1, "per_class_accuracy": [1, 2]}\n',
            r"per_class_accuracy: must be a list of 3 of a number .* received \[1, 2\]",
        ),
        ("metrics.jsonl", b'{"method": "a", "seed": 0, "round": 1, "test_accuracy": "1"}\n', "received '1'"),
        (
            "metrics.jsonl",
            b'{"method": "a", "seed": 0, "round": 1, "chain_kl": [1]}\n',
            r"chain_kl: .* \[1\]",
        ),
        ("metrics.jsonl", b'{"method": "a", "seed": 0, "round": 1, "client_accuracies": [NaN]}\n', "client_accuracies"),
    ],
)
def test_damage_is_named_with_file_line_and_what_was_expected(folder, name, content, expected):
    (folder / name).write_bytes(content)
    with pytest.raises(FolderError, match=expected):
        RunFolder(folder).read()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s["runs"][1].pop("method"), r"runs\[1\].method: Input should be a valid string"),
        (lambda s: s["runs"][0].update(final_accuracy="x"), r"runs\[0\].final_accuracy: must be a number"),
        (lambda s: s["partitions"][0]["class_counts"][0].__setitem__(1, None), r"partitions\[0\].class_counts"),
        (lambda s: s["partitions"][0]["shown"].pop(), r"class_counts: must be a list of 1 of"),
        (lambda s: s.update(target_accuracy=[]), r"target_accuracy: must be a number"),
        (lambda s: s["runs"].append(3), r"runs\[6\]: Input should be .*; received 3"),
    ],
)
def test_a_summary_that_does_not_fit_is_refused(folder, change, expected):
    edit(folder / "summary.json", change)
    with pytest.raises(FolderError, match=expected):
        RunFolder(folder).read()


COMPOSITION = {"clients": 2, "rank_correlation": 0.5}
AUGMENTATION = {"before": [1, 2, 3], "after": [3, 2, 3], "extra_rows": 2, "extra_bytes": 1568}


def test_cohorts_are_read_and_may_be_missing_or_null(folder):
    first, second = (dict.fromkeys(["composition", "traffic_to_target_bytes"]) for _ in range(2))
    first |= {"composition": COMPOSITION, "traffic_to_target_bytes": 12}
    edit(folder / "summary.json", lambda s: [s["runs"][place].update(new) for place, new in enumerate((first, second))])
    edit(folder / "summary.json", lambda s: s["partitions"][0].update(augmentation=AUGMENTATION))
    summary = RunFolder(folder).read().summary
    assert summary["partitions"][0]["augmentation"] == AUGMENTATION
    assert summary["runs"][0] | first == summary["runs"][0]
    for run in summary["runs"][1:]:
        assert run["composition"] is run["traffic_to_target_bytes"] is None


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("traffic_to_target_bytes", "12", r"runs\[0\].traffic_to_target_bytes: must be a number"),
        ("chain_kl", [0.5], r"runs\[0\].chain_kl: must be a number"),
        ("clients_per_chain", True, r"runs\[0\].clients_per_chain: must be a number .* received true"),
        ("copies", "7", r"runs\[0\].copies: must be a number"),
        ("composition", [], r"runs\[0\].composition: .*received \[\]"),
        ("composition", {**COMPOSITION, "clients": None}, r"composition.clients: Input should be a valid integer"),
        ("composition", {**COMPOSITION, "clients": -1}, r"composition.clients: must be a number \(from 0 to"),
        (
            "composition",
            {**COMPOSITION, "rank_correlation": 1.5},
            r"rank_correlation: .*\(within ±1\), or null",
        ),
    ],
)
def test_cohorts_of_a_run_that_do_not_fit_are_refused(folder, key, value, expected):
    edit(folder / "summary.json", lambda s: s["runs"][0].update({key: value}))
    with pytest.raises(FolderError, match=expected):
        RunFolder(folder).read()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, r"partitions\[0\].augmentation: .*received 3"),
        (
            {**AUGMENTATION, "extra_rows": 2.0},
            r"augmentation.extra_rows: Input .* received 2.0",
        ),
        ({**AUGMENTATION, "extra_bytes": -1}, r"augmentation.extra_bytes: must be a number \(from 0"),
        ({**AUGMENTATION, "after": [1, 2]}, r"augmentation.after: must be a list of 3 of a number"),
        ({**AUGMENTATION, "before": [1, 2, -3]}, r"augmentation.before: .*received \[1, 2, -3\]"),
    ],
)
def test_an_augmentation_that_does_not_fit_is_refused(folder, value, expected):
    edit(folder / "summary.json", lambda s: s["partitions"][0].update(augmentation=value))
    with pytest.raises(FolderError, match=expected):
        RunFolder(folder).read()


@pytest.mark.parametrize("shown", [[0, {}], [0, 1.5], [-1], "01", None])
def test_clients_of_a_partition_that_are_no_numbers_are_refused(folder, shown):
    edit(folder / "summary.json", lambda s: s["partitions"][0].update(shown=shown, class_counts=None))
    with pytest.raises(FolderError, match=r"partitions\[0\].shown"):
        RunFolder(folder).read()


LEAKS = {
    "nearest": {"generated": {"mean": 30.5, "least": 9.0}, "test": {"mean": 20.0, "least": 5.0}},
    "inversion": {"prototype/upcnn": {"truth": 0.9, "others": 0.5}},
}


def test_what_a_run_gives_away_may_be_missing_or_null(folder):
    edit(folder / "summary.json", lambda s: s["runs"][0].update(leaks=LEAKS))
    edit(folder / "summary.json", lambda s: s["runs"][1].update(leaks=None))
    found = [run["leaks"] for run in RunFolder(folder).read().summary["runs"]]
    assert found[0] == LEAKS and found[1:] == [None] * (len(found) - 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], r"runs\[0\].leaks: .*received \[\]"),
        ({"nearest": 3}, r"leaks.nearest: .*received 3"),
        ({"nearest": {"test": {"mean": 1.0, "least": 1.0}}}, r"leaks.nearest.generated: .*received null"),
        (
            {"inversion": {"upcnn": {"truth": "1", "others": 0.0}}},
            r"inversion.upcnn.truth: Input should be a valid number",
        ),
        (
            {"inversion": {"upcnn": {"truth": 1.0, "others": None}}},
            r"inversion.upcnn.others: Input should be a valid number",
        ),
    ],
)
def test_leaks_that_do_not_fit_are_refused(folder, value, expected):
    edit(folder / "summary.json", lambda s: s["runs"][0].update(leaks=value))
    with pytest.raises(FolderError, match=expected):
        RunFolder(folder).read()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"methods": "a"}, r"batches\[0\].methods: Input should be a valid list"),
        ({"kl_before": None}, r"batches\[0\].kl_before: Input should be a valid number"),
    ],
)
def test_classes_of_batches_that_do_not_fit_are_refused(folder, changes, expected):
    fitting = {"methods": ["cbfl"], "kl_before": 0.5, "kl_after": 0.25}
    edit(folder / "summary.json", lambda s: s.update(batches=[fitting]))
    assert RunFolder(folder).read().summary["batches"] == [fitting]
    edit(folder / "summary.json", lambda s: s.update(batches=[fitting | changes]))
    with pytest.raises(FolderError, match=expected):
        RunFolder(folder).read()


def test_pictures_are_those_of_the_first_seed_of_methods_that_are_there(folder):
    (folder / "pictures").mkdir()
    edit(folder / "summary.json", lambda s: [run.update(seed=run["seed"] + 9) for run in s["runs"]])
    for pixel, name in ((9, "0-seed-9"), (10, "0-seed-10"), (1, "9-seed-9"), (2, "x-seed-9")):
        np.savez(folder / "pictures" / f"method-{name}.npz", real=np.full((3, 2, 4, 4, 1), pixel, np.uint8))
    ((method, found),) = RunFolder(folder).read().pictures.items()
    assert method == "fedavg" and (found["real"] == 9).all()


def test_pictures_are_those_of_their_method_where_an_earlier_one_never_began(folder):
    (folder / "pictures").mkdir()
    edit(folder / "summary.json", lambda s: s.update(runs=[run for run in s["runs"] if run["method"] == "rebafl"]))
    np.savez(folder / "pictures" / "method-1-seed-0.npz", real=np.zeros((3, 2, 4, 4, 1), np.uint8))
    assert list(RunFolder(folder).read().pictures) == ["rebafl"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"real": np.zeros((3, 2, 4, 4, 1))}, r"'real': float64\[3, 2, 4, 4, 1\], must be uint8\[at most 3, S"),
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
        np.zeros(3, np.int64),
        np.array([[0], [3], [1]]),
        np.array([[0], [0], [-1]]),
        np.array([{}], object),
    ],
)
def test_confusion_that_does_not_fit_is_refused(folder, cells):
    np.savez(folder / "confusion.npz", **{"method-0-seed-0": cells}, allow_pickle=True)
    with pytest.raises(FolderError, match="confusion.npz: .*fedjax-bal run"):
        RunFolder(folder).read()


def test_confusion_of_more_bytes_than_are_read_is_refused(folder, monkeypatch):
    monkeypatch.setattr("fedjax_bal.lab.record.LARGEST_CONFUSION", 1000)
    monkeypatch.setattr("fedjax_bal.lab.folder.LARGEST_CONFUSION", 1000)
    matrices = {(0, seed): np.ones((3, 3), int) for seed in range(9)}
    RunFolder(folder).write_confusion(matrices)  # as many as may be read: 9 x 24 bytes and a header each
    assert sum(run["confusion_matrix"] is not None for run in RunFolder(folder).read().summary["runs"]) == 2
    np.savez(folder / "confusion.npz", **{"method-0-seed-0": np.zeros((3, 99), np.int64)})
    with pytest.raises(FolderError, match="claims arrays of 2504 bytes, at most 1000 are read"):
        RunFolder(folder).read()


def test_a_summary_of_more_values_than_are_read_takes_no_memory(folder):
    (folder / "summary.json").write_bytes(b"[" + b"[]," * 5_100_000 + b"1]")  # a gigabyte of lists
    tracemalloc.start()
    with pytest.raises(FolderError, match="summary.json: holds more than 10,000,000 values"):
        RunFolder(folder).read()
    assert tracemalloc.get_traced_memory()[1] < 60_000_000
    tracemalloc.stop()


def test_a_configuration_that_could_not_be_read_back_is_not_written(tmp_path):
    with pytest.raises(FolderError, match="config.yaml: would be too large to be read back"):
        check_readable(tmp_path / "config.yaml", "a: " + "x" * LARGEST_YAML)
    check_readable(tmp_path / "config.yaml", "methods: []")


def test_a_folder_without_a_run_is_told_with_one_that_has_one(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FolderError, match="empty: holds no run or sweep; give .* wrote, such as runs/quickstart"):
        RunFolder(tmp_path / "empty").read()
    with pytest.raises(FolderError, match=f"holds no run or sweep; .*, such as {folder}$"):
        RunFolder(folder.parent).read()


def test_a_report_error_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="no such folder; give the folder that a run wrote"):
        RunFolder(tmp_path / "nowhere").read()
