"""Equal weights for all updates that count."""

import numpy as np
import pytest
from methods import float64
from rounding import DOUBLE

from fedjax_bal.recipes import combine, equal_weights, feddisco

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.slow
def test_updates_that_count_weigh_the_same():
    sim = float64.simulation(equal_weights())
    weights = float64.initial(sim)
    for number, cohort in float64.cohorts(sim):
        changes = [float64.difference(float64.train(weights, c, number)[0], weights) for c in cohort]
        weights = {k: weights[k] + np.mean([change[k] for change in changes], axis=0) for k in weights}
    float64.assert_equal(float64.run(sim).variables.params, weights)


@pytest.mark.slow
def test_order_does_not_matter():  # nor repetition: test_fedau.py
    first, second = combine(equal_weights(), feddisco()), combine(feddisco(), equal_weights())
    float64.assert_same_runs(first, second, DOUBLE)
