"""Runs of a size at which a method learns next to nothing: what is said about them, and where."""

import numpy as np
import pytest
import small_run
import toys

from fedjax_bal import data, make_round, models, simulate
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.lab import Point, RunFolder, SharedInputs, Sweep, dry_run
from fedjax_bal.options import LocalTraining, Participation
from fedjax_bal.recipes import balanced_softmax, combine, fedavg, fedetf, fedprox, flcir, logit_adjustment, rebafl

NETWORK = models.build("mlp", toys.CLASSES, (1, toys.WIDTH, 1))
FEW = Participation(clients_per_round=4)
LABELS = np.arange(600) % toys.CLASSES
IMAGES = np.random.default_rng(0).normal(size=(600, 1, toys.WIDTH, 1)).astype(np.float32)


def federation(clients, single=0):
    """Clients of which some have rows of a single class, others of two, and a balanced set on the server."""
    rows = [[4 * k, 4 * k + 4 if k < single else 4 * k + 5] for k in range(clients)]
    return data.federate(IMAGES, LABELS, rows, toys.CLASSES, auxiliary={"balanced": np.arange(596, 600)})


def cautions(recipe, *sizes):
    test = IMAGES[:4], LABELS[:4]
    return build_simulation(recipe, NETWORK, federation(*sizes), test, rounds=1, participation=FEW).cautions


def test_flcir_is_cautioned_against_where_a_round_has_few_of_the_clients():
    (text,) = cautions(flcir(), 81)
    assert text.startswith("flcir: a round trains 4 of 81 clients, and aggregation 'all_clients'") and "0.049" in text
    assert "use aggregation 'selected'" in text
    assert cautions(flcir("random"), 81) == (text,)
    assert cautions(flcir(), 80) == cautions(flcir(aggregation="selected"), 81) == cautions(fedavg(), 81) == ()


@pytest.mark.parametrize("recipe", [rebafl(), balanced_softmax(), logit_adjustment(0.5), logit_adjustment(epsilon=0.1)])
def test_calibration_is_cautioned_against_where_most_clients_have_a_single_class(recipe):
    (text,) = cautions(recipe, 10, 6)
    assert text.startswith(f"{recipe.name}: 6 of 10 clients have rows of a single class")
    assert cautions(recipe, 10, 5) == ()


def test_calibration_that_teaches_clients_of_a_single_class_is_not_cautioned_against():
    for recipe in (rebafl(epsilon=0.3), logit_adjustment(counts="global"), fedetf(absent="one"), fedprox()):
        assert cautions(recipe, 10, 10) == ()
    assert cautions(logit_adjustment(0.5, epsilon=0.1), 10, 10) == ()


def test_clients_that_never_train_for_lack_of_a_whole_batch_are_counted():
    clients = data.federate(IMAGES, LABELS, [[0], [1, 2], [], [3, 4, 5], [6]], toys.CLASSES)
    simulation = build_simulation(
        fedavg(), NETWORK, clients, (IMAGES, LABELS), rounds=1, local=LocalTraining(batch_size=2, drop_last=True)
    )
    said = "fedavg: 2 of 5 clients never train, because they have fewer rows than a batch of 2 (drop_last)"
    assert simulation.cautions == (said,)


def test_python_warns_before_it_trains():
    recipe = combine(balanced_softmax(), fedprox())
    said = r"balanced_softmax\+fedprox: 10 of 10 clients have rows of a single class"
    with pytest.warns(UserWarning, match=said) as noted:
        make_round(recipe, NETWORK, federation(10, 10))
    assert noted[0].filename == __file__
    with pytest.warns(UserWarning, match=said) as noted, pytest.raises(ValueError, match="variables"):
        simulate(
            recipe, NETWORK, federation(10, 10), (IMAGES, LABELS), rounds=1, seed=0, variables="none",
            participation=FEW,
        )  # fmt: skip
    assert noted[0].filename == __file__


@pytest.mark.slow
def test_the_command_line_says_so_beside_the_data(tmp_path):
    config = small_run.config(
        tmp_path,
        "partition={scheme: iid, clients: 100}",
        "auxiliary.per_class=1",
        "execution.rounds_per_dispatch=1",
        "methods=[fedavg, ditto, flcir, {recipe: flcir, name: selected, aggregation: selected}]",
    )
    sweep = Sweep(config.name, (), (Point("", {}, config),), "")
    lines = list(dry_run(sweep, {"": RunFolder(tmp_path / "run")}, SharedInputs(plan=True), None))
    place, other = [place for place, line in enumerate(lines) if line.startswith("  note: ")]
    assert lines[place].startswith("  note: flcir: a round trains 3 of 100 clients")
    assert lines[other].startswith("  note: ditto: each client uses a model of its own")
    assert lines[place - 1].startswith("  data: ") and lines[other + 1].startswith("  training: ")
