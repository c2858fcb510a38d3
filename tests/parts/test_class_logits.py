"""FedRS and FedLC: against their transcriptions, and where they are FedAvg."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import toys
from parts import float64

from fedjax_bal.recipes import fedavg, fedlc, fedrs

pytestmark = pytest.mark.usefixtures("double")


def counts(client):
    """Samples of each class."""
    data = toys.federation()
    rows = data.rows[data.offsets[client] : data.offsets[client + 1]]
    return np.bincount(data.labels[rows], minlength=toys.CLASSES)


def margin(tau):
    """tau n^(-1/4), with absent classes counted as 1e-8."""
    return lambda client: tau * np.array([max(n, 1e-8) ** -0.25 for n in counts(client)])


CASES = {
    "fedrs": (fedrs(0.4), {"scale": lambda c: np.where(counts(c) > 0, 1.0, 0.4)}),
    "fedrs, soft": (fedrs(0.4, "soft"), {"scale": lambda c: 0.4 + 0.6 * counts(c) / counts(c).max()}),
    "fedlc": (fedlc(0.7), {"offset": margin(0.7)}),
}


@pytest.mark.parametrize("name", CASES)
def test_recipe_equals_its_transcription(name):
    recipe, knobs = CASES[name]
    sim = float64.simulation(recipe)
    weights = float64.initial(sim)
    for number, cohort in float64.cohorts(sim):
        assert any((counts(c) == 0).any() for c in cohort)
        weights = float64.plus(weights, float64.averaged(weights, cohort, number, **knobs))
    float64.assert_equal(float64.run(sim).variables.params, weights)


@cache
def average():
    return float64.run(float64.simulation(fedavg())).variables.params


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [fedrs(1.0), fedrs(1.0, "soft"), fedlc(0.0)], ids=repr)
def test_a_neutral_strength_is_fedavg(recipe):
    float64.assert_equal(float64.run(float64.simulation(recipe)).variables.params, average(), 1e-12)


@pytest.mark.slow
def test_fedlc_with_equal_counts_is_fedavg():
    data = toys.federation()
    by_class = [np.flatnonzero(data.labels == c) for c in range(toys.CLASSES)]
    rows = np.concatenate([[own[2 * client], own[2 * client + 1]] for client in range(5) for own in by_class])
    even = data._replace(
        rows=rows.astype(np.int32), offsets=np.arange(0, 41, 8, dtype=np.int32), copy=np.zeros(40, np.int32),
        class_counts=np.full((5, toys.CLASSES), 2, np.int32),
    )  # fmt: skip
    options = {"federation": even, "participation": replace(float64.CLIENTS, clients_per_round=4)}
    runs = [float64.run(float64.simulation(recipe, **options)).variables.params for recipe in (fedlc(), fedavg())]
    float64.assert_equal(*runs, 1e-12)
