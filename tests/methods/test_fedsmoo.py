"""FedSMOO: against a transcription of FedDyn with the authors' shifts and dual variables."""

import jax.numpy as jnp
import numpy as np
import pytest
import toys
from methods import float64, hand
from methods.steps import moved, norm, regularised, uphill, zeros
from rounding import FORMULA

from fedjax_bal.parts import ConsistentAscent
from fedjax_bal.recipes import combine, fedrep, fedsam, fedsmoo, local

pytestmark = pytest.mark.usefixtures("double")


class Duals:
    """The clients' dual variables, and the server's estimate of the shift."""

    def __init__(self, rho, weights):
        self.rho, self.estimate = rho, zeros(weights)
        self.of_client = {c: zeros(weights) for c in range(float64.N)}

    def local_gradient(self, client, received):
        """The gradient of a local training; each one moves the client's dual variable."""

        def taken(gradient, w):
            dual, away = self.of_client[client], moved(gradient(w), -1.0, self.estimate)
            away = moved(away, -1.0, dual)
            shift = {k: self.rho * away[k] / (norm(away) + 1e-7) for k in w}
            self.of_client[client] = {k: dual[k] + shift[k] - self.estimate[k] for k in w}
            return gradient(moved(w, 1.0, shift))

        return taken

    def finish(self, cohort):
        """The estimate for the next round."""
        mean = float64.mean(dict.fromkeys(cohort, 1 / len(cohort)), {c: self.of_client[c] for c in cohort})
        self.estimate = {k: self.rho * leaf / (norm(mean) + 1e-7) for k, leaf in mean.items()}


@pytest.mark.slow
def test_fedsmoo_equals_its_transcription():
    sim = float64.simulation(fedsmoo(0.3, 0.2, None))
    duals = Duals(0.3, float64.initial(sim))
    weights = regularised(sim, duals.local_gradient, 0.2, duals.finish)
    fedspeed_weights = regularised(sim, uphill(0.3), 0.2)
    assert max(abs(fedspeed_weights[k] - weights[k]).max() for k in weights) > 1e-3  # the duals matter
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, weights)
    float64.assert_equal(state.server["ConsistentAscent"], duals.estimate, 1e-7)
    kept = {k: np.stack([duals.of_client[c][k] for c in range(float64.N)]) for k in weights}
    float64.assert_equal(state.memory["ConsistentAscent"], kept, 1e-7)
    assert any(not dual["w1"].any() for dual in duals.of_client.values())  # a client never trained


def test_a_leaf_that_is_not_trained_neither_moves_nor_counts_nor_has_a_dual():
    part, grads, dual, estimate = ConsistentAscent(0.3), *(hand.weights(seed) for seed in range(3))
    grads["w2"] = np.zeros_like(grads["w2"])
    trained = {"w1": jnp.array(True), "w2": False}
    states = {"steps_state": {part.slot: dual}, "broadcast": {part.slot: estimate}, "trained": trained}
    ctx, params = hand.context(**states), hand.weights(3)
    found, away = part.shift(params, grads, ctx), grads["w1"] - dual["w1"] - estimate["w1"]
    shift = 0.3 * away / np.linalg.norm(away)
    np.testing.assert_allclose(found["w1"], params["w1"] + shift, rtol=FORMULA)
    assert (found["w2"] == params["w2"]).all()
    rows = hand.outputs(hand.draw(hand.ROWS, hand.CLASSES)), hand.batch()
    carried = part.next_steps(dual, *rows, ctx._replace(shift={"w1": shift, "w2": 0.0 * params["w2"]}))
    np.testing.assert_allclose(carried["w1"], dual["w1"] + shift - estimate["w1"], rtol=FORMULA)
    assert (carried["w2"] == dual["w2"]).all()
    assert toys.largest_difference(part.next_steps(dual, *rows, ctx), dual) == 0  # the pass for the gradient


def test_what_does_not_fit_is_refused():
    for other in (local, fedrep):
        with pytest.raises(ValueError, match="feddyn: received Own.*, whose leaves stay with the clients"):
            float64.simulation(combine(fedsmoo(), other()))
    with pytest.raises(ValueError, match="both choose where a gradient is taken"):
        combine(fedsmoo(), fedsam())
    assert fedsmoo(clip=0) == fedsmoo(clip=None) != fedsmoo()
