"""FedAvgM, FedAdam, FedYogi and FedAdagrad: against their transcriptions."""

import jax
import numpy as np
import pytest
from methods import float64, hand
from rounding import DOUBLE

from fedjax_bal.recipes import fedadagrad, fedadam, fedavgm, fedyogi

STEP = jax.jit(lambda rule, delta, state: rule.transform(0).update(-delta, state))
"""The step for a change, which counts as a gradient downwards."""

pytestmark = pytest.mark.usefixtures("double")


def adaptive(b1, b2, tau, begin, second):
    """optax's bias-corrected moments; `second` is the change of v."""

    def update(state, delta):
        count, m, v = state or (0, begin, begin)
        count, m, v = count + 1, b1 * m - (1 - b1) * delta, v + second(v, delta**2)
        step = m / (1 - b1**count) / (np.sqrt(v / (1 - b2**count)) + tau)
        return (count, m, v), -step

    return update


def adagrad(tau):
    """Squares add up from tau^2; tau^2 again under the root."""

    def update(state, delta):
        v = (tau**2 if state is None else state) + delta**2
        return v, delta / np.sqrt(v + tau**2)

    return update


def published(b1, tau, begin, second):
    """Algorithm 2 of Reddi et al.: no correction; `second` is the change of v."""

    def update(state, delta):
        m, v = state or (0, begin)
        m, v = b1 * m + (1 - b1) * delta, v + second(v, delta**2)
        return (m, v), m / (np.sqrt(v) + tau)

    return update


def with_momentum(beta, nesterov=False):
    """v is beta v + delta; Nesterov's step is delta + beta v."""

    def update(state, delta):
        v = delta if state is None else beta * state + delta
        return v, delta + beta * v if nesterov else v

    return update


def adam(v, square):
    return 0.1 * (square - v)


def yogi(v, square):
    return -0.1 * square * np.sign(v - square)


ADAPTIVE = {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.9, "tau": 0.01}
SERVERS = {
    "fedavgm": (fedavgm(0.8, 0.5), 0.5, with_momentum(0.8)),
    "fedadam": (fedadam(0.05, 0.8, 0.9, 0.01), 0.05, adaptive(0.8, 0.9, 0.01, 0.0, adam)),
    "fedyogi": (fedyogi(0.05, 0.8, 0.9, 0.01), 0.05, adaptive(0.8, 0.9, 0.01, 1e-6, yogi)),
    "fedadagrad": (fedadagrad(0.05, 0.01), 0.05, adagrad(0.01)),
    "fedavgm, nesterov": (fedavgm(0.8, 0.5, nesterov=True), 0.5, with_momentum(0.8, nesterov=True)),
    "fedadam, paper": (fedadam(form="paper", **ADAPTIVE), 0.05, published(0.8, 0.01, 0.01**2, adam)),
    "fedadam, from zero": (fedadam(form="from_zero", **ADAPTIVE), 0.05, published(0.8, 0.01, 0.0, adam)),
    "fedyogi, paper": (fedyogi(form="paper", **ADAPTIVE), 0.05, published(0.8, 0.01, 0.01**2, yogi)),
    "fedadagrad, paper": (
        fedadagrad(0.05, 0.01, form="paper"), 0.05, published(0.0, 0.01, 0.01**2, lambda v, square: square)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param("fedavgm", marks=pytest.mark.slow), "fedadam, paper"])
def test_rounds_equal_their_transcription(name):
    recipe, rate, update = SERVERS[name]
    sim = float64.simulation(recipe)
    weights = float64.initial(sim)
    states = dict.fromkeys(weights)
    for number, cohort in float64.cohorts(sim):
        delta = float64.averaged(weights, cohort, number)
        for k in weights:
            states[k], step = update(states[k], delta[k])
            weights = weights | {k: weights[k] + rate * step}
    float64.assert_equal(float64.run(sim).variables.params, weights)


@pytest.mark.parametrize("name", SERVERS)
def test_its_steps_for_given_changes_equal_the_transcription(name):
    recipe, rate, update = SERVERS[name]
    assert recipe.name == name.partition(",")[0]
    rule, state = recipe.server_optimizer.transform(0), None
    found = jax.jit(rule.init)(np.zeros(3))
    for number in range(3):
        delta = 0.1 * hand.draw(3, seed=number)
        state, step = update(state, delta)
        moved, found = STEP(recipe.server_optimizer, delta, found)
        np.testing.assert_allclose(moved, rate * step, rtol=DOUBLE)
