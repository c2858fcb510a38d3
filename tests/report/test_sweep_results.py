"""What is made of a sweep's table."""

import pytest

from fedjax_bal.report.sweep_page import answer, page
from fedjax_bal.report.sweep_results import along, best, cells, neighbours, read_results

SHEET = "name: mine\nsweep: [{lr: [1.0, 0.01, 0.1]}, {law: [a, b]}, {partition.seed: [0, 1]}]\n"


def table(accuracies):
    """A table with final accuracies by setting, one for each of two partition seeds; None for a run that diverged."""
    rows = ["lr,law,partition.seed,point,method,seed,status,final_accuracy,failure"]
    for (rate, law), pair in accuracies.items():
        for seed, value in enumerate(pair):
            status = "diverged" if value is None else "done"
            rows.append(f"{rate},{law},{seed},p,fedavg,0,{status},{'' if value is None else value},")
    return "\n".join(rows) + "\n"


@pytest.fixture
def results(tmp_path):
    """Three rates, two laws: the highest rate diverges once."""
    accuracies = {(1.0, "a"): (0.9, None), (1.0, "b"): (0.2, 0.2), (0.01, "a"): (0.5, 0.5), (0.01, "b"): (0.4, 0.4)}
    accuracies |= {(0.1, "a"): (0.6, 0.8), (0.1, "b"): (0.3, 0.3)}
    (tmp_path / "sweep.yaml").write_text(SHEET)
    (tmp_path / "results.csv").write_text(table(accuracies))
    return read_results(tmp_path)


def test_means_are_taken_over_seeds_of_partitions_too(results):
    assert results.axes == (("lr",), ("law",))
    found = {cell.setting: cell for cell in cells(results, "fedavg", "final_accuracy")}
    assert found[0.1, "a"].mean == pytest.approx(0.7) and found[0.1, "a"].spread == pytest.approx(0.02**0.5)
    assert (found[1.0, "a"].count, found[1.0, "a"].asked) == (1, 2)


def test_what_diverged_can_not_win_by_those_that_are_left(results):
    assert best(results, "fedavg").setting == (0.1, "a")
    assert answer(results).startswith("fedavg does best: 70.0")


def test_the_page_of_a_killed_sweep_says_what_is_missing(results, tmp_path):
    assert "not finished" not in page(results, [])  # a sweep whose seeds are not known
    (tmp_path / "sweep.yaml").write_text(SHEET + "methods: [{recipe: fedavg}]\nseeds: [0, 1]\n")
    assert "This sweep is not finished: 12 of its 24 runs are not in the table yet. 1 of 12 runs" in page(
        read_results(tmp_path), []
    )
    (tmp_path / "sweep.yaml").write_text(SHEET + "methods: [{recipe: fedavg}]\nseeds: [0]\n")
    assert "not finished" not in page(read_results(tmp_path), [])


def test_settings_are_picked_on_validation_images_where_all_runs_have_them(tmp_path):
    rows = [(0.1, 0.9, 0.3), (0.2, 0.6, 0.8), (0.3, 0.7, 0.5)]
    (tmp_path / "sweep.yaml").write_text("sweep: [{lr: [0.1, 0.2, 0.3]}]\n")
    heads = "lr,point,method,seed,status,final_accuracy,validation_accuracy,failure\n"
    whole = [f"{rate},p,fedavg,0,done,{test},{validation},\n" for rate, test, validation in rows]
    (tmp_path / "results.csv").write_text(heads + "".join(whole))
    found = read_results(tmp_path)
    assert answer(found) == (
        "fedavg does best: 60.0\N{NO-BREAK SPACE}% with lr 0.2. "
        "Settings were picked by accuracy on the validation images."
    )
    (lower, higher) = neighbours(found, "fedavg")[0]
    assert (lower.mean, higher.mean) == (0.9, 0.7)
    lacking = heads + "".join(whole).replace(",0.9,0.3,", ",0.9,,")
    (tmp_path / "results.csv").write_text(lacking)
    assert answer(read_results(tmp_path)).startswith("fedavg does best: 90.0\N{NO-BREAK SPACE}% with lr 0.1. ")


def test_numbers_stand_in_rising_order(results):
    line = along(results, 0, "fedavg", "final_accuracy")
    assert [cell.setting for cell in line] == [(0.01, "a"), (0.1, "a"), (1.0, "b")]
    (lower, higher), (before, after) = neighbours(results, "fedavg")
    assert (lower.setting, higher.setting) == ((0.01, "a"), (1.0, "a"))
    assert (before, after.setting) == (None, (0.1, "b"))


def test_values_that_are_lists_or_mappings_are_texts(tmp_path):
    (tmp_path / "sweep.yaml").write_text("sweep: [{seeds: [[0], [3]]}, {law: [{name: x}, {name: y}]}]\n")
    rows = "".join(f"\"[{seed}]\",\"{{'name': '{law}'}}\",p,<b>,0,done,0.5,\n" for seed in (0, 3) for law in "xy")
    (tmp_path / "results.csv").write_text(f"seeds,law,point,method,seed,status,final_accuracy,failure\n{rows}")
    results = read_results(tmp_path)
    assert [cell.setting for cell in cells(results, "<b>", "final_accuracy")] == [
        ("{'name': 'x'}",),
        ("{'name': 'y'}",),
    ]
    assert "<b>" not in page(results, []).replace("<b>Figure", "") and "&lt;b&gt;" in page(results, [])
