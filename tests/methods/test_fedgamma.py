"""FedGAMMA: against a transcription of SCAFFOLD with FedSAM's gradients."""

import numpy as np
import pytest
from methods import float64
from methods.steps import controlled, plain, uphill

from fedjax_bal.optim import optimizer
from fedjax_bal.options import LocalTraining
from fedjax_bal.recipes import combine, fedgamma, fedlesam, fedsam, local, scaffold

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.slow
def test_fedgamma_equals_its_transcription():
    sim = float64.simulation(fedgamma(0.3))
    weights, server, clients = controlled(sim, uphill(0.3))
    unshifted = controlled(sim, plain)[0]
    assert max(abs(unshifted[k] - weights[k]).max() for k in weights) > 1e-3
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, weights)
    float64.assert_equal(state.server["ControlVariates"], server, 1e-7)
    kept = {k: np.stack([clients[c][k] for c in range(float64.N)]) for k in weights}
    float64.assert_equal(state.memory["ControlVariates"], kept, 1e-7)
    assert any(not clients[c]["w1"].any() for c in clients)  # a client never trained


def test_it_is_the_combination_of_its_parents():
    assert fedgamma(0.2).parts == combine(fedsam(0.2), scaffold()).parts


REFUSED = {
    "scaffold: received OwnModel, whose leaves stay with the clients": ("sgd", local),
    "scaffold: received the local optimizer 'adam'": ("adam",),
    "both choose where a gradient is taken": ("sgd", fedlesam),
    "fedgamma and scaffold both bring ControlVariates": ("sgd", scaffold),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused(message):
    rule, *others = REFUSED[message]
    with pytest.raises(ValueError, match=message):
        recipe = combine(fedgamma(), *(other() for other in others))
        float64.simulation(recipe, local=LocalTraining(optimizer=optimizer(rule, 0.01)))
