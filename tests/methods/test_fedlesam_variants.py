"""FedLESAM-S and FedLESAM-D: against transcriptions of SCAFFOLD and FedDyn with FedLESAM's gradients."""

import pytest
from methods import float64
from methods.steps import backward, controlled, plain, regularised

from fedjax_bal.recipes import combine, fedlesam, fedlesam_d, fedlesam_s, fedsam, local, scaffold

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.slow
def test_fedlesam_s_equals_its_transcription():
    sim, last = float64.simulation(fedlesam_s(0.3)), {}
    weights, server, _ = controlled(sim, backward(0.3, last))
    unshifted = controlled(sim, plain)[0]
    assert max(abs(unshifted[k] - weights[k]).max() for k in weights) > 1e-3  # a client has trained again
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, weights)
    float64.assert_equal(state.server["ControlVariates"], server, 1e-7)


@pytest.mark.slow
def test_fedlesam_d_equals_its_transcription():
    sim, last = float64.simulation(fedlesam_d(0.3, 0.2, None)), {}
    weights = regularised(sim, backward(0.3, last), 0.2)
    float64.assert_equal(float64.run(sim).variables.params, weights)


def test_fedlesam_s_is_the_combination_of_its_parents():
    assert fedlesam_s(0.2).parts == combine(fedlesam(0.2), scaffold()).parts
    assert fedlesam_d(clip=0) == fedlesam_d(clip=None) != fedlesam_d()


@pytest.mark.parametrize(("variant", "method"), [(fedlesam_s, "scaffold"), (fedlesam_d, "feddyn")])
def test_what_does_not_fit_is_refused(variant, method):
    with pytest.raises(ValueError, match=f"{method}: received OwnModel, whose leaves stay with the clients"):
        float64.simulation(combine(variant(), local()))
    with pytest.raises(ValueError, match="both choose where a gradient is taken"):
        combine(variant(), fedsam())
