"""FedSWA and FedMoSWA: against a transcription of the paper's algorithms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64, hand, steps
from methods.steps import moved, zeros
from rounding import DOUBLE

from fedjax_bal.optim import optimizer, schedule
from fedjax_bal.options import LocalTraining, Participation
from fedjax_bal.parts import CyclicRate, MovingControlVariates
from fedjax_bal.recipes import combine, fedavg, fedcm, fedmoswa, fednova, fedswa, scaffold
from fedjax_bal.types import Outcome

pytestmark = pytest.mark.usefixtures("double")

OPTIONS = float64.OPTIONS


def train(received, client, number, correction, rho):
    """Local training at a rate that falls: the change, and the sum of the rates."""
    slopes = list(steps.gradients(received, client, number, OPTIONS))
    top, total, weights = OPTIONS.rate * OPTIONS.decay**number, 0.0, received
    for k, slope in enumerate(slopes):
        rate = top * (1 - k / len(slopes)) + k / len(slopes) * rho * top
        direction = moved(slope(weights), 1.0, correction)
        weights, total = moved(weights, -rate, direction), total + rate
    return float64.difference(weights, received), total


def fedswa_by_hand(sim, rho, alpha):
    """The weights after all rounds."""
    weights = float64.initial(sim)
    for number, cohort in float64.cohorts(sim):
        changes = {c: train(weights, c, number, zeros(weights), rho)[0] for c in cohort}
        weights = moved(weights, alpha, float64.mean(float64.by_size(cohort), changes))
    return weights


def fedmoswa_by_hand(sim, rho, alpha, gamma):
    """The weights, m, and the clients' control variates after all rounds."""
    weights = float64.initial(sim)
    m, controls = zeros(weights), {c: zeros(weights) for c in range(float64.N)}
    for number, cohort in float64.cohorts(sim):
        changes = {}
        for c in cohort:
            changes[c], total = train(weights, c, number, float64.difference(m, controls[c]), rho)
            controls[c] = {k: controls[c][k] - m[k] - changes[c][k] / total for k in m}
        equal = dict.fromkeys(cohort, 1 / len(cohort))
        weights = moved(weights, alpha, float64.mean(equal, changes))
        mean = float64.mean(equal, {c: controls[c] for c in cohort})
        m = {k: (1 - gamma) * m[k] + gamma * mean[k] for k in m}
    return weights, m, controls


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"rho": 0.2, "alpha": 1.4}, {"rho": 0.0, "alpha": 1.0}], ids=["paper", "code"])
def test_fedswa_equals_its_transcription(given):
    sim = float64.simulation(fedswa(**given))
    float64.assert_equal(float64.run(sim).variables.params, fedswa_by_hand(sim, **given))


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"rho": 0.2, "alpha": 1.4, "gamma": 0.3}, {"rho": 1.0, "alpha": 1.0, "gamma": 0.4}])
def test_fedmoswa_equals_its_transcription(given):
    sim = float64.simulation(fedmoswa(**given))
    weights, m, controls = fedmoswa_by_hand(sim, **given)
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, weights)
    float64.assert_equal(state.server["ControlVariates"], m, 1e-7)
    kept = {k: np.stack([controls[c][k] for c in range(float64.N)]) for k in m}
    float64.assert_equal(state.memory["ControlVariates"], kept, 1e-7)
    assert any(not controls[c]["w1"].any() for c in controls)  # a client never trained


@pytest.mark.slow
def test_momentum_and_decay_do_not_see_the_falling_rate():
    options = reference.Options(0.1, momentum=0.5, weight_decay=0.01)
    largest = int(np.argmax(toys.SIZES))
    alone = Participation(selector=toys.chosen([[largest]]))
    sim = float64.simulation(fedswa(0.3, 1.0), options, rounds=1, participation=alone)
    at = float64.initial(sim)
    slopes, velocity = list(steps.gradients(at, largest, 0, options)), zeros(at)
    for k, slope in enumerate(slopes):
        decayed = moved(slope(at), 0.01, at)
        velocity = moved(decayed, 0.5, velocity)
        at = moved(at, -0.1 * (1 - 0.7 * k / len(slopes)), velocity)
    float64.assert_equal(float64.run(sim).variables.params, at)


def test_the_rate_falls_by_equal_amounts_and_the_sum_counts_them():
    part, updates, ctx = CyclicRate(0.4), hand.weights(0), hand.context(steps=jnp.array(3))
    carry, shares = part.init_steps(ctx), []
    for _ in range(3):
        found = part.updates(updates, updates, ctx._replace(steps_state={part.slot: carry}))
        shares.append(float(found["w1"][0, 0] / updates["w1"][0, 0]))
        carry = part.next_steps(carry, hand.outputs(hand.draw(hand.ROWS, hand.CLASSES)), hand.batch(), ctx)
    np.testing.assert_allclose(shares, [1.0, 0.8, 0.6], rtol=DOUBLE)
    start, end, zero = hand.variables(1), hand.variables(2), zeros(hand.weights(0))
    of_client = hand.context(broadcast={"ControlVariates": zero}, memory={"ControlVariates": zero})
    outcome = Outcome(start, end, jnp.array(3), jnp.array(0.3), of_client)
    control = MovingControlVariates(rho=0.4).remember(zero, outcome)
    wanted = {k: (start.params[k] - end.params[k]) / (0.1 * sum(shares)) for k in zero}
    float64.assert_equal(jax.tree.map(np.asarray, control), wanted, 1e-12)


def test_a_client_without_a_step_keeps_its_control_and_reports_nothing():
    part, own, m = MovingControlVariates(), hand.weights(0), hand.weights(1)
    ctx = hand.context(broadcast={part.slot: m}, memory={part.slot: own})
    outcome = Outcome(hand.variables(2), hand.variables(2), jnp.array(0), jnp.array(0.0), ctx)
    kept = part.remember(own, outcome)
    assert toys.largest_difference(kept, own) == 0
    assert toys.largest_difference(part.report(outcome._replace(memory=kept)), zeros(own)) == 0


PLAIN = optimizer("sgd", 0.1)
REFUSED = {
    "fedswa: received ClientMomentum, which counts": (fedswa, fedcm, PLAIN),
    "fedswa: received NormalisedAveraging, which counts": (fedswa, fednova, PLAIN),
    "fedswa: received ControlVariates, which counts": (fedswa, scaffold, PLAIN),
    "fedmoswa and scaffold both bring ControlVariates": (fedmoswa, scaffold, PLAIN),
    "fedmoswa: received a local momentum of 0.5": (fedmoswa, fedavg, optimizer("sgd", 0.1, momentum=0.5)),
    "fedmoswa: received a step_schedule": (
        fedmoswa, fedavg, optimizer("sgd", 0.1, step_schedule=schedule("step", every=2, factor=0.5)),
    ),
    "scaffold: received the local optimizer 'adam'": (fedmoswa, fedavg, optimizer("adam", 0.1)),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused(message):
    recipe, other, local = REFUSED[message]
    with pytest.raises(ValueError, match=message):
        float64.simulation(combine(recipe(), other()), local=LocalTraining(optimizer=local))
