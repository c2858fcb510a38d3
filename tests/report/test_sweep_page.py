"""What is made of a sweep's table: cells, figures, and the page."""

import csv
import io
import re

import pytest
from rounding import STEPS

from fedjax_bal.report import results as in_terminal
from fedjax_bal.report.gallery import sweep_figures
from fedjax_bal.report.sweep_page import best_settings, comparisons, leaders, page_of_sweep, verdicts
from fedjax_bal.report.sweep_results import along, best, cells, how_tuned, list_conditions, read_results

SHEET = "name: mine\nsweep: [{lr: [1.0, 0.01, 0.1]}, {law: [a, b]}, {partition.seed: [0, 1]}]\n"


def page(results):
    """The page of a sweep, without figures."""
    return page_of_sweep(results).html().decode()


def table(accuracies):
    """A table with final accuracies by setting, one for each of two partition seeds; None for a run that diverged."""
    rows = ["lr,law,partition.seed,point,method,seed,status,last5_accuracy,failure"]
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
    assert [axis.keys for axis in results.axes] == [("lr",), ("law",)]
    found = {cell.setting: cell for cell in cells(results, "fedavg", "last5_accuracy")}
    assert found[0.1, "a"].mean == pytest.approx(0.7) and found[0.1, "a"].deviation == pytest.approx(0.02**0.5)
    assert (found[1.0, "a"].count, found[1.0, "a"].asked) == (1, 2)


def test_what_diverged_can_not_win_by_those_that_are_left(results):
    assert best(results, "fedavg").setting == (0.1, "a")
    said, tuned = verdicts(results)
    assert said == "fedavg reaches an accuracy of 70.0 ± 14.1%." and "selected by accuracy on the test rows" in tuned
    assert best_settings(results)[0].rows == [("fedavg", "lr 0.1, law a", "70.0 ± 14.1")]


def test_the_page_of_a_killed_sweep_says_what_is_missing(results, tmp_path):
    assert "not finished" not in page(results)  # a sweep whose seeds are not known
    (tmp_path / "sweep.yaml").write_text(SHEET + "methods: [{recipe: fedavg}]\nseeds: [0, 1]\n")
    text = page(read_results(tmp_path))
    assert "This sweep is not finished: 12 of its 24 runs have ended.</p><p>Some runs have no result" in text
    assert in_terminal(tmp_path)[1][0] == "This sweep is not finished: 12 of its 24 runs have ended."
    assert "<td>diverged</td>" in text
    (tmp_path / "sweep.yaml").write_text(SHEET + "methods: [{recipe: fedavg}]\nseeds: [0]\n")
    assert "not finished" not in page(read_results(tmp_path))


def test_settings_are_picked_on_validation_images_where_all_runs_have_them(tmp_path):
    rows = [(0.1, 0.9, 0.3), (0.2, 0.6, 0.8), (0.3, 0.7, 0.5)]
    (tmp_path / "sweep.yaml").write_text("sweep: [{lr: [0.1, 0.2, 0.3]}]\n")
    heads = "lr,point,method,seed,status,last5_accuracy,validation_accuracy,failure\n"
    whole = [f"{rate},p,fedavg,0,done,{test},{validation},\n" for rate, test, validation in rows]
    (tmp_path / "results.csv").write_text(heads + "".join(whole))
    found = read_results(tmp_path)
    (best,) = best_settings(found)
    assert best.rows == [("fedavg", "lr 0.2", "60.0")] and "on the validation rows" in best.note
    lacking = heads + "".join(whole).replace(",0.9,0.3,", ",0.9,,")
    (tmp_path / "results.csv").write_text(lacking)
    (best,) = best_settings(read_results(tmp_path))
    assert best.rows == [("fedavg", "lr 0.1 *", "90.0")] and "on the test set" in best.note


def test_a_best_value_at_the_end_of_its_axis_is_marked(tmp_path):
    for top, mark in ((0.1, " *"), (0.2, ""), (0.3, " *")):
        rows = "".join(f"{rate},p,fedavg,0,done,{0.9 - abs(rate - top)},\n" for rate in (0.1, 0.2, 0.3))
        (tmp_path / "sweep.yaml").write_text("sweep: [{lr: [0.1, 0.2, 0.3]}]\n")
        (tmp_path / "results.csv").write_text(f"lr,point,method,seed,status,last5_accuracy,failure\n{rows}")
        (best,) = best_settings(read_results(tmp_path))
        assert best.rows == [("fedavg", f"lr {top}{mark}", "90.0")] and ("* marks" in best.note) == bool(mark)


def test_a_methods_own_value_is_not_called_its_best(tmp_path):
    own = "{recipe: fedavg, name: own, training: {optimizer: {learning_rate: 0.03}}}"
    (tmp_path / "sweep.yaml").write_text(
        f"training: {{optimizer: {{learning_rate: 0.5}}}}\nmethods: [fedavg, {own}]\n"
        "sweep: [{training.optimizer.learning_rate: [0.1, 0.2]}]\n"
    )
    heads = "training.optimizer.learning_rate,point,method,seed,status,last5_accuracy,failure\n"
    rows = [
        f"{rate},p,{method},0,done,{0.5 + rate * (method == 'fedavg')},"
        for method in ("fedavg", "own")
        for rate in (0.1, 0.2)
    ]
    (tmp_path / "results.csv").write_text(heads + "\n".join(rows) + "\n")
    results = read_results(tmp_path)
    (best,) = best_settings(results)
    assert [row[1] for row in best.rows] == ["learning_rate 0.2 *", "learning_rate 0.03 (not swept)"]
    assert "A method that sets a swept key itself has one result for all values of the key." in page(results)
    # The setting doesn't show the base's value of what is swept.
    assert "learning_rate swept" in page(results) and "learning_rate 0.5" not in page(results)


def test_values_that_are_lists_or_mappings_are_texts(tmp_path):
    (tmp_path / "sweep.yaml").write_text("sweep: [{seeds: [[0], [3]]}, {law: [{name: x}, {name: y}]}]\n")
    rows = "".join(f"\"[{seed}]\",\"{{'name': '{law}'}}\",p,<b>,0,done,0.5,\n" for seed in (0, 3) for law in "xy")
    (tmp_path / "results.csv").write_text(f"seeds,law,point,method,seed,status,last5_accuracy,failure\n{rows}")
    results = read_results(tmp_path)
    assert [cell.setting for cell in cells(results, "<b>", "last5_accuracy")] == [
        ("{'name': 'x'}",),
        ("{'name': 'y'}",),
    ]
    assert "<b>" not in page(results).replace("<b>Figure", "") and "&lt;b&gt;" in page(results)


CONDITIONED = "sweep: [{partition.clients: [10, 20]}, {training.optimizer.learning_rate: [0.1, 0.2]}]\n"


def conditioned(tmp_path, sheet=CONDITIONED):
    """Two methods: the first is better with 20 clients, the second with 10, at different learning rates."""
    means = {(10, 0.1): (0.4, 0.6), (10, 0.2): (0.5, 0.2), (20, 0.1): (0.9, 0.3), (20, 0.2): (0.1, 0.4)}
    rows = [
        f"{clients},{rate},p,{method},0,done,{value},"
        for (clients, rate), pair in means.items()
        for method, value in zip("ab", pair, strict=True)
    ]
    heads = "partition.clients,training.optimizer.learning_rate,point,method,seed,status,last5_accuracy,failure"
    (tmp_path / "sweep.yaml").write_text(sheet)
    (tmp_path / "results.csv").write_text("\n".join([heads, *rows]) + "\n")
    return read_results(tmp_path)


def test_a_condition_is_nothing_that_wins(tmp_path):
    found = conditioned(tmp_path)
    assert (found.condition_axes, found.tuned) == ((0,), (1,))
    assert list_conditions(found) == [{0: 10}, {0: 20}]
    assert [best(found, "a", own).setting for own in list_conditions(found)] == [(10, 0.2), (20, 0.1)]
    (led,) = leaders(found)
    assert led.rows == [("clients 10", "b", "60.0", "+10.0"), ("clients 20", "a", "90.0", "+50.0")] and not led.best
    assert verdicts(found) == [how_tuned(found)]
    (settings,) = best_settings(found)
    assert [row[:3] for row in settings.rows] == [
        ("clients 10", "a", "learning_rate 0.2 *"), ("clients 10", "b", "learning_rate 0.1 *"),
        ("clients 20", "a", "learning_rate 0.1 *"), ("clients 20", "b", "learning_rate 0.2 *"),
    ]  # fmt: skip
    assert [cell.setting for cell in along(found, 0, "a", "last5_accuracy")] == [(10, 0.2), (20, 0.1)]
    assert [cell.setting for cell in along(found, 1, "a", "last5_accuracy", {0: 10})] == [(10, 0.1), (10, 0.2)]
    text = page(found)
    assert "<tr class=best>" not in text  # of one seed there is no interval
    assert "8 runs · 2 methods · 1 seed<" in text


def test_on_an_imbalanced_test_set_all_conditions_go_by_the_mean_over_classes(tmp_path):
    # By condition, method and seed: accuracy, and its mean over classes. With 20 clients they are the same.
    values = {
        (10, "a"): [(0.9, 0.4), (0.9, 0.5), (0.9, 0.6)], (10, "b"): [(0.8, 0.6), (0.8, 0.7), (0.8, 0.81)],
        (20, "a"): [(0.7, 0.7), (0.7, 0.7), (0.701, 0.701)], (20, "b"): [(0.8, 0.8)] * 3,
    }  # fmt: skip
    rows = ["partition.clients,point,method,seed,status,final_accuracy,last5_accuracy,balanced_accuracy,failure"]
    for (clients, method), pairs in values.items():
        rows += [f"{clients},p,{method},{seed},done,{own},{own},{mean}," for seed, (own, mean) in enumerate(pairs)]
    (tmp_path / "sweep.yaml").write_text("sweep: [{partition.clients: [10, 20]}]\n")
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n")
    found = read_results(tmp_path)
    (led,) = leaders(found)
    assert led.headings[2] == "Mean over classes, %"
    assert [row[:3] for row in led.rows] == [("clients 10", "b", "70.3 ± 10.5"), ("clients 20", "b", "80.0 ± 0.0")]
    assert led.best == {0, 1}
    assert all(table.headings[1] == "Mean over classes, %" for table in comparisons(found))
    assert "class-mean-0" in {name for name, *_ in sweep_figures(found, [])}


def test_figures_of_a_sweep_have_a_panel_for_each_condition(tmp_path):
    lines = [
        {"partition.clients": clients, "training.optimizer.learning_rate": 0.1, "point": "p", "method": "a", "seed": 0,
         "round": at, "test_accuracy": 0.1 * at}
        for clients in (10, 20) for at in (1, 2)
    ]  # fmt: skip
    figures = {name: figure for name, _, _, figure in sweep_figures(conditioned(tmp_path), lines)}
    titles = {name: [axes.get_title("left") for axes in figure.axes] for name, figure in figures.items()}
    both = ["clients 10", "clients 20"]
    assert titles["mean-accuracy-1"] == both and titles["mean-accuracy-0"] == [""]
    # With 10 clients the best rate is another one, of which there are no lines.
    assert titles["accuracy"] == both[1:]


def test_a_single_methods_settings_are_lines_and_a_diverged_one_is_named(tmp_path):
    (tmp_path / "sweep.yaml").write_text("sweep: [{lr: [0.1, 1, 10]}]\n")
    ends = {0.1: "done,0.5", 1: "done,0.6", 10: "diverged,"}
    rows = "".join(f"{rate},p,a,0,{end},\n" for rate, end in ends.items())
    (tmp_path / "results.csv").write_text(f"lr,point,method,seed,status,last5_accuracy,failure\n{rows}")
    lines = [
        {"lr": rate, "point": "p", "method": "a", "seed": 0, "round": at, "test_accuracy": 0.05 * at}
        for rate, last in ((0.1, 8), (1, 8), (10, 5)) for at in range(1, last + 1)
    ]  # fmt: skip
    drawn = {name: (text, figure) for name, _, text, figure in sweep_figures(read_results(tmp_path), lines)}
    text, figure = drawn["accuracy"]
    (axes,) = figure.axes
    shown = {line.get_label(): line.get_xdata()[-1] for line in axes.get_lines()}
    assert shown == {"lr 0.1": 8, "lr 1": 8, "lr 10": 5} and "best setting" not in text
    text, figure = drawn["mean-accuracy-0"]
    assert figure.axes[0].get_lines()[0].get_xdata().tolist() == [0.1, 1] and "no run ended: a at lr 10." in text


def many(tmp_path, count):
    """A sweep of many methods on two partitions."""
    (tmp_path / "sweep.yaml").write_text("sweep: [{partition.seed: [0, 1]}]\n")
    # Their differences vary in the fifth decimal.
    rows = "".join(
        f"{seed},p,m{method},0,done,{(method + 10) / 100 + 1e-5 * seed * (method > 0)},0.25,\n"
        for method in range(count)
        for seed in (0, 1)
    )
    heads = "partition.seed,point,method,seed,status,last5_accuracy,worst_class_accuracy,failure"
    (tmp_path / "results.csv").write_text(f"{heads}\n{rows}")
    return read_results(tmp_path)


def test_the_table_leads_with_the_mean_of_the_last_five_its_interval_and_the_worst_class(tmp_path):
    (table,) = re.findall(r"<table.*?</table>", page(many(tmp_path, 9)), re.DOTALL)
    heads = re.findall(r"<th scope=\"col\">(.*?)</th>", table)
    assert heads[:6] == [
        "Method", "Mean of last 5, %", "Difference from m0, points [95% interval]", "p (Holm)", "Worst class, %",
        "Seeds",
    ]  # fmt: skip
    assert (
        table.count("<tr") == 10
        and "m8</th><td>18.0 ± 0.0</td><td>+8.0* [+8.0, +8.0]</td><td>&lt;0.001</td><td>25.0 ± 0.0</td>" in table
    )


def test_many_curves_are_small_multiples_with_the_first_method_in_grey(tmp_path):
    found = many(tmp_path, 36)
    lines = [
        {"partition.seed": 0, "point": "p", "method": f"m{method}", "seed": 0, "round": at, "test_accuracy": 0.1 * at}
        for method in range(36) for at in (1, 2)
    ]  # fmt: skip
    ((_, _, caption, figure),) = [own for own in sweep_figures(found, lines) if own[0] == "accuracy"]
    assert "the first line in grey" in caption and len(figure.axes) == 5
    labels = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
    assert all(len(own) == 8 and "m0" in own for own in labels)
    assert sorted(name for own in labels for name in own if name != "m0") == sorted(f"m{k}" for k in range(1, 36))


CROSSED = "name: mine\nseeds: [0, 1]\nsweep: [{lr: [0.1, 0.3]}, {AXIS}]\n"
# By partition, then by seed: FedAvg, and another method that is better by 1 and 3 points on the two partitions.
ACCURACIES = {"fedavg": [[0.50, 0.60], [0.70, 0.72]], "other": [[0.505, 0.615], [0.73, 0.75]]}


def tables(tmp_path, axis, values, lost=()):
    """The tables of a sweep with two rates, two partitions and two seeds; of `lost` places in it no run is done."""
    rows = [f"lr,{axis},point,method,seed,status,last5_accuracy,macro_f1,failure"]
    for rate in (0.1, 0.3):
        for method, partitions in ACCURACIES.items():
            for place, seeds in enumerate(partitions):
                for seed, value in enumerate(seeds):
                    status = "diverged" if (rate, method, place, seed) in lost else "done"
                    point = f"lr={rate},seed={place}"
                    name = values[place][seed] if axis == "seeds" else seed
                    rows.append(f'{rate},"{values[place]}","{point}",{method},{name},{status},{value},,')
    (tmp_path / "sweep.yaml").write_text(CROSSED.replace("AXIS", f"{axis}: {values}"))
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n")
    results = read_results(tmp_path)
    texts = page_of_sweep(results).tables()
    return list(csv.DictReader(io.StringIO(texts["csv"].decode()))), texts["tex"].decode().replace("\n% ", " ")


def test_runs_on_one_partition_are_averaged_first(tmp_path):
    rows, latex = tables(tmp_path, "partition.seed", [5, 6])
    assert [(row["lr"], row["method"], row["metric"], row["n"]) for row in rows] == [
        (rate, method, "last5_accuracy", "2") for rate in ("0.1", "0.3") for method in ACCURACIES
    ]
    own, other = rows[0], rows[1]
    # Of the means 0.55 and 0.71 the deviation is 0.16 / sqrt 2; with 1 degree of freedom the 0.975 quantile is 12.706.
    assert (float(own["mean"]), float(own["deviation"])) == pytest.approx((0.63, 0.16 / 2**0.5))
    assert float(own["high"]) - float(own["mean"]) == pytest.approx(12.7062 * 0.08, rel=STEPS)
    assert (float(other["difference"]), other["pairs"]) == (pytest.approx(0.02), "2")
    assert float(other["difference_low"]) == pytest.approx(0.02 - 12.7062 * 0.01, rel=STEPS)
    assert "between partitions, whose seeds are averaged first" in latex
    assert r"other & 65.0 $\pm$ 12.7 & +2.0 {[}$-$10.7, +14.7{]} &" in latex
    assert r"lr 0.3 & 63.0 $\pm$ 11.3 & 65.0 $\pm$ 12.7 \\" in latex


def test_partitions_by_seed_are_independent_or_crossed(tmp_path):
    rows, latex = tables(tmp_path, "partition_seeds", [[5, 6], [7, 8]])
    assert rows[0]["n"] == "4" and "own partitions" in latex
    rows, latex = tables(tmp_path, "partition_seeds", [[5, 6], [6, 5]])
    assert rows[0]["n"] == "2" and "averaged first" in latex
    assert float(rows[0]["deviation"]) == pytest.approx(0.04 / 2**0.5)  # of (0.50 + 0.72) / 2 and (0.60 + 0.70) / 2


def test_seeds_alone_and_lost_runs(tmp_path):
    rows, latex = tables(tmp_path, "seeds", [[0, 1], [2, 3]], {(0.3, "fedavg", 0, 1), (0.3, "fedavg", 1, 0)})
    assert [row["n"] for row in rows] == ["4", "4", "2", "4"] and rows[3]["pairs"] == "2"
    assert float(rows[2]["mean"]) == pytest.approx((0.50 + 0.72) / 2)
    assert "between seeds only" in latex
