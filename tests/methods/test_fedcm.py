"""FedCM and MoFedSAM: against their transcription."""

import numpy as np
import pytest
from methods import float64
from methods.steps import ascent, descend, moved

from fedjax_bal.optim import optimizer
from fedjax_bal.options import LocalTraining
from fedjax_bal.recipes import combine, fedcm, fedsam, local, mofedsam

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_fedcm_and_mofedsam_equal_their_transcription(rho):
    sim = float64.simulation(mofedsam(rho, 0.4) if rho else fedcm(0.4))
    weights = float64.initial(sim)
    momentum = {k: np.zeros_like(v) for k, v in weights.items()}
    for number, cohort in float64.cohorts(sim):
        own = ascent(rho) if rho else lambda g, w: g(w)

        def mixed(g, w, m=momentum, own=own):
            return {k: 0.4 * own(g, w)[k] + 0.6 * m[k] for k in w}

        trained, shares = {c: descend(weights, c, number, mixed) for c in cohort}, float64.by_size(cohort)
        mean = float64.mean(shares, {c: change for c, (change, _) in trained.items()})
        steps = sum(shares[c] * count for c, (_, count) in trained.items())
        rate = float64.OPTIONS.rate * float64.OPTIONS.decay**number
        momentum = {k: -mean[k] / (steps * rate) for k in mean}
        weights = moved(weights, 1.0, mean)
    float64.assert_equal(float64.run(sim).variables.params, weights)


REFUSED = {
    "fedsam and mofedsam both bring Ascent": (fedsam, mofedsam),
    "mofedsam and fedcm both bring ClientMomentum": (mofedsam, fedcm),
    "fedcm: received OwnModel, whose leaves stay with the clients": (fedcm, local),
    "fedcm: received the local optimizer 'adam'": (fedcm,),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_means_nothing_is_refused(message):
    rule = "adam" if "adam" in message else "sgd"
    with pytest.raises(ValueError, match=message):
        recipe = combine(*(recipe() for recipe in REFUSED[message]))
        float64.simulation(recipe, local=LocalTraining(optimizer=optimizer(rule, 0.01)))
