"""FedGloSS: against its transcription."""

import numpy as np
import pytest
import toys
from methods import float64
from methods.heads import network
from methods.steps import ascent, descend, moved, norm, zeros

from fedjax_bal.recipes import combine, creff, fedacg, fedavg_ft, fedbabu, fedgloss

pytestmark = pytest.mark.usefixtures("double")


def test_fedgloss_equals_its_transcription():
    """With the names of Algorithm 1: the clients' states sigma_k, and the server's."""
    rho, local_rho, beta = 0.3, 0.2, 4.0
    sim = float64.simulation(fedgloss(rho, local_rho, beta))
    weights = float64.initial(sim)
    sigma, sigmas, shift = zeros(weights), {c: zeros(weights) for c in range(float64.N)}, zeros(weights)
    for number, cohort in float64.cohorts(sim):
        ahead = moved(weights, 1.0, shift)
        changes = {}
        for c in cohort:

            def direction(gradient, w, own=sigmas[c], start=ahead):
                uphill = ascent(local_rho)(gradient, w)
                return {k: uphill[k] - own[k] + (w[k] - start[k]) / beta for k in w}

            changes[c] = descend(ahead, c, number, direction)[0]
            sigmas[c] = moved(sigmas[c], -1 / beta, changes[c])
        for change in changes.values():
            sigma = moved(sigma, -1 / (beta * float64.N), change)
        mean = {k: np.mean([change[k] for change in changes.values()], axis=0) for k in weights}
        weights = {k: weights[k] + mean[k] - beta * sigma[k] for k in weights}
        shift = moved(zeros(weights), -rho / (norm(mean) + 1e-7), mean)
    snapshot = sim.init(float64.SEED)
    while snapshot.round < sim.rounds:
        snapshot = sim.advance(float64.SEED, snapshot).snapshot
    float64.assert_equal(
        {k: np.asarray(v) for k, v in sim.tested_model(float64.SEED, snapshot).params.items()}, weights
    )
    sent = {k: np.asarray(v) for k, v in snapshot.state.variables.params.items()}
    float64.assert_equal(sent, moved(weights, 1.0, shift))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (creff, fedgloss, "fedgloss: received FeatureMatching before it, .*: name fedgloss first"),
        (fedgloss, fedavg_ft, "received RefinedHead"),
        (fedacg, fedgloss, "set server_optimizer differently"),
    ],
)
def test_what_changes_the_shifted_model_is_refused(before, after, message):
    with pytest.raises(ValueError, match=message):
        float64.simulation(combine(before(), after()), model=network())


def test_a_classifier_for_evaluation_may_follow():
    spare = np.setdiff1d(np.arange(len(toys.federation().labels)), toys.federation().rows)
    federation = toys.federation()._replace(auxiliary={"balanced": spare})
    float64.simulation(combine(fedgloss(), fedbabu(fine_tune_epochs=1)), model=network(), federation=federation)
