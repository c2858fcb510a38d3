"""What reports read: names of methods, unfinished runs, and runs of several folders."""

import csv
import json

import pytest
import yaml
from report.conftest import edit_summary

from fedjax_bal.lab import FolderError, SweepFolder
from fedjax_bal.metrics import METRICS, NOTHING, SHARE
from fedjax_bal.report import results, write_run_page
from fedjax_bal.report.comparison import PROVISIONAL, compare_runs, run_states
from fedjax_bal.report.gallery import run_figures, sweep_figures
from fedjax_bal.report.paper import latex_table, write_table
from fedjax_bal.report.published import paper_comparison_of_run, paper_comparison_of_sweep
from fedjax_bal.report.reading import labels_of, read_runs, with_labels
from fedjax_bal.report.sweep_results import read_results, sweep_curves
from fedjax_bal.report.tables import split_math

SHEET = (
    "methods: [fedavg, {recipe: [scaffold, {name: balanced_softmax}], label: Both}]\n"
    "paper: {source: x, accuracy: {fedavg: 0.5}}\n"
    "sweep: [{partition.clients: [10, 20], paper.accuracy.scaffold+balanced_softmax: [0.5, 0.6]}]\n"
)


@pytest.fixture
def folder(make_run, tmp_path):
    """A run whose second method has a label."""
    folder = make_run(tmp_path / "run", rounds=2)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["methods"][1]["label"] = "ReBaFL (ours)"
    config["paper"] = {"source": "Table 1", "accuracy": {"rebafl": 0.7}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return folder


@pytest.fixture
def sweep(tmp_path):
    """A sweep of two methods, of which the second has a label and a metric by round."""
    rows = [
        "partition.clients,paper.accuracy.scaffold+balanced_softmax,point,method,seed,status,last5_accuracy,failure"
    ]
    for clients in (10, 20):
        for method, accuracy in (("fedavg", 0.5), ("scaffold+balanced_softmax", 0.6)):
            rows.append(f"{clients},0.5,p{clients},{method},0,done,{accuracy},")
        point = tmp_path / "points" / f"p{clients}"
        point.mkdir(parents=True)
        line = {"method": "scaffold+balanced_softmax", "seed": 0, "round": 1, "test_accuracy": 0.5, "test_loss": 1.0}
        (point / "metrics.jsonl").write_text(json.dumps(line | {"bytes_up": 1, "bytes_down": 1, "wall_s": 0.1}) + "\n")
    (tmp_path / "sweep.yaml").write_text(SHEET)
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_a_run_is_read_with_its_labels(folder):
    runs = read_runs([folder])
    run = runs.record
    names = ["fedavg", "ReBaFL (ours)"]
    assert list(dict.fromkeys(entry["method"] for entry in run.summary["runs"])) == names
    assert list(dict.fromkeys(line["method"] for line in run.lines)) == names
    assert run.summary["partitions"][0]["methods"] == names
    assert run.summary["finished"] and run_states(runs) == []
    assert [(entry.method, entry.theirs) for entry in paper_comparison_of_run(runs).entries] == [("ReBaFL (ours)", 0.7)]


def test_a_formula_that_figures_cannot_show_is_refused_as_a_name_and_text_as_a_label():
    with pytest.raises(ValueError, match="--names: received '.*'"):
        with_labels({"methods": ["a"]}, {"a": r"A $\frac{1}{$"})
    assert split_math(r"A $\frac{1}{$") == [r"A $\frac{1}{$"]


def test_names_come_before_labels_and_folders_after_both(folder, make_run, tmp_path):
    other = make_run(tmp_path / "other", rounds=2)
    names = {"fedavg": "FedAvg", "rebafl": "R"}
    assert labels_of(read_runs([folder], names).record.config) == names
    joined = read_runs([folder, other], names)
    summary = joined.record.summary
    every = list(dict.fromkeys(entry["method"] for entry in summary["runs"]))
    assert every == ["FedAvg (run)", "R (run)", "FedAvg (other)", "R (other)"] and summary["finished"]
    assert joined.origins["R (other)"] == ("R", "other")
    assert len(compare_runs(joined).groups) == 1


def test_runs_to_different_targets_or_of_different_lengths_are_no_equals(make_run, tmp_path):
    folders = [make_run(tmp_path / "a"), make_run(tmp_path / "b")]
    same = read_runs(folders)
    assert {run["rounds_to_target"] for run in same.record.summary["runs"]} == {8, 9, None}
    assert "different numbers of rounds" not in " ".join(compare_runs(same).warnings)
    edit_summary(folders[1], lambda summary: summary.update(target_accuracy=0.5))
    other = read_runs(folders)
    assert {run["rounds_to_target"] for run in other.record.summary["runs"]} == {None}
    assert {row["metric"] for row in compare_runs(other).statistics()}.isdisjoint({"rounds_to_target"})
    edit_summary(folders[0], lambda summary: summary["runs"][0].update(rounds=25))
    assert "different numbers of rounds" in " ".join(compare_runs(read_runs(folders[:1])).warnings)


def test_runs_on_files_of_one_name_are_on_the_same_data_if_the_content_is_equal(make_run, tmp_path):
    folders = [make_run(tmp_path / name) for name in "abc"]
    edit_summary(folders[2], lambda summary: summary["partitions"][0].update(sha256="0" * 64))
    groups = compare_runs(read_runs(folders)).runs
    assert [{run["method"][-2] for run in group} for group in groups] == [{"a", "b"}, {"c"}]


def until(folder, rounds):
    """Cuts the metrics of runs off after some rounds, and deletes the summary, as if the session had been killed."""
    file = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    kept = [line for line in lines if line["round"] <= rounds.get((line["method"], line["seed"]), 0)]
    file.write_text("".join(json.dumps(line) + "\n" for line in kept))
    (folder / "summary.json").unlink(missing_ok=True)
    return kept


def test_a_killed_run_without_a_summary_is_reported_up_to_its_last_line(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=30, seeds=(0, 1))
    lines = until(folder, {("fedavg", 0): 30, ("fedavg", 1): 15})
    runs = read_runs([folder])
    assert not runs.record.summary["finished"]
    done, unfinished, *others = runs.record.summary["runs"]
    last = {line["seed"]: (line["round"], line["test_accuracy"]) for line in lines}  # in order of rounds
    assert (done["rounds"], done["final_accuracy"]) == last[0] and last[0][0] == 30
    assert [run["final_accuracy"] for run in (unfinished, *others)] == [None, None, None]
    (states,) = run_states(runs)
    assert states.rows == [
        ("fedavg", "1", "round 15 of 30", f"{100 * last[1][1]:.1f}", "not finished"),
        ("rebafl", "0", "round 0 of 30", NOTHING, "not begun"),
        ("rebafl", "1", "round 0 of 30", NOTHING, "not begun"),
    ]
    tables, (provisional, verdict) = results(folder)
    assert tables[0] == states and provisional == PROVISIONAL and verdict.startswith("fedavg reaches an accuracy of")
    assert [row[0] for row in tables[1].rows] == ["fedavg", "rebafl"]


def test_runs_that_are_not_over_count_nowhere(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=200, gain=0.002)
    finished = compare_runs(read_runs([folder]))
    assert any("would show a difference" in text for text in finished.verdicts)
    # As if the session had been interrupted: the summary has two runs' results at round 20, and not the last run's.
    names = [metric.name for metric in METRICS.values() if metric.of_run]

    def interrupt(summary):
        summary.update(finished=False)
        summary["runs"].pop()
        for run in summary["runs"][1:3]:
            run.update(dict.fromkeys(names, 0.1) | {"rounds": 20, "failure": None, "broken_clients": "3"})
            run["stopped_early"] = None

    edit_summary(folder, interrupt)
    file = folder / "metrics.jsonl"
    whole = [("fedavg", 0), ("rebafl", 0), ("rebafl", 1)]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    kept = [line for line in lines if (line["method"], line["seed"]) in whole or line["round"] <= 20]
    file.write_text("".join(json.dumps(line) + "\n" for line in kept))

    runs = read_runs([folder])
    compared = compare_runs(runs)
    fedavg, rebafl = compared.groups[0]
    assert fedavg.last5_of_seeds == {0: finished.groups[0][0].last5_of_seeds[0]}
    assert sorted(rebafl.last5_of_seeds) == [0, 1]
    assert rebafl.difference is not None and rebafl.difference.pairs == 1
    assert [row[1].partition("(")[2] for row in compared.table.rows] == ["1 of 3)", "2 of 3)"]
    assert compared.table.best == set() and compared.warnings == [PROVISIONAL]
    assert not any("would show a difference" in text for text in compared.verdicts)
    counts = {(row["method"], row["metric"]): row["n"] for row in compared.statistics()}
    assert counts["fedavg", "final_accuracy"] == counts["fedavg", "rounds"] == 1 and counts["rebafl", "rounds"] == 2
    states, broken = run_states(runs)
    assert [row[:3] for row in states.rows] == [
        ("fedavg", "1", "round 20 of 200"), ("fedavg", "2", "round 20 of 200"), ("rebafl", "2", "round 20 of 200"),
    ]  # fmt: skip
    assert [row[1] for row in broken.rows] == ["1", "2"]
    assert r"(1 of 3)" in latex_table(runs, ["rounds"]) and PROVISIONAL in latex_table(runs, ["final"])
    text = write_run_page(folder).read_text()
    assert text.index(PROVISIONAL) < text.index("<table")


def test_a_first_look_shows_each_run_and_no_comparison(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=30, seeds=(0, 1))
    until(folder, dict.fromkeys([("fedavg", 0), ("fedavg", 1), ("rebafl", 0)], 10))
    runs = read_runs([folder])
    (states,) = run_states(runs)
    (shown,), sentences = results(folder)
    assert shown == states and sentences == [PROVISIONAL, "No run has a final accuracy yet."]
    assert [row[3] != NOTHING for row in states.rows] == [True, True, True, False]
    with pytest.raises(FolderError, match="no run has ended yet"):
        write_table([folder], ["final"])
    names = [name for name, *_ in run_figures(runs)]
    assert "accuracy" in names and "classes" not in names


def test_a_method_keeps_its_place_if_only_a_later_one_is_over(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=30, seeds=(0, 1))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"evaluation": {"target_accuracy": 0.6}}))
    until(folder, {("fedavg", 0): 10, ("rebafl", 0): 30, ("rebafl", 1): 30})
    compared = compare_runs(read_runs([folder]))
    assert [row[:2] for row in compared.table.rows] == [
        ("fedavg", f"{NOTHING} (0 of 2)"), ("rebafl", SHARE.show(compared.groups[0][1].last5)),
    ]  # fmt: skip
    assert all(row["difference"] is None for row in compared.statistics())
    place = compared.table.headings.index("Rounds to 60%")
    assert compared.table.rows[0][place] == NOTHING


def test_the_state_of_runs_follows_names_recipes_and_rounds_of_each_method(make_run, tmp_path):
    folder = make_run(tmp_path / "run", methods=("fedavg", "scaffold+balanced_softmax", "mine"), seeds=(0,), rounds=5)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["methods"] = [
        {"recipe": "fedavg"},
        {"recipe": ["scaffold", {"name": "balanced_softmax"}]},
        {"recipe": "rebafl", "name": "mine", "training": {"rounds": 9}},
    ]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (states,) = run_states(read_runs([folder]))
    assert states.rows == [("mine", "0", "round 5 of 9", "76.0", "not finished")]


def test_runs_that_stopped_early_or_failed_are_finished_and_named(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=9, seeds=(0,), finished=False)

    def change(summary):
        summary["runs"][0].update(rounds=4, stopped_early=4)
        summary["runs"][1].update(
            rounds=6, failure="round 7: not finite", final_accuracy=None, excluded=2, clipped=1, broken_clients="3"
        )

    edit_summary(folder, change)
    until_line = lambda line: line["round"] <= {"fedavg": 4, "rebafl": 6}[line["method"]]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in filter(until_line, lines)))
    runs = read_runs([folder])
    assert runs.record.summary["finished"]
    states, broken = run_states(runs)
    assert states.rows == [
        ("fedavg", "0", "round 4 of 9", "70.0", "stopped early"),
        ("rebafl", "0", "round 6 of 9", NOTHING, "failed: round 7: not finite"),
    ]
    assert broken.rows == [("rebafl", "0", "2", "1", "3")]


def test_a_sweep_is_read_with_its_labels_and_the_files_keep_the_names(sweep):
    results = read_results(sweep)
    assert results.methods == ["fedavg", "Both"]
    lines = sweep_curves(results, SweepFolder(sweep))
    assert {line["method"] for line in lines} == {"scaffold+balanced_softmax"}
    figure = next(figure for name, _, _, figure in sweep_figures(results, lines) if name == "accuracy")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Both"]
    paper = paper_comparison_of_sweep(results)
    assert {entry.method for entry in paper.entries} == {"fedavg", "Both"}
    with (sweep / "results.csv").open() as file:
        assert {row["method"] for row in csv.DictReader(file)} == {"fedavg", "scaffold+balanced_softmax"}


def test_labels_of_swept_methods_count_unless_a_method_has_several():
    one, two = [{"recipe": "fedavg", "label": "FedAvg"}], [{"recipe": "rebafl", "label": "ReBaFL"}, "iwds"]
    sheet = {"methods": ["fedprox"], "sweep": [{"lr": [0.1]}, {"methods": [one, two]}]}
    assert labels_of(sheet) == {"fedavg": "FedAvg", "rebafl": "ReBaFL", "iwds": "iwds"}
    sheet["sweep"][1]["methods"].append([{"recipe": "fedavg", "label": "Plain"}])
    assert labels_of(sheet) == {"fedavg": "fedavg", "rebafl": "ReBaFL", "iwds": "iwds"}


def test_wrong_names_are_refused(folder, sweep):
    with pytest.raises(ValueError, match="--names: received 'rebalf'"):
        read_runs([folder], {"rebalf": "x"})
    with pytest.raises(ValueError, match="--names: received 'rebafl'"):
        write_table([sweep], ["final"], names={"rebafl": "x"})
    with pytest.raises(ValueError, match=r"received 'ReBaFL \(ours\)' for several methods"):
        read_runs([folder], {"fedavg": "ReBaFL (ours)"})


def test_a_resumed_run_is_reported_with_the_lines_that_its_summary_lacks(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=20, finished=False)
    edit_summary(folder, lambda summary: summary["runs"][0].update(rounds=5, final_accuracy=0.1))
    run = read_runs([folder]).record.summary["runs"][0]
    assert run["rounds"] == 20 and run["final_accuracy"] == pytest.approx(0.7)
