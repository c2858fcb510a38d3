"""What is read of a sweep's table: axes, conditions, draws, and values in words."""

import csv
import json

import pytest

from fedjax_bal.report import write_sweep_page
from fedjax_bal.report.sweep_results import LEAD, name_tuned, read_results, readable

HEADS = "point,method,seed,status,last5_accuracy,failure"


def sweep(folder, sheet, keys, rows):
    """The results of a sweep; a row has the values of the keys, a method, a seed, and an accuracy or a status."""
    told = [
        f"{values},p,{method},{seed},{'done' if isinstance(value, float) else value},"
        f"{value if isinstance(value, float) else ''},"
        for values, method, seed, value in rows
    ]
    folder.mkdir(exist_ok=True)
    (folder / "sweep.yaml").write_text(sheet)
    (folder / "results.csv").write_text("\n".join([f"{keys},{HEADS}", *told]) + "\n")
    return read_results(folder)


def test_an_axis_is_named_by_the_keys_that_tell_its_values_apart(tmp_path):
    sheet = "sweep: [{dataset.name: [a, a, b], partition.alpha: [0.1, 1, 1], selection.clients_per_round: [1, 2, 3]}]"
    rows = [(values, "fedavg", 0, 0.5) for values in ("a,0.1,1", "a,1,2", "b,1,3")]
    (axis,) = sweep(tmp_path, sheet, "dataset.name,partition.alpha,selection.clients_per_round", rows).axes
    assert axis.shown == ("dataset.name", "partition.alpha") and axis.name == "dataset+alpha"
    assert (
        axis.value({"dataset.name": "b", "partition.alpha": 1})
        == "dataset b, alpha 1"
        == axis.format_value("dataset b, alpha 1")
    )


def test_axes_whose_keys_end_alike_have_names_of_their_own(tmp_path):
    local, server = "training.optimizer.learning_rate", "training.server_optimizer.learning_rate"
    rows = [(f"{one},{other}", "fedavg", 0, 0.5) for one in (0.1, 0.2) for other in (1, 2)]
    found = sweep(tmp_path, f"sweep: [{{{local}: [0.1, 0.2]}}, {{{server}: [1, 2]}}]", f"{local},{server}", rows)
    assert [axis.name for axis in found.axes] == ["optimizer.learning_rate", "server_optimizer.learning_rate"]
    assert found.axes[1].format_value(2) == "server_optimizer.learning_rate 2"


def test_a_section_is_named_by_its_values(tmp_path):
    sheet = "sweep: [{partition: [{scheme: iid}, {scheme: dirichlet, alpha: 0.5}]}]"
    rows = [(f'"{value}"', "fedavg", 0, 0.5) for value in ({"scheme": "iid"}, {"scheme": "dirichlet", "alpha": 0.5})]
    found = sweep(tmp_path, sheet, "partition", rows)
    assert [found.axes[0].format_value(value) for value in found.values[0]] == ["iid", "dirichlet, alpha 0.5"]


def test_a_papers_numbers_name_no_condition_and_make_one_of_their_axis(tmp_path):
    sheet = "sweep: [{paper.accuracy.fedavg: [0.9, 0.8], lr: [0.1, 0.2]}, {mu: [1, 2]}, {seeds: [[0], [1]]}]"
    rows = [(f'{theirs},{rate},{mu},"[{seed}]"', "fedavg", seed, 0.5)
            for theirs, rate in ((0.9, 0.1), (0.8, 0.2)) for mu in (1, 2) for seed in (0, 1)]  # fmt: skip
    found = sweep(tmp_path, sheet, "paper.accuracy.fedavg,lr,mu,seeds", rows)
    assert [axis.shown for axis in found.axes] == [("lr",), ("mu",)]
    assert (found.condition_axes, found.tuned) == ((0,), (1,))
    assert {place: len(runs) for place, runs in found.runs.items()} == {
        ("fedavg", (rate, mu)): 2 for rate in (0.1, 0.2) for mu in (1, 2)
    }


@pytest.mark.parametrize(
    "key",
    ["partition.clients", "model.name", "training.rounds", "dataset", "evaluation.every", "methods.1.partition.alpha"],
)
def test_a_condition_is_no_hyperparameter(tmp_path, key):
    rows = [(value, "fedavg", 0, 0.5) for value in (10, 20)]
    found = sweep(tmp_path, f"sweep: [{{{key}: [10, 20]}}]", key, rows)
    assert found.condition_axes == (0,) and not found.tuned


def test_runs_have_numbers_only_if_they_are_done(tmp_path):
    rows = [("1", "fedavg", 0, 0.5), ("1", "fedavg", 1, "diverged"), ("1", "fedavg", 0, 0.75)]
    found = sweep(tmp_path, "sweep: [{mu: [1]}]", "mu", rows)
    first, second = found.runs["fedavg", (1,)]
    assert (first[LEAD], second[LEAD]) == (0.75, None)  # of the same run twice the last row counts
    assert first["best_accuracy"] is None and first["device_bytes"] is None


def test_a_method_with_its_own_partition_seed_is_one_draw_of_a_sweep_over_it(tmp_path):
    sheet = """
methods: [fedavg, {recipe: fedavg, name: fixed, partition: {scheme: iid, seed: 3}}]
sweep: [{partition.seed: [10, 11]}]
"""
    rows = [(seed, method, 0, 0.5) for seed in (10, 11) for method in ("fedavg", "fixed")]
    found = sweep(tmp_path, sheet, "partition.seed", rows)
    draws = {method: [run["seed"] for run in runs] for (method, _), runs in found.runs.items()}
    assert draws == {"fedavg": [(10, (0,)), (11, (0,))], "fixed": [(3, (0,))]}

    sheet = "methods: [fedavg, {recipe: fedavg, name: other}]\nsweep: [{methods.1.partition.seed: [10, 11]}]"
    rows = [(seed, method, 0, 0.5) for seed in (10, 11) for method in ("fedavg", "other")]
    found = sweep(tmp_path, sheet, "methods.1.partition.seed", rows)
    assert {method: len(runs) for (method, _), runs in found.runs.items()} == {"fedavg": 1, "other": 2}


def test_a_methods_own_list_is_named(tmp_path):
    sheet = (
        "methods: [fedavg, {recipe: fedavg, name: own, model: {hidden: [8, 8]}}]\nsweep: [{model.hidden: [[2], [4]]}]"
    )
    rows = [(f'"[{width}]"', method, 0, 0.5) for width in (2, 4) for method in ("fedavg", "own")]
    assert sweep(tmp_path, sheet, "model.hidden", rows).unswept == {("own", 0): "hidden [8, 8] (not swept)"}


def test_a_method_is_described_by_those_keys_of_an_axis_that_it_follows(tmp_path):
    sheet = """
methods: [fedavg, {recipe: fedprox, name: own, mu: 1, training: {optimizer: {learning_rate: 0.5}}}]
sweep: [{training.optimizer.learning_rate: [0.1, 0.2], training.batch_size: [20, 10], methods.1.mu: [3, 4]}]
"""
    keys = "training.optimizer.learning_rate,training.batch_size,methods.1.mu"
    values = {"0.1,20,3": "20", "0.2,10,4": "10"}  # of the batch, the only key that both follow
    rows = [(pair, method, 0, 0.5) for pair in values for method in ("fedavg", "own")]
    found = sweep(tmp_path, sheet, keys, rows)
    assert found.axes[0].shown == ("training.batch_size",) and not found.unswept
    assert [name_tuned(found, *place) for place in found.runs if place[0] == "own"] == [
        "batch_size 20",
        "batch_size 10",
    ]
    rows = [(pair, method, 0, 0.5) for pair in ("0.1,20,3", "0.2,20,4") for method in ("fedavg", "own")]
    found = sweep(tmp_path, sheet, keys, rows)  # a batch that doesn't tell the values apart
    assert found.axes[0].shown == found.axes[0].keys and not found.is_numeric(0)
    (setting, _) = [setting for method, setting in found.runs if method == "own"]
    assert name_tuned(found, "fedavg", setting) == "learning_rate 0.1, batch_size 20"
    assert name_tuned(found, "own", setting) == "learning_rate 0.5 (not swept), batch_size 20, mu 3"


def test_lists_and_mappings_are_read_as_words():
    assert readable("{'scheme': 'dirichlet', 'alpha': 0.5}") == "dirichlet, alpha 0.5"
    assert readable("{'scheme': 'noniid-#label1'}") == "noniid-#label1"
    assert (readable("[2, 2, 3]"), readable("[2, "), readable(1), readable(1.0)) == ("[2, 2, 3]", "[2, ", "1", "1.0")
    assert (readable(100_000), readable(0.0547723), readable(1e-7)) == ("100,000", "0.05477", "1e-07")


def write_point(folder, losses, **more):
    folder.mkdir(parents=True)
    line = {"method": "fedavg", "seed": 1, "bytes_up": 1, "bytes_down": 1, "wall_s": 0.5, "chain_kls": [1.0], **more}
    lines = [{**line, "round": at + 1, "test_accuracy": 0.5, "test_loss": loss} for at, loss in enumerate(losses)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_every_evaluated_round_of_the_sweeps_own_points_is_a_row(tmp_path):
    out = tmp_path / "out"
    write_point(out / "points" / "lr=0.1", [2.0, 1.0])
    write_point(out / "points" / "lr=0.3", [3.0, None], macro_f1=0.25)
    write_point(out / "points" / "removed", [7.0])
    write_point(tmp_path / "elsewhere", [7.0])
    (out / "sweep.yaml").write_text("sweep: [{lr: [0.1, 0.3]}]\n")
    points = ("lr=0.1", "lr=0.3", "../../elsewhere", "lr=0.5")
    rows = [f"{place / 5 + 0.1:g},{point},fedavg,1,done,0.5,\n" for place, point in enumerate(points)]
    (out / "results.csv").write_text("lr,point,method,seed,status,final_accuracy,failure\n" + "".join(rows))
    write_sweep_page(out)
    with (out / "curves.csv").open() as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == [
        "lr", "point", "method", "seed", "round", "test_accuracy", "macro_f1", "test_loss", "bytes_up", "bytes_down",
        "wall_s",
    ]  # fmt: skip
    assert [(row["lr"], row["point"], row["round"], row["test_loss"], row["macro_f1"]) for row in found] == [
        ("0.1", "lr=0.1", "1", "2.0", ""),
        ("0.1", "lr=0.1", "2", "1.0", ""),
        ("0.3", "lr=0.3", "1", "3.0", "0.25"),
        ("0.3", "lr=0.3", "2", "", "0.25"),
    ]


def test_a_run_that_an_axis_of_seeds_repeats_counts_once(tmp_path):
    rows = [(f'"{count}"', "fedavg", seed, 0.5) for count in (1, 2, 3) for seed in range(count)]
    found = sweep(tmp_path, "sweep: [{seeds: [1, 2, 3]}]", "seeds", rows)
    assert [run["seed"].seed for run in found.runs["fedavg", ()]] == [(0,), (1,), (2,)]
