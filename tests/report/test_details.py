"""The further tables: which there are, and what stands in them."""

import json

import pytest

from fedjax_bal.metrics import METRICS, ranked_clients
from fedjax_bal.report import plots
from fedjax_bal.report.details import details, ending
from fedjax_bal.report.page import missing_runs
from fedjax_bal.report.styles import looks_of
from fedjax_bal.report.wording import NOTHING
from fedjax_bal.runs import FolderError, RunFolder


def runs(**values):
    """Two methods with two seeds; a value, or one for each of the four runs."""
    made = [{"method": method, "seed": seed} for method in ("fedavg", "rebafl") for seed in (0, 1)]
    for key, value in values.items():
        for run, one in zip(made, value if isinstance(value, list) else [value] * 4, strict=True):
            run[key] = one
    return made


def test_means_and_deviations_over_the_seeds_of_each_method():
    (found,) = details(runs(client_accuracy=[0.5, 0.7, 0.6, None], client_accuracy_worst10=[0.1, 0.1, None, None]))
    assert found.title == "Clients"
    assert found.table.headings == ("Method", "Mean, %", "Worst 10%, %")
    assert found.table.rows == [("fedavg", "60.0 ± 14.1", "10.0 ± 0.0"), ("rebafl", "60.0", NOTHING)]


def test_without_numbers_there_is_no_table():
    assert details([]) == details(runs()) == details(runs(balanced_accuracy=None)) == []


def test_groups_of_classes_are_shown_where_there_are_at_least_two():
    headings = lambda **values: details(runs(balanced_accuracy=0.5, **values))[0].table.headings[2:]
    assert headings(many_shot_accuracy=0.5) == ()
    assert headings(many_shot_accuracy=0.5, few_shot_accuracy=[0.1, None, None, None]) == (
        "Many-shot, %",
        "Few-shot, %",
    )


def test_notes_are_on_what_is_shown():
    note = lambda **values: details(runs(**values))[0].note
    assert note(balanced_accuracy=0.5) == "On the test set, at the last evaluation."
    assert "many-, medium- or few-shot" in note(many_shot_accuracy=0.5, few_shot_accuracy=0.1)
    assert note(last10_accuracy=0.5) == "The mean of a run's last ten evaluations, where it has as many."


def test_every_key_has_a_column():
    shown = [metric.name for metric in METRICS.values() if metric.column]
    tables = details(runs(**dict.fromkeys(shown, 0.25)))
    assert sum(len(found.table.headings) - 1 for found in tables) == len(shown) > 15
    assert all({*row[1:]} == {"25.0 ± 0.0"} for found in tables[:-2] for row in found.table.rows)


def test_times_are_in_seconds():
    (found,) = details(runs(simulated_s=[1234.5, 1235.5, 2.0, None]))
    assert found.table.headings == ("Method", "All rounds, s")
    assert found.table.rows == [("fedavg", "1,235.0 ± 0.7"), ("rebafl", "2.0")]


def test_who_was_stopped_early_is_said_and_counts_as_finished():
    made = runs(stopped_early=[4, 6, None, None], rounds=[4, 6, 9, 8])
    assert "no longer got better: fedavg after round 4 (seed 0), 6 (seed 1). Final" in ending(made)
    assert ending(runs()) is None
    config = {"methods": ["fedavg", "rebafl"], "seeds": [0, 1], "training": {"rounds": 9}}
    assert missing_runs(config, made) == ["rebafl, seed 1 (8 of 9 rounds)"]


def test_clients_are_ranked_in_each_run_at_its_last_evaluation():
    line = lambda seed, round, values: {"method": "a", "seed": seed, "round": round, "client_accuracies": values}
    lines = [line(0, 4, [0.2, 0.4]), line(0, 2, [0.9, 0.9]), line(1, 4, [0.0, 0.3, 1.0])]
    found = ranked_clients(lines, "a")
    assert found[[0, 25, 50, 100]].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.7])
    assert ranked_clients(lines, "b") is None
    axes = plots.accuracy_by_client([("a", found)], looks_of(["a"])).axes[0]
    assert axes.lines[0].get_xydata()[50].tolist() == pytest.approx([50, 30])


@pytest.mark.parametrize("key", ["stopped_early", "client_accuracy_worst10"])
def test_damaged_numbers_are_refused(make_run, tmp_path, key):
    folder = make_run(tmp_path / "run", rounds=1, classes=3, clients=2)
    summary = json.loads((folder / "summary.json").read_text())
    summary["runs"][0][key] = "x"
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(FolderError, match=rf"runs\[0\].{key}: a number"):
        RunFolder(folder).read()
