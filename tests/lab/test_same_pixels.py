"""A configuration and the same setting in Python train on the same pixels, which the run folder records."""

import numpy as np
import pytest
import small_run

from fedjax_bal import data
from fedjax_bal.config import resolved_yaml
from fedjax_bal.lab.setup import set_up
from fedjax_bal.lab.summary import summarise_partitions

ONE_RUN = ("methods=[{recipe: fedavg}]", "seeds=[0]", "training.rounds=2", "evaluation.every=1")


def configured(tmp_path, *overrides):
    """The small comparison with a single run, set up as the command line does it."""
    return set_up(small_run.config(tmp_path, *ONE_RUN, *overrides))


def federated(**constants):
    """The small comparison's data set and federation in Python, written as the guide does it."""
    dataset = data.load("fashion_mnist_small")
    rows = data.partition.pathological(np.random.default_rng(0), dataset.train_labels, 10, 2, 40)
    return dataset, data.federate(dataset, rows, **constants)


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
    assert written in resolved_yaml(small_run.config(tmp_path, *ONE_RUN, *overrides))
    mean, std = constants
    ours, (simulation,) = federated(mean=mean, std=std)[1], comparison.simulations
    for name in ("images", "labels", "rows", "offsets", "mean"):
        np.testing.assert_array_equal(getattr(simulation.federation, name), getattr(ours, name))
    np.testing.assert_array_equal(simulation.federation.std, ours.std)


def test_methods_with_other_constants_are_told_apart(tmp_path):
    raw = "{recipe: fedavg, name: raw, dataset: {mean: 0, std: 1}}"
    comparison = configured(tmp_path, f"methods=[{{recipe: fedavg}}, {{recipe: fedprox}}, {raw}]")
    told = [(part["methods"], part["mean"], part["std"]) for part in summarise_partitions(comparison)]
    assert told == [(["fedavg", "fedprox"], [0.1307], [0.3081]), (["raw"], [0.0], [1.0])]
