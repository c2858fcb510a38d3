"""What is said of the training before it starts, and on the page."""

import pytest
from typer.testing import CliRunner

from fedjax_bal.cli.app import app
from fedjax_bal.config import load_config, resolved_sheet
from fedjax_bal.lab import load_sweep, training_line

ADAM = "{name: adam, learning_rate: 1}"
METHODS = "methods=[fedavg, fedprox, %s]"


def line_of(*changes):
    return training_line(resolved_sheet(load_config(None, ["dataset=letter", "methods=fedavg", *changes], needs=False)))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ([], "50 rounds, 1 epoch, batches of 50, sgd 0.05"),
        (["momentum=0.9", "wd=0.01"], "50 rounds, 1 epoch, batches of 50, sgd 0.05, weight_decay 0.01, momentum 0.9"),
        (
            ["training.optimizer.schedule={name: cosine_decay_schedule, decay_steps: 9}"],
            "50 rounds, 1 epoch, batches of 50, sgd 0.05, schedule cosine_decay_schedule, schedule.decay_steps 9",
        ),
        (
            [
                "training.drop_last=true",
                "training.batches_per_epoch=3",
                "training.server_optimizer={name: adam, learning_rate: 0.01}",
            ],
            "50 rounds, 1 epoch, batches of 50, sgd 0.05, drop_last true, batches_per_epoch 3, server adam 0.01",
        ),
        # What single methods have.
        (
            [METHODS % "{recipe: rebafl, training: {optimizer: {learning_rate: 0.03}, rounds: 9}}"],
            "50 rounds (rebafl 9 rounds), 1 epoch, batches of 50, sgd 0.05 (rebafl 0.03)",
        ),
        (
            [METHODS % f"{{recipe: moon, training: {{local_epochs: null, local_steps: 3, optimizer: {ADAM}}}}}"],
            "50 rounds, 1 epoch (moon 3 local steps), batches of 50, sgd 0.05 (moon adam 1)",
        ),
    ],
)
def test_the_line_has_what_methods_train_with(changes, line):
    assert line_of(*changes) == line


def test_methods_of_one_value_are_a_group_and_many_are_cut_off():
    rates = [0.1] * 9 + [0.2] * 7 + [0.3] * 2
    entries = [
        f"{{recipe: fedavg, name: m{place}, training: {{optimizer: {{learning_rate: {rate}}}}}}}"
        for place, rate in enumerate(rates)
    ]
    line = line_of(f"methods=[{', '.join(entries)}]")
    assert line.endswith(", sgd 0.1 (m9, m10, m11, m12, ... 0.2; m16, m17 0.3)")


def test_a_sweep_shows_the_values_of_its_axes_except_where_a_method_has_its_own():
    entry = "methods=[fedavg, fedprox, {recipe: rebafl, training: {optimizer: {learning_rate: 0.03}}}]"
    sweep = load_sweep(None, ["dataset=letter", entry, "lr=0.1,0.2", "alpha=0.1,1", "batch_size=5,9"])
    line = training_line(resolved_sheet(sweep.points[0].config), sweep.values)
    assert line.endswith("batches of 5/9, sgd 0.1/0.2 (rebafl 0.03)")


def test_swept_options_of_the_optimizer_are_shown():
    sweep = load_sweep(None, ["dataset=letter", "methods=fedavg", "momentum=0,0.9"])
    line = training_line(resolved_sheet(sweep.points[0].config), sweep.values)
    assert line.endswith("sgd 0.05, momentum 0/0.9")


def test_an_axis_of_one_method_belongs_to_it_and_many_values_are_a_range():
    rates = [place / 10 for place in range(1, 10)]
    sheet = resolved_sheet(load_sweep(None, ["methods=fedavg,rebafl", "alpha=0.1,1"]).points[0].config)
    line = training_line(sheet, {"methods.1.training.optimizer.learning_rate": rates})
    assert line.endswith("sgd 0.1 (rebafl 0.1 to 0.9)")


@pytest.mark.slow
def test_it_stands_beside_the_data_before_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ["dataset={name: synthetic, rows: 60}", "clients=4", "methods=fedavg", "rounds=1"]
    for command, ending in (("run", "sgd 0.05"), ("sweep", "sgd 0.1/0.2")):
        axis = ["lr=0.1,0.2"] * (command == "sweep")
        lines = CliRunner().invoke(app, [command, *data, *axis, "--dry-run"]).output.splitlines()
        (place,) = (place for place, line in enumerate(lines) if line.startswith("  training: 1 round, "))
        assert lines[place - 1].startswith("  data: synthetic: ") and lines[place].endswith(ending)
