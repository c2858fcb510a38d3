"""A configuration and the same setting in Python train on the same pixels, which the run folder records."""

import numpy as np
import pytest
import small_run
from rounding import FORMULA

from fedjax_bal import LocalTraining, Participation, data, models, optimizer, recipes, simulate
from fedjax_bal.config import resolved_yaml
from fedjax_bal.lab.setup import set_up
from fedjax_bal.lab.summary import summarise_partitions
from fedjax_bal.selection import bernoulli

ONE_RUN = ("methods=[{recipe: fedavg}]", "seeds=[0]", "training.rounds=2", "evaluation.every=1")


def configured(tmp_path, *overrides):
    """The small comparison with a single run, set up as the command line does it."""
    return set_up(small_run.config(tmp_path, *ONE_RUN, *overrides))


def federated(**constants):
    """The small comparison's data set and federation in Python, written as the guide does it."""
    dataset = data.load("fashion_mnist_small")
    rows = data.partition.pathological(np.random.default_rng(0), dataset.train_labels, 10, 2, 40)
    return dataset, data.federate(dataset, rows, **constants)


@pytest.mark.slow
def test_python_and_the_command_line_come_to_the_same_accuracies(tmp_path):
    dataset, federation = federated()
    result = simulate(
        recipes.fedavg(),
        models.build("mlp", num_classes=10, input_shape=(28, 28, 1)),
        federation,
        (dataset.test_images, dataset.test_labels),
        rounds=2,
        seed=0,
        local=LocalTraining(batch_size=20, optimizer=optimizer("sgd", 0.05)),
        participation=Participation(clients_per_round=3, availability=bernoulli(0.5), delivery=bernoulli(0.8)),
    )
    (simulation,) = configured(tmp_path).simulations
    wanted = simulation.advance(0, simulation.init(0)).records
    for ours, theirs in zip(result.history, wanted, strict=True):
        assert ours["test_accuracy"] == pytest.approx(theirs["test_accuracy"], abs=FORMULA)
        assert ours["test_loss"] == pytest.approx(theirs["test_loss"], abs=FORMULA)


@pytest.mark.parametrize(
    ("overrides", "constants", "written"),
    [
        ((), ([0.1307], [0.3081]), "  mean: [0.1307]\n  std: [0.3081]\n"),
        (("dataset.mean=0", "dataset.std=1"), ([0.0], [1.0]), "mean: 0.0, std: 1.0"),
        (("dataset.mean=own", "dataset.std=own"), ([0.28542513], [0.35259652]), "mean: own, std: own"),
    ],
)
def test_constants_are_chosen_and_recorded(tmp_path, overrides, constants, written):
    comparison = configured(tmp_path, *overrides)
    (partition,) = summarise_partitions(comparison)
    np.testing.assert_allclose((partition["mean"], partition["std"]), constants, rtol=1e-7)
    assert written in resolved_yaml(comparison.config)
    mean, std = constants
    ours, (simulation,) = federated(mean=mean, std=std)[1], comparison.simulations
    np.testing.assert_array_equal(simulation.federation.mean, ours.mean)
    np.testing.assert_array_equal(simulation.federation.std, ours.std)


def test_methods_with_other_constants_are_told_apart(tmp_path):
    raw = "{recipe: fedavg, name: raw, dataset: {mean: 0, std: 1}}"
    comparison = configured(tmp_path, f"methods=[{{recipe: fedavg}}, {{recipe: fedprox}}, {raw}]")
    told = [(part["methods"], part["mean"], part["std"]) for part in summarise_partitions(comparison)]
    assert told == [(["fedavg", "fedprox"], [0.1307], [0.3081]), (["raw"], [0.0], [1.0])]
