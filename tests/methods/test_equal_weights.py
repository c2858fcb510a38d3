"""Equal weights for all updates that count."""

import numpy as np
import pytest
from methods import float64
from rounding import DOUBLE

from fedjax_bal.recipes import combine, equal_weights, feddisco, scaffold

pytestmark = pytest.mark.usefixtures("double")


def test_updates_that_count_weigh_the_same():
    sim = float64.simulation(equal_weights())
    weights = float64.initial(sim)
    for number, cohort in float64.cohorts(sim):
        changes = [float64.difference(float64.train(weights, c, number)[0], weights) for c in cohort]
        weights = {k: weights[k] + np.mean([change[k] for change in changes], axis=0) for k in weights}
    float64.assert_equal(float64.run(sim).variables.params, weights)


@pytest.mark.slow
@pytest.mark.parametrize("other", [scaffold(), feddisco()], ids=lambda recipe: recipe.name)
def test_neither_order_nor_repetition_matters(other):
    first, second = combine(equal_weights(), other), combine(other, equal_weights())
    float64.assert_same_runs(first, second, DOUBLE)
    if other.name == "scaffold":  # which gives all updates the same weight itself
        float64.assert_same_runs(other, second, DOUBLE)
