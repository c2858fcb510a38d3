"""FedGF: against its transcription."""

import jax.numpy as jnp
import numpy as np
import pytest
from methods import float64, hand
from methods.steps import descend, moved, norm, zeros
from rounding import FORMULA

from fedjax_bal.methods.fedgf import GlobalShift
from fedjax_bal.parts import InterpolatedAscent
from fedjax_bal.recipes import combine, fedgf, fedlesam, fedsam

pytestmark = pytest.mark.usefixtures("double")


def test_fedgf_equals_its_transcription():
    rho, global_rho, threshold, window = 0.3, 0.2, 0.25, 2
    sim = float64.simulation(fedgf(rho, global_rho, threshold, window), rounds=5)
    weights, diverged, shares = float64.initial(sim), [], []
    away = zeros(weights)
    for number, cohort in float64.cohorts(sim):
        shares.append(np.mean(diverged[-window:]) if diverged else 0.0)

        def direction(gradient, y, start=weights, away=away, c=shares[-1]):
            uphill = moved(y, rho / (norm(gradient(y)) + 1e-7), gradient(y))
            return gradient({k: c * (start[k] + away[k]) + (1 - c) * uphill[k] for k in y})

        changes = {c: descend(weights, c, number, direction)[0] for c in cohort}
        diverged.append(np.mean([norm(change) for change in changes.values()]) > threshold)
        mean = float64.mean(float64.by_size(cohort), changes)
        away = moved(zeros(weights), -global_rho / (norm(mean) + 1e-7), mean)
        weights = float64.plus(weights, mean)
    assert {0.5, 1.0} <= set(shares)
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, weights)
    float64.assert_equal(state.server["InterpolatedAscent"].sent.away, away)
    assert state.server["InterpolatedAscent"].sent.share == np.mean(diverged[-window:])


@pytest.mark.slow
def test_clients_that_never_diverge_take_fedsam_steps():
    float64.assert_same_runs(fedgf(0.3, threshold=1e6), fedsam(0.3))


def test_a_leaf_that_is_not_trained_stays():
    part, params, grads, start, away = InterpolatedAscent(0.3), *(hand.weights(seed) for seed in range(4))
    grads["w2"] = np.zeros_like(grads["w2"])
    sent = {part.slot: GlobalShift(away, jnp.array(0.25))}
    ctx = hand.context(broadcast=sent, start=hand.variables(2), trained={"w1": jnp.array(True), "w2": False})
    found = part.shift(params, grads, ctx)
    uphill = params["w1"] + 0.3 * grads["w1"] / (np.linalg.norm(grads["w1"]) + 1e-7)
    np.testing.assert_allclose(found["w1"], 0.25 * (start["w1"] + away["w1"]) + 0.75 * uphill, rtol=FORMULA)
    assert (found["w2"] == params["w2"]).all()


def test_another_place_for_gradients_is_refused():
    with pytest.raises(ValueError, match="both choose where a gradient is taken"):
        combine(fedgf(), fedlesam())
    assert fedgf(0.2) == fedgf(0.2, 0.2)
