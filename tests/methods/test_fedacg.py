"""FedACG: against its transcription."""

import numpy as np
import pytest
from methods import float64
from methods.steps import descend, moved

from fedjax_bal.recipes import fedacg

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.slow
def test_fedacg_equals_its_transcription():
    sim = float64.simulation(fedacg(0.7, 0.3))
    weights = float64.initial(sim)
    momentum = {k: np.zeros_like(v) for k, v in weights.items()}
    for number, cohort in float64.cohorts(sim):
        ahead = moved(weights, 0.7, momentum)
        pull = lambda g, w, ahead=ahead: moved(g(w), 0.3, float64.difference(w, ahead))
        mean = float64.mean(float64.by_size(cohort), {c: descend(ahead, c, number, pull)[0] for c in cohort})
        momentum = {k: 0.7 * momentum[k] + mean[k] for k in mean}
        weights = moved(ahead, 1.0, mean)
    state = float64.run(sim)
    float64.assert_equal(state.server["BeforeLookahead"], weights)  # what is evaluated
    float64.assert_equal(state.variables.params, moved(weights, 0.7, momentum))  # what is sent
