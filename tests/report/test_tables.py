"""The tables of pages: what stands in them, what is said beside them, and their files."""

import csv
import io

import numpy as np
import pytest
from rounding import STEPS, SUM

from fedjax_bal.lab import RunClients, SweepFolder, as_csv
from fedjax_bal.metrics import METRICS, NOTHING, REPORT_TABLES, ranked_clients
from fedjax_bal.report import build
from fedjax_bal.report.latex import page_tables
from fedjax_bal.report.page import missing_runs
from fedjax_bal.report.tables import by_client, comparison, details, remarks, statistics, summarise_group
from fedjax_bal.report.wording import table_notes


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
    shown = [metric.name for metric in METRICS.values() if metric.column and metric.column.table in REPORT_TABLES]
    tables = details(runs(**dict.fromkeys(shown, 0.25)))
    assert sum(len(found.table.headings) - 1 for found in tables) == len(shown) > 15
    assert all({*row[1:]} == {"25.0 ± 0.0"} for found in tables[:-2] for row in found.table.rows)


def test_times_are_in_seconds():
    (found,) = details(runs(simulated_s=[1234.5, 1235.5, 2.0, None]))
    assert found.table.headings == ("Method", "All rounds, s")
    assert found.table.rows == [("fedavg", "1,235.0 ± 0.7"), ("rebafl", "2.0")]


def said(made, **summary):
    return " ".join(remarks({"runs": made, "partitions": [], **summary}))


def test_who_was_stopped_early_is_said_and_counts_as_finished():
    made = runs(stopped_early=[4, 6, None, None], rounds=[4, 6, 9, 8])
    assert "no longer got better: fedavg, seed 0 after round 4; fedavg, seed 1 after round 6. Final" in said(made)
    assert said(runs()) == ""
    config = {"methods": ["fedavg", "rebafl"], "seeds": [0, 1], "training": {"rounds": 9}}
    assert missing_runs(config, made) == ["rebafl, seed 1 (8 of 9 rounds)"]


def test_how_far_classes_are_evened_out_is_said():
    copies = {"before": [1000, 0, 0, 0], "after": [1000, 1000, 0, 0], "extra_rows": 251, "extra_bytes": 251 * 784}
    text = said(runs(), partitions=[{"methods": ["astraea"], "augmentation": copies}, {"methods": ["fedavg"]}])
    assert "Augmentation of astraea: 251 copies, which would take 0.197 MB to store, 25.1% more" in text
    assert "goes from 1.39 to 0.69 nats." in text  # log 4, log 2
    nothing = {"before": [0, 0], "after": [0, 0], "extra_rows": 0, "extra_bytes": 0}
    assert said(runs(), partitions=[{"methods": ["astraea"], "augmentation": nothing}]) == ""
    batches = [{"methods": ["cbfl"], "kl_before": 0.346, "kl_after": 0.0}]
    assert "Mini-batches of cbfl" in said(runs(), batches=batches)
    assert "goes from 0.35 to 0.00 nats." in said(runs(), batches=batches)


def test_how_well_a_selector_knows_the_clients_is_said():
    made = runs(composition=[None, None, {"rank_correlation": -0.25}, {"rank_correlation": -0.35}])
    assert "as rebafl estimates it: its rank correlation with the true one is \N{MINUS SIGN}0.30 ± 0.07," in said(made)
    assert said(runs(composition={"rank_correlation": None})) == ""


def test_clients_are_ranked_in_each_run():
    found = ranked_clients([np.array([0.4, np.nan, 0.2]), np.array([1.0, 0.0, 0.3])])
    assert found is not None and found[[0, 25, 50, 100]].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.7])
    assert ranked_clients([]) is None and ranked_clients([np.array([np.nan])]) is None


def of_run(method, seed, accuracies, names=None):
    """Results by client of a run: client i has 10 + i training rows, and a test row unless its accuracy is nan."""
    clients = np.arange(len(accuracies))
    names = names or tuple(map(str, clients))
    accuracies = np.array(accuracies)
    return RunClients(method, seed, names, 10 + clients, 1 - np.isnan(accuracies), accuracies, accuracies)


def test_each_of_a_few_clients_has_its_accuracy_with_each_method():
    names = ("Mainz", "Jena", "Köln")
    runs = [of_run("fedavg", 0, [0.5, 0.9, np.nan], names), of_run("fedavg", 1, [0.7, 0.9, np.nan], names)]
    (found,) = by_client([*runs, of_run("rebafl", 0, [0.25, 1.0, np.nan], names)])
    assert found.table.headings == ("Client", "Training rows", "Test rows", "fedavg, %", "rebafl, %")
    assert found.table.rows == [
        ("Mainz", "10", "1", "60.0 ± 14.1", "25.0"),
        ("Jena", "11", "1", "90.0 ± 0.0", "100.0"),
        ("Köln", "12", "0", NOTHING, NOTHING),
    ]


def test_of_many_clients_the_ten_worst_are_shown():
    accuracies = np.linspace(1, 0, 25)
    accuracies[24] = np.nan
    (found,) = by_client([of_run("a", 0, accuracies), of_run("b", 0, accuracies)])
    assert [row[0] for row in found.table.rows] == [str(client) for client in range(23, 13, -1)]
    assert "10 of 24 clients" in found.note
    (every,) = by_client([of_run("a", 0, accuracies[:20])])
    assert len(every.table.rows) == 20


def test_clients_of_another_partition_for_each_seed_have_no_common_table():
    other = of_run("a", 1, [0.5, 0.5])._replace(training_rows=np.array([7, 8]))
    assert by_client([of_run("a", 0, [0.5, 0.5]), other]) == by_client([]) == []


def one(method, seed, final, **more):
    usual = {"best_accuracy": final, "last5_accuracy": final, "rounds_to_target": None, "traffic_bytes": 100}
    return {"method": method, "seed": seed, "final_accuracy": final, **usual, **more}


RUNS = [one("a_b", 0, 0.5), one("a_b", 1, 0.6), one("a_b", 2, 0.7)]
RUNS += [one("[x] | 50%", 0, 0.6, macro=1), one("[x] | 50%", 1, 0.8, rounds_to_target=3)]


def files(groups, target=None):
    """The comparison of groups of runs as CSV and LaTeX."""
    summaries = [summarise_group(made) for made in groups]
    notes = " ".join(table_notes([own for group in summaries for own in group], partitions=False))
    rows = [row for made in groups for row in statistics(made)]
    return {"csv": as_csv(rows), "tex": page_tables([comparison(summaries, target, notes)])}


def test_csv_has_n_mean_deviation_and_intervals():
    table = list(csv.DictReader(io.StringIO(files([RUNS])["csv"])))
    rows = {(row["method"], row["metric"]): row for row in table}
    first = rows["a_b", "final_accuracy"]
    assert (first["n"], first["difference"], first["pairs"]) == ("3", "", "")
    # With 2 degrees of freedom the 0.975 quantile of t is 4.3027.
    expected = {"mean": 0.6, "deviation": 0.1, "low": 0.6 - 4.3027 * 0.1 / 3**0.5, "high": 0.6 + 4.3027 * 0.1 / 3**0.5}
    assert {key: float(first[key]) for key in expected} == pytest.approx(expected, abs=SUM)
    second = rows["[x] | 50%", "final_accuracy"]
    assert (float(second["difference"]), second["pairs"]) == (pytest.approx(0.15), "2")
    assert float(second["difference_low"]) == pytest.approx(0.15 - 12.7062 * 0.05, abs=STEPS)
    reached = rows["[x] | 50%", "rounds_to_target"]
    assert (reached["n"], reached["mean"], reached["deviation"], reached["low"]) == ("1", "3.0", "", "")
    assert rows["a_b", "rounds_to_target"]["n"] == "0" and ("a_b", "copies") not in rows


def test_latex_has_the_tables_of_the_page():
    latex = files([RUNS])["tex"]
    notes = " ".join(line.removeprefix("% ") for line in latex.splitlines() if line.startswith("% "))
    assert "sample standard deviation" in notes and "95\\% Student t interval" in notes
    assert "\\caption{Comparison of methods.}\n\\label{tab:comparison-of-methods}" in latex
    assert r"a\_b & 60.0 $\pm$ 10.0 & -- &" in latex
    assert r"{[}x{]} | 50\% & 70.0 $\pm$ 14.1 & +15.0 {[}$-$48.5, +78.5{]} &" in latex
    assert latex.count(r"\begin{tabular}{lrrrrrrr}") == latex.count(r"\end{table}") == 1


def test_names_are_text_in_latex():
    assert "\n{}*star & 50.0" in files([[one("*star", 0, 0.5), one("<b>", 0, 0.6)]])["tex"]


@pytest.mark.slow
def test_tables_lie_beside_the_report_and_without_runs_are_empty(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=2)
    build(folder)
    for ending, content in files([[]], 0.5).items():
        assert content
        assert (folder / f"tables.{ending}").stat().st_size > len(content)


def test_a_text_that_python_reads_as_a_number_stays_a_text(tmp_path):
    row = {"law": "1_2", "point": "p", "method": "a", "status": "done", "failure": None}
    (tmp_path / "results.csv").write_text(as_csv([row]))
    assert SweepFolder(tmp_path).read_results(["law"]) == [{**row, "failure": ""}]


@pytest.mark.parametrize("name", ["=1+1", "+cmd", "-cmd|' /C calc'!A0", "@SUM(A1)", "'=x", "''=x", "\tx"])
def test_no_cell_of_csv_is_a_formula_and_names_are_read_back(name, tmp_path):
    row = {"lr": "-0.5", "law": name, "point": "'p", "method": name, "seed": "0", "status": "done", "failure": "''"}
    text = as_csv([row])
    (written,) = csv.DictReader(io.StringIO(text))
    assert written["method"] == f"'{name}" and written["lr"] == "-0.5"
    (tmp_path / "results.csv").write_text(text)
    assert SweepFolder(tmp_path).read_results(["lr", "law"]) == [{**row, "lr": -0.5, "seed": 0}]
