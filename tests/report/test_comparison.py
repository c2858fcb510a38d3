"""The comparison of methods: its table, what the verdict claims, further tables, and the statistics behind them."""

import csv
import io

import numpy as np
import pytest
from rounding import STEPS, SUM

from fedjax_bal.lab import ClientResults, RunRecord, as_csv
from fedjax_bal.metrics import METRICS, NOTHING, REPORT_TABLES, SeededDraw, compare, paired_difference, seeds_needed
from fedjax_bal.report.comparison import (
    by_client,
    class_balance,
    comparison_table,
    details,
    leader,
    notes,
    remarks,
    statistics,
    summarise,
    tied,
    verdict,
)
from fedjax_bal.report.reading import ReportedRuns
from fedjax_bal.report.tables import MINUS


def final(**last5):
    """Runs of methods by their accuracies, a seed each."""
    return [
        {
            "method": method, "seed": seed, "final_accuracy": 0.5, "best_accuracy": 0.9, "last5_accuracy": last5,
            "worst_class_accuracy": 0.25,
            "rounds_to_target": 3 if seed == 0 else None, "traffic_bytes": 2_500_000,
            "traffic_to_target_bytes": 1_250_000 if seed == 0 else None,
        }
        for method, accuracies in last5.items()
        for seed, last5 in enumerate(accuracies)
    ]  # fmt: skip


def column(table, heading):
    """The cells of a column of a table."""
    return [row[list(table.headings).index(heading)] for row in table.rows]


def test_rows_have_a_cell_for_each_heading():
    result = comparison_table([compare(final(fedavg=[0.50, 0.52], rebafl=[0.54, 0.55]))], 0.6)
    # Differences 4 and 3 points: mean 3.5, deviation 0.7071, half width 12.7062 * 0.5.
    assert result.rows[1] == (
        "rebafl", "54.5 ± 0.7", f"+3.5 [{MINUS}2.9, +9.9]", "25.0 ± 0.0", "50.0 ± 0.0", "90.0 ± 0.0",
        "3 (1 of 2)", "1.25 (1 of 2)", "2.5", "2",
    )  # fmt: skip
    assert list(result.headings) == [
        "Method", "Mean of last 5, %", "Difference from fedavg, points [95% interval]", "Worst class, %", "Final, %",
        "Best, %", "Rounds to 60%", "Traffic to 60%, MB", "Traffic, MB", "Seeds",
    ]  # fmt: skip


def test_on_an_imbalanced_test_set_the_mean_over_classes_leads():
    listed = final(fedavg=[0.9, 0.9], rebafl=[0.8, 0.8])
    for run, mean in zip(listed, [0.5, 0.52, 0.6, 0.622], strict=True):
        run["balanced_accuracy"] = mean
    summaries = compare(listed)
    found = comparison_table([summaries], None, notes([summaries]))
    assert list(found.headings)[1:4] == [
        "Mean over classes, %", "Difference from fedavg, points [95% interval]", "Mean of last 5, %",
    ]  # fmt: skip
    # Differences of 10 and 10.2 points: mean 10.1, half width 12.7062 * 0.1.
    assert [row[1:4] for row in found.rows] == [
        ("51.0 ± 1.4", NOTHING, "90.0 ± 0.0"), ("61.1 ± 1.6", "+10.1 [+8.8, +11.4]", "80.0 ± 0.0"),
    ]  # fmt: skip
    assert found.best == {1} and "different sizes" in found.note
    assert verdict(summaries).startswith("rebafl has the highest mean accuracy over classes, 61.1 ± 1.6%")
    (remark,) = remarks(summaries)
    assert "fedavg has the highest accuracy of 90.0 ± 0.0%" in remark
    assert remarks(compare(final(fedavg=[0.9], rebafl=[0.8]))) == []


THREE = {"a": [0.50, 0.51, 0.52], "b": [0.60, 0.61, 0.625], "c": [0.52, 0.55, 0.545]}


def test_three_methods_have_corrected_p_values_and_stars():
    found = comparison_table([compare(final(**THREE))], None)
    # Of b minus a, 10, 10 and 10.5 points, t is 61.0, and 2 p = 0.0005; of c minus a, 2, 4 and 2.5, t is 4.71.
    assert column(found, "p (Holm)") == [NOTHING, "<0.001", "0.042"]
    differences = column(found, "Difference from a, points [95% interval]")
    assert [text.partition(" [")[0] for text in differences] == [NOTHING, "+10.2*", "+2.8*"]
    more = comparison_table([compare(final(**THREE, d=[0.51, 0.50, 0.53]))], None)
    assert column(more, "p (Holm)")[2] == "0.084" and [row[2].count("*") for row in more.rows] == [0, 1, 0, 0]
    pair = comparison_table([compare(final(a=THREE["a"], b=THREE["b"]))], None)
    assert "p (Holm)" not in pair.headings and "*" not in pair.rows[1][2]
    assert "Holm" in notes([compare(final(**THREE))]) and "Holm" not in notes([compare(final(a=THREE["a"]))])


def test_the_verdict_claims_nothing_that_holm_withdraws():
    # b leads c by 2, 4 and 3 points, and d by 4, 3 and 2: t = 3 sqrt(3) and p = 0.035, which the second of three loses.
    made = {"a": [0.50, 0.51, 0.52], "b": [0.60, 0.61, 0.625], "c": [0.58, 0.57, 0.595]}
    assert leader(compare(final(**made))).method == "b" and "2 comparisons" in verdict(compare(final(**made)))
    summaries = compare(final(**made, d=[0.56, 0.58, 0.605]))
    b, *others = (method.last5_of_seeds for method in summaries[1:])
    assert [round(paired_difference(b, other).p, 3) for other in others] == [0.035, 0.035]
    assert leader(summaries) is None and comparison_table([summaries], None).best == set()
    assert "isn't significant" in verdict(summaries) and "3 comparisons" in verdict(summaries)


def test_a_method_that_lost_runs_does_not_win_by_the_others():
    made = [*final(a=[0.50, 0.51, 0.52]), *final(b=[0.80, 0.811])]
    lost = {**made[-1], "seed": 2, **dict.fromkeys(("final_accuracy", "best_accuracy", "last5_accuracy"))}
    assert leader(compare(made)).method == "b"
    summaries = compare([*made, {**lost, "failure": "diverged"}])
    assert leader(summaries) is None
    assert verdict(summaries).startswith("No clear winner: b has the highest accuracy, 80.")
    assert verdict(summaries).endswith(", but in only 2 of 3 runs.")


def test_equal_differences_are_no_test():
    assert "is the same in all runs, so that there is no spread to test" in verdict(
        compare(final(a=[0.25, 0.5], b=[0.5, 0.75]))
    )


def test_on_an_imbalanced_test_set_equal_accuracies_have_no_leader():
    made = final(a=[0.5, 0.5], b=[0.5, 0.5])
    for run in made:
        run["balanced_accuracy"] = 0.25
    assert not any("over all its rows" in said for said in remarks(compare(made)))


def test_deviations_over_partitions_are_called_so():
    crossed = [
        {**run, "seed": SeededDraw(5 + run["seed"] // 2, run["seed"] % 2)} for run in final(a=[0.5, 0.6, 0.3, 0.4])
    ]
    assert "deviation over partitions, whose seeds are averaged first" in notes([compare(crossed)])
    assert "deviation over seeds" in notes([compare(final(a=[0.5, 0.6]))])


def test_methods_that_differ_from_the_first_after_the_correction_are_named():
    assert "Significantly above a: b, c." in remarks(compare(final(**THREE)))
    first, *_ = remarks(compare(final(b=THREE["b"], a=THREE["a"], c=THREE["c"])))
    assert first == "Significantly below b: a, c."
    # The p-value of c minus a is 0.042; of three comparisons, it isn't enough.
    assert "Significantly above a: b." in remarks(compare(final(**THREE, d=[0.51, 0.50, 0.53])))
    assert "No method differs significantly from a." in remarks(
        compare(final(a=[0.5, 0.6], b=[0.6, 0.5], c=[0.51, 0.62]))
    )


def test_the_seeds_that_would_decide_are_estimated_for_the_leading_pair():
    summaries = compare(final(a=[0.50, 0.52, 0.53], b=[0.53, 0.52, 0.55]))
    # Differences of 3, 0 and 2 points.
    (remark,) = remarks(summaries)
    std = np.std([0.03, 0, 0.02], ddof=1)
    assert f"about {seeds_needed(std, 0.05 / 3)} seeds" in remark and "1.7 points" in remark
    small = compare(final(a=[0.50, 0.52, 0.53], b=[0.51, 0.512, 0.531]))
    assert f"about {seeds_needed(np.std([0.01, -0.008, 0.001], ddof=1), 0.01)} seeds" in remarks(small)[0]
    assert "1.0 points" in remarks(small)[0]
    three = compare(final(a=[0.50, 0.52, 0.53], b=[0.53, 0.52, 0.55], c=[0.1, 0.1, 0.2]))
    assert f"about {seeds_needed(std, 0.05 / 3, level=0.025)} seeds" in remarks(three)[-1]
    wide = compare(final(a=[0.1, 0.9, 0.5], b=[0.9, 0.1, 0.51]))
    assert "more than 1,000 seeds" in remarks(wide)[0]
    decided = compare(final(a=[0.500, 0.504], b=[0.550, 0.556]))
    assert remarks(decided) == remarks(compare(final(a=[0.5], b=[0.6]))) == remarks(compare(final(a=[0.5, 0.6]))) == []


def test_a_column_without_numbers_is_left_out_and_a_target_that_no_run_reaches_is_not():
    made = final(a=[0.5], b=[0.6])
    for run in made:
        run |= {"traffic_bytes": None, "worst_class_accuracy": None, "rounds_to_target": None}
    found = comparison_table([compare(made)], 0.6)
    assert not {"Traffic, MB", "Traffic to 60%, MB", "Worst class, %"} & {*found.headings}
    assert column(found, "Rounds to 60%") == ["never"] * 2


def test_divergences_are_shown_only_where_a_method_evens_classes_out():
    made = final(a=[0.5], b=[0.6])
    for run, kl in zip(made, (0.55, 0.125), strict=True):
        run["chain_kl"] = kl
    assert "KL" not in comparison_table([compare(made)], None).headings
    made[1]["copies"] = 7
    assert column(comparison_table([compare(made)], None), "KL") == ["0.550", "0.125"]
    assert "KL: divergence" in notes([compare(made)])


@pytest.mark.parametrize(
    ("finals", "said"),
    [
        ({"a": [0.5], "b": [0.5]}, "To one decimal, all methods have the same accuracy, 50.0%."),
        ({"a": [0.02], "b": [0.0204], "c": [0.0196]}, "To one decimal, all methods have the same accuracy, 2.0%."),
        ({"a": [0.5], "b": [0.501]}, "b has the highest accuracy, 50.1%; with fewer than two paired seeds"),
        ({"a": [0.5], "b": [None]}, "a reaches an accuracy of 50.0%."),
        ({"a": [0.500, 0.504], "b": [0.550, 0.556]}, "b has the highest accuracy, 55.3 ± 0.4%: its lead is"),
        ({"a": [0.50, 0.52], "b": [0.54, 0.55]}, "No clear winner: b has the highest accuracy, 54.5 ± 0.7%"),
        (  # the second one leads the first in every seed, but not the third one
            {"a": [0.500, 0.504], "b": [0.550, 0.556], "c": [0.556, 0.549]},
            "No clear winner: b has the highest accuracy, 55.3 ± 0.4%, but the 95% interval of its lead over c, 55.2",
        ),
        (  # the next method is clearly below, a lower one may be as good
            {"a": [0.3, 0.7], "b": [0.60, 0.80], "c": [0.55, 0.751]},
            "No clear winner: b has the highest accuracy, 70.0 ± 14.1%, but the 95% interval of its lead over a, 50.0",
        ),
        ({"a": [None]}, "No run has a final accuracy yet."),
    ],
)  # fmt: skip
def test_the_verdict_claims_no_more_than_the_intervals(finals, said):
    summaries = compare(final(**finals))
    assert verdict(summaries).startswith(said)
    assert tied(summaries) is ("the same accuracy" in said)
    assert (leader(summaries) is not None) is ("its lead is" in said)


def test_a_leader_stands_out():
    groups = [compare(final(a=[0.50, 0.511], b=[0.60, 0.61])), compare(final(c=[0.70, 0.71], d=[0.71, 0.70]))]
    assert comparison_table(groups, None).best == {1}


def test_no_negative_zero():
    assert comparison_table([compare(final(fedavg=[0.5], rebafl=[0.49999]))], None).rows[1][2] == "+0.0"


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
    assert found.headings == ("Method", "Mean over clients, %", "Worst 10% of clients, %")
    assert found.rows == [("fedavg", "60.0 ± 14.1", "10.0 ± 0.0"), ("rebafl", "60.0", NOTHING)]


def test_without_numbers_there_is_no_table():
    assert details([]) == details(runs()) == details(runs(balanced_accuracy=0.5, macro_f1=None)) == []


def test_groups_of_classes_are_shown_where_there_are_at_least_two():
    headings = lambda **values: details(runs(macro_f1=0.5, **values))[0].headings[2:]
    assert headings(many_shot_accuracy=0.5) == ()
    assert headings(many_shot_accuracy=0.5, few_shot_accuracy=[0.1, None, None, None]) == (
        "Many-shot, %",
        "Few-shot, %",
    )


def test_every_key_has_a_column():
    shown = [metric.name for metric in METRICS.values() if metric.column and metric.column.table in REPORT_TABLES]
    tables = details(runs(**dict.fromkeys(shown, 0.25)))
    assert sum(len(found.headings) - 1 for found in tables) == len(shown) > 15
    assert all({*row[1:]} == {"25.0 ± 0.0"} for found in tables[:-2] for row in found.rows)


def test_how_far_classes_are_evened_out_is_counted():
    copies = {"before": [1000, 0, 0, 0], "after": [1000, 1000, 0, 0], "extra_rows": 251, "extra_bytes": 251 * 784}
    nothing = {"before": [0, 0], "after": [0, 0], "extra_rows": 0, "extra_bytes": 0}
    parts = [{"methods": [name], "augmentation": added} for name, added in (("astraea", copies), ("b", nothing))]
    batches = [{"methods": ["cbfl", "c"], "kl_before": 0.346, "kl_after": 0.0}]
    augmented, filled = class_balance({"runs": [], "partitions": parts, "batches": batches})
    assert augmented.rows == [("astraea", "251", "25.1", "0.197", "1.39", "0.69")]  # log 4, log 2
    assert filled.rows == [("cbfl, c", "0.35", "0.00")]


def test_how_well_a_selector_knows_the_clients_is_a_table():
    made = runs(composition=[None, None, {"rank_correlation": -0.25}, {"rank_correlation": -0.35}])
    (found,) = class_balance({"runs": made, "partitions": []})
    assert found.rows == [("rebafl", f"{MINUS}0.30 ± 0.07")]
    assert class_balance({"runs": runs(composition={"rank_correlation": None}), "partitions": []}) == []


def test_distances_between_clients_are_those_of_their_classes():
    part = {"methods": ["fedavg"], "class_counts": [[3, 0], [0, 7], [1, 1]], "samples": [4, 8]}
    (found,) = class_balance({"runs": [], "partitions": [part]})
    # All clients together have 4 and 8 samples. Two clients with one class each are infinitely far from each other.
    laws, whole = np.array([[1, 0], [0, 1], [0.5, 0.5]]), np.array([4, 8]) / 12
    hellinger = np.mean([np.sqrt(1 - np.sqrt(law * whole).sum()) for law in laws])
    between = (1 + 2 * np.sqrt(1 - np.sqrt(0.5))) / 3
    assert found.rows[0][:5] == ("fedavg", "0.52", "inf", f"{hellinger:.2f}", f"{between:.2f}")


def of_run(method, seed, accuracies, names=None):
    """Results by client of a run: client i has 10 + i training rows, and a test row unless its accuracy is nan."""
    clients = np.arange(len(accuracies))
    names = names or tuple(map(str, clients))
    accuracies = np.array(accuracies)
    known = 1 - np.isnan(accuracies)
    return ClientResults(method, seed, names, 10 + clients, known, accuracies, accuracies, accuracies, clients < 0)


def reported(*clients, **config):
    """As much of a run's folder as a table by client looks at."""
    summary = {"runs": [], "partitions": []}
    return ReportedRuns(RunRecord(config, "", [], summary, clients=list(clients)), {"": config})


def test_each_of_a_few_clients_has_its_accuracy_with_each_method():
    names = ("Mainz", "Jena", "Köln")
    runs = [of_run("fedavg", 0, [0.5, 0.9, np.nan], names), of_run("fedavg", 1, [0.7, 0.9, np.nan], names)]
    (found,) = by_client(reported(*runs, of_run("rebafl", 0, [0.25, 1.0, np.nan], names)))
    assert found.headings == ("Client", "Training rows", "Test rows", "fedavg, %", "rebafl, %")
    assert found.rows == [
        ("Mainz", "10", "1", "60.0 ± 14.1", "25.0"),
        ("Jena", "11", "1", "90.0 ± 0.0", "100.0"),
        ("Köln", "12", "0", NOTHING, NOTHING),
    ]


def test_of_many_clients_the_ten_worst_are_shown():
    accuracies = np.linspace(1, 0, 25)
    accuracies[24] = np.nan
    (found,) = by_client(reported(of_run("a", 0, accuracies), of_run("b", 0, accuracies)))
    assert [row[0] for row in found.rows] == [str(client) for client in range(23, 13, -1)]
    assert "10 of 24 clients" in found.note
    (every,) = by_client(reported(of_run("a", 0, accuracies[:20])))
    assert len(every.rows) == 20


def test_clients_of_another_partition_for_each_seed_have_no_common_table():
    other = of_run("a", 1, [0.5, 0.5])._replace(training_rows=np.array([7, 8]))
    assert by_client(reported(of_run("a", 0, [0.5, 0.5]), other)) == by_client(reported()) == []
    runs = of_run("a", 0, [0.5, 0.5]), of_run("a", 1, [0.5, 0.5])  # as many rows, but others
    assert by_client(reported(*runs)) and by_client(reported(*runs, partition_seeds=[3, 4])) == []
    named = [run._replace(names=("Ann", "Bo")) for run in runs]
    assert by_client(reported(*named, partition_seeds=[3, 4]))  # a natural partition has no draw


def one(method, seed, final, **more):
    usual = {"best_accuracy": final, "last5_accuracy": final, "rounds_to_target": None, "traffic_bytes": 100}
    return {"method": method, "seed": seed, "final_accuracy": final, **usual, **more}


RUNS = [one("a_b", 0, 0.5), one("a_b", 1, 0.6), one("a_b", 2, 0.7)]
RUNS += [one("[x] | 50%", 0, 0.6, macro=1), one("[x] | 50%", 1, 0.8, rounds_to_target=3)]


def test_statistics_have_n_mean_deviation_and_intervals():
    table = list(csv.DictReader(io.StringIO(as_csv(list(statistics(RUNS))))))
    rows = {(row["method"], row["metric"]): row for row in table}
    first = rows["a_b", "final_accuracy"]
    assert [first[key] for key in ("n", "difference", "pairs", "p", "p_holm")] == ["3", "", "", "", ""]
    # With 2 degrees of freedom the 0.975 quantile of t is 4.3027.
    expected = {"mean": 0.6, "deviation": 0.1, "low": 0.6 - 4.3027 * 0.1 / 3**0.5, "high": 0.6 + 4.3027 * 0.1 / 3**0.5}
    assert {key: float(first[key]) for key in expected} == pytest.approx(expected, abs=SUM)
    second = rows["[x] | 50%", "final_accuracy"]
    assert (float(second["difference"]), second["pairs"]) == (pytest.approx(0.15), "2")
    assert float(second["difference_low"]) == pytest.approx(0.15 - 12.7062 * 0.05, abs=STEPS)
    # With 1 degree of freedom P(|T| > t) = 1 - 2 arctan(t) / pi, at t = 3; of one comparison it is not corrected.
    assert float(second["p"]) == float(second["p_holm"]) == pytest.approx(1 - 2 * np.arctan(3) / np.pi)
    reached = rows["[x] | 50%", "rounds_to_target"]
    assert (reached["n"], reached["mean"], reached["deviation"], reached["low"]) == ("1", "3.0", "", "")
    assert rows["a_b", "rounds_to_target"]["n"] == "0" and ("a_b", "copies") not in rows


def test_notes_say_what_an_interval_covers():
    said = lambda *draws: notes([summarise([run | {"seed": draws[run["seed"]]} for run in RUNS])])
    assert "sample standard deviation" in said(0, 1, 2) and "95% Student t" in said(0, 1, 2)
    assert "between seeds only" in said(0, 1, 2)
    assert "between seeds only" in said(SeededDraw(5, 0), SeededDraw(5, 1), SeededDraw(5, 2))
    assert "own partitions" in said(SeededDraw(5, 0), SeededDraw(6, 1), SeededDraw(7, 2))
    assert "averaged first" in said(SeededDraw(5, 0), SeededDraw(6, 0), SeededDraw(6, 1))
