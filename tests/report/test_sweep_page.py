"""What is made of a sweep's table: cells, figures, and the page."""

import re

import pytest

from fedjax_bal.report import sweep_page
from fedjax_bal.report.published import beside_of_sweep
from fedjax_bal.report.sweep_cells import along, best, cells, neighbours, situations
from fedjax_bal.report.sweep_page import answer
from fedjax_bal.report.sweep_plots import sweep_figures
from fedjax_bal.report.sweep_results import read_results

SHEET = "name: mine\nsweep: [{lr: [1.0, 0.01, 0.1]}, {law: [a, b]}, {partition.seed: [0, 1]}]\n"


def page(results, pictures):
    """The page of a sweep."""
    return sweep_page.page(results, beside_of_sweep(results), pictures)


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
    assert "70.0 ± 14.1%" in answer(results) and "Best settings: fedavg lr 0.1, law a." in answer(results)


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
    heads = "lr,point,method,seed,status,last5_accuracy,validation_accuracy,failure\n"
    whole = [f"{rate},p,fedavg,0,done,{test},{validation},\n" for rate, test, validation in rows]
    (tmp_path / "results.csv").write_text(heads + "".join(whole))
    found = read_results(tmp_path)
    assert answer(found) == (
        "fedavg reaches an accuracy of 60.0% over its last five evaluations (one seed: no interval). "
        "Best settings: fedavg lr 0.2. Settings were selected by accuracy on the validation images."
    )
    (lower, higher) = neighbours(found, "fedavg")[0]
    assert (lower.mean, higher.mean) == (0.9, 0.7)
    lacking = heads + "".join(whole).replace(",0.9,0.3,", ",0.9,,")
    (tmp_path / "results.csv").write_text(lacking)
    assert "90.0% over" in answer(read_results(tmp_path)) and "on the test set" in answer(read_results(tmp_path))


def test_numbers_stand_in_rising_order(results):
    line = along(results, 0, "fedavg", "last5_accuracy")
    assert [cell.setting for cell in line] == [(0.01, "a"), (0.1, "a"), (1.0, "b")]
    (lower, higher), (before, after) = neighbours(results, "fedavg")
    assert (lower.setting, higher.setting) == ((0.01, "a"), (1.0, "a"))
    assert (before, after.setting) == (None, (0.1, "b"))


def test_values_that_are_lists_or_mappings_are_texts(tmp_path):
    (tmp_path / "sweep.yaml").write_text("sweep: [{seeds: [[0], [3]]}, {law: [{name: x}, {name: y}]}]\n")
    rows = "".join(f"\"[{seed}]\",\"{{'name': '{law}'}}\",p,<b>,0,done,0.5,\n" for seed in (0, 3) for law in "xy")
    (tmp_path / "results.csv").write_text(f"seeds,law,point,method,seed,status,last5_accuracy,failure\n{rows}")
    results = read_results(tmp_path)
    assert [cell.setting for cell in cells(results, "<b>", "last5_accuracy")] == [
        ("{'name': 'x'}",),
        ("{'name': 'y'}",),
    ]
    assert "<b>" not in page(results, []).replace("<b>Figure", "") and "&lt;b&gt;" in page(results, [])


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
    assert (found.conditions, found.tuned) == ((0,), (1,))
    assert situations(found) == [{0: 10}, {0: 20}]
    assert [best(found, "a", own).setting for own in situations(found)] == [(10, 0.2), (20, 0.1)]
    assert answer(found).replace("\N{NO-BREAK SPACE}", " ") == (
        "Highest accuracy over the last five evaluations at each condition: clients 10: b 60.0% (+10.0 points from a, "
        "one seed); clients 20: a 90.0%. Settings were selected on the test set, so all of them are optimistic."
    )
    assert [cell.setting for cell in along(found, 0, "a", "last5_accuracy")] == [(10, 0.2), (20, 0.1)]
    assert [cell.setting for cell in along(found, 1, "a", "last5_accuracy", {0: 10})] == [(10, 0.1), (10, 0.2)]
    text = page(found, [])
    assert "<tr class=best>" not in text  # of one seed there is no interval
    assert "8 runs · 2 methods · 1 seed<" in text


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


def test_costs_are_drawn_from_zero(tmp_path):
    (tmp_path / "sweep.yaml").write_text("sweep: [{partition.clients: [10, 20]}]\n")
    heads = "partition.clients,point,method,seed,status,last5_accuracy,device_bytes,failure\n"
    rows = "".join(f"{clients},p,a,0,done,0.5,{size},\n" for clients, size in ((10, 12_670_000), (20, 12_690_000)))
    (tmp_path / "results.csv").write_text(heads + rows)
    found = read_results(tmp_path)
    (axes,) = next(figure for name, *_, figure in sweep_figures(found, []) if name == "memory-0").axes
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 12.69
    assert "Best settings" not in page(found, [])


def test_conditions_of_one_method_are_rows_of_one_table_of_which_none_wins(tmp_path):
    (tmp_path / "sweep.yaml").write_text("sweep: [{partition.clients: [10, 20]}]\n")
    rows = "".join(f"{clients},p,a,{seed},done,0.{clients + seed},\n" for clients in (10, 20) for seed in (0, 1))
    (tmp_path / "results.csv").write_text(f"partition.clients,point,method,seed,status,last5_accuracy,failure\n{rows}")
    text = page(read_results(tmp_path), [])
    assert text.count("<table") == 2 and "class=best" not in text and "Difference" not in text
    assert ">a, clients 10</th><td>10.5 ± 0.7<" in text and ">a, clients 20</th><td>20.5 ± 0.7<" in text


def many(tmp_path, count):
    """A sweep of many methods on two partitions."""
    (tmp_path / "sweep.yaml").write_text("sweep: [{partition.seed: [0, 1]}]\n")
    rows = "".join(f"{seed},p,m{method},0,done,0.{method + 10},0.25,\n" for method in range(count) for seed in (0, 1))
    heads = "partition.seed,point,method,seed,status,last5_accuracy,worst_class_accuracy,failure"
    (tmp_path / "results.csv").write_text(f"{heads}\n{rows}")
    return read_results(tmp_path)


def test_the_table_leads_with_the_mean_of_the_last_five_its_interval_and_the_worst_class(tmp_path):
    (table,) = re.findall(r"<table.*?</table>", page(many(tmp_path, 9), []), re.DOTALL)
    heads = re.findall(r"<th scope=\"col\">(.*?)</th>", table)
    assert heads[:5] == [
        "Method", "Mean of last 5, %", "Difference from m0, points [95% interval]", "Worst class, %", "Final, %",
    ]  # fmt: skip
    assert (
        table.count("<tr") == 10 and "m8</th><td>18.0 ± 0.0</td><td>+8.0 [+8.0, +8.0]</td><td>25.0 ± 0.0</td>" in table
    )


def test_many_curves_are_small_multiples_with_the_first_method_in_grey(tmp_path):
    found = many(tmp_path, 36)
    lines = [
        {"partition.seed": 0, "point": "p", "method": f"m{method}", "seed": 0, "round": at, "test_accuracy": 0.1 * at}
        for method in range(36) for at in (1, 2)
    ]  # fmt: skip
    ((_, _, caption, figure),) = [own for own in sweep_figures(found, lines) if own[0] == "accuracy"]
    assert "the first one in grey" in caption and len(figure.axes) == 5
    labels = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert all(len(own) == 8 and "m0" in own for own in labels)
    assert sorted(name for own in labels for name in own if name != "m0") == sorted(f"m{k}" for k in range(1, 36))
    for axes in figure.axes:
        colours = [line.get_color() for line in axes.lines if line.get_alpha() is None]
        assert len(set(colours)) == 8 and colours[0] == "#8a8a8a"


@pytest.mark.slow
def test_many_panels_are_a_figure_for_each_condition(tmp_path):
    heads = "partition.alpha,point,method,seed,status,last5_accuracy,failure"
    places = [(alpha, f"m{method}") for alpha in (1, 2) for method in range(36)]
    (tmp_path / "sweep.yaml").write_text("sweep: [{partition.alpha: [1, 2]}]\n")
    rows = "".join(f"{alpha},p,{method},0,done,0.5,\n" for alpha, method in places)
    (tmp_path / "results.csv").write_text(f"{heads}\n{rows}")
    lines = [
        {"partition.alpha": alpha, "point": "p", "method": method, "seed": 0, "round": 1, "test_accuracy": 0.5}
        for alpha, method in places
    ]
    names = {name: title for name, title, _, _ in sweep_figures(read_results(tmp_path), lines)}
    assert names["accuracy-0"] == "Accuracy by round, alpha 1" and names["accuracy-1"] == "Accuracy by round, alpha 2"
