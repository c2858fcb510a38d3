"""What is said of the training before it starts, and on the page."""

import pytest
import yaml
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.config import load_config, resolved_sheet, resolved_yaml
from fedjax_bal.lab import load_sweep, training_line
from fedjax_bal.report.page import _training

TWENTY = "dirichlet alpha=0.3 over 20 clients, 10 a round"
METHODS = "methods=[fedavg, fedprox, %s]"


def line_of(*changes):
    return training_line(resolved_sheet(load_config(None, ["dataset=letter", "methods=fedavg", *changes], needs=False)))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ([], f"50 rounds, 1 epoch, batches of 50, sgd 0.05; {TWENTY}"),
        (
            ["local_steps=7", "local_epochs=null", "rounds=1"],
            f"1 round, 7 local steps, batches of 50, sgd 0.05; {TWENTY}",
        ),
        (
            ["optimizer={name: adam, learning_rate: 0.002, b1: 0.8, weight_decay: 0.0005}", "batch_size=8"],
            f"50 rounds, 1 epoch, batches of 8, adam 0.002, weight_decay=0.0005, b1=0.8; {TWENTY}",
        ),
        (
            ["optimizer.schedule={name: cosine, length: 40}", "server_optimizer={name: yogi, learning_rate: 0.01}"],
            "50 rounds, 1 epoch, batches of 50, sgd 0.05, schedule=cosine, schedule.length=40, server yogi 0.01; "
            + TWENTY,
        ),
        (
            ["drop_last=true", "early_stopping.patience=3", "evaluation.validation.fraction=0.1"],
            f"50 rounds, 1 epoch, batches of 50, sgd 0.05, drop_last=true, early_stopping.patience=3; {TWENTY}",
        ),
        (
            ["partition={scheme: natural, min_size: 5}"],
            "50 rounds, 1 epoch, batches of 50, sgd 0.05; natural min_size=5, each user a client, at most 10 a round",
        ),
        (
            [
                "partition={scheme: iid, clients: 1, imbalance_factor: 9}",
                "selection.name=round_robin",
                "delivery.name=bernoulli",
                "delivery.p=0.5",
            ],
            "50 rounds, 1 epoch, batches of 50, sgd 0.05; iid imbalance_factor=9 over 1 client, 1 a round, "
            "selection round_robin, delivery bernoulli p=0.5",
        ),
        # What single methods have.
        (
            [METHODS % "{recipe: rebafl, training: {optimizer: {learning_rate: 0.03}, rounds: 9}}"],
            f"50 rounds (rebafl 9 rounds), 1 epoch, batches of 50, sgd 0.05 (rebafl 0.03); {TWENTY}",
        ),
        (
            [METHODS % "{recipe: scaffold, label: control, training: {optimizer: {momentum: 0}}}", "momentum=0.5"],
            f"50 rounds, 1 epoch, batches of 50, sgd 0.05, momentum=0.5 (control 0); {TWENTY}",
        ),
        (
            [
                METHODS
                % "{recipe: moon, training: {local_steps: 3, local_epochs: null, optimizer: %s}}"
                % "{name: adam, learning_rate: 1}"
            ],
            f"50 rounds, 1 epoch (moon 3 local steps), batches of 50, sgd 0.05 (moon adam 1); {TWENTY}",
        ),
        (
            [
                METHODS
                % "{recipe: fedavg, name: all, partition: {scheme: iid, clients: 1}, selection: {clients_per_round: 1}}"
            ],
            "50 rounds, 1 epoch, batches of 50, sgd 0.05; dirichlet alpha=0.3 over 20 clients (all iid over 1 client), "
            "10 a round (all 1 a round)",
        ),
    ],
)
def test_the_line_has_all_that_trains(changes, line):
    assert line_of(*changes) == line


def test_methods_of_one_value_are_a_group_and_many_are_counted():
    rates = [0.1] * 9 + [0.2] * 7 + [0.3] * 2
    entries = [
        f"{{recipe: fedavg, name: m{place}, training: {{optimizer: {{learning_rate: {rate}}}}}}}"
        for place, rate in enumerate(rates)
    ]
    line = line_of(f"methods=[{', '.join(entries)}]")
    assert ", sgd 0.1 (m9, m10, m11, m12 and 3 more 0.2; m16 and m17 0.3); " in line


def test_a_sweep_shows_the_values_of_its_axes_except_where_a_method_has_its_own():
    entry = "methods=[fedavg, fedprox, {recipe: rebafl, training: {optimizer: {learning_rate: 0.03}}}]"
    sweep = load_sweep(None, ["dataset=letter", entry, "lr=0.1,0.2", "alpha=0.1,1", "clients=5,9"])
    axes = {key: values for axis in sweep.axes for key, values in zip(axis.keys, axis.values, strict=True)}
    line = training_line(resolved_sheet(sweep.points[0].config), axes)
    assert line.endswith("sgd 0.1/0.2 (rebafl 0.03); dirichlet alpha=0.1/1 over 5/9 clients, 5 a round")


@pytest.mark.parametrize(
    "sheet", [{}, {"methods": 3}, {"methods": [{"recipe": "fedavg"}]}, {"methods": [], "training": 1}]
)
def test_a_page_of_a_configuration_that_is_not_whole_has_no_line(sheet):
    assert training_line(sheet) == "" and not [*_training(sheet)]


def test_the_page_has_it_as_a_run_folder_records_it():
    config = load_config("quickstart")
    ((_, line),) = _training(yaml.safe_load(resolved_yaml(config)))
    assert line == training_line(resolved_sheet(config)) and "sgd 0.1 (astraea and rebafl 0.03)" in line


def test_it_stands_beside_the_data_before_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ["dataset={name: synthetic, rows: 60}", "clients=4", "methods=fedavg", "rounds=1"]
    for command, ending in (("run", "sgd 0.05"), ("sweep", "sgd 0.1/0.2")):
        axis = ["lr=0.1,0.2"] * (command == "sweep")
        lines = CliRunner().invoke(app, [command, *data, *axis, "--dry-run"]).output.splitlines()
        (place,) = (place for place, line in enumerate(lines) if line.startswith("  training: 1 round, "))
        assert lines[place - 1].startswith("  data: synthetic: ") and f"{ending}; " in lines[place]
