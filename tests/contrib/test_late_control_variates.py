"""What two papers' code calls SCAFFOLD, against a transcription of that code in NumPy."""

import dataclasses
from functools import cache, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
import toys
from methods import float64

from fedjax_bal.contrib.late_control_variates import LateControlVariates, late_control_variates
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import LocalTraining, Participation
from fedjax_bal.recipes import combine, fedswa, scaffold
from fedjax_bal.selection import bernoulli
from fedjax_bal.types import Outcome, Variables

SEED = float64.SEED
OPTIONS = reference.Options(rate=0.1, decay=0.9, momentum=0.5, weight_decay=0.01)


pytestmark = pytest.mark.usefixtures("double")


SOME = Participation(clients_per_round=5, availability=bernoulli(0.7), delivery=bernoulli(0.8))
simulation = partial(float64.simulation, options=OPTIONS, participation=SOME)


def train(received, server, own, client, number, clip):
    """The code's local loop: loss gradient, clipping, an SGD step with momentum, then the correction."""
    federation = toys.federation()
    flat = federation.images.reshape(len(federation.images), -1).astype(np.float64)
    rate = OPTIONS.rate * OPTIONS.decay**number
    weights, velocity, steps, norms = dict(received), None, 0, []
    for rows in reference.draws(federation, SEED, number, client, OPTIONS):
        grad = float64.gradient(weights, flat[rows], federation.labels[rows])
        norms.append(np.sqrt(sum((leaf**2).sum() for leaf in grad.values())))
        shrink = min(1.0, clip / (norms[-1] + 1e-6))
        grad = {name: shrink * grad[name] + OPTIONS.weight_decay * weights[name] for name in grad}
        velocity = grad if velocity is None else {k: OPTIONS.momentum * velocity[k] + grad[k] for k in grad}
        weights = {k: weights[k] - rate * velocity[k] for k in weights}
        weights = {k: weights[k] - rate * (server[k] - own[k]) for k in weights}
        steps += 1
    fresh = {k: own[k] - server[k] + (received[k] - weights[k]) / (steps * rate) for k in own}
    return weights, fresh, norms


@cache
def transcription(clip):
    """Weights, the server's and the clients' control variates after all rounds, and all gradient norms."""
    sim = simulation(late_control_variates(clip=10.0))
    weights = float64.initial(sim)
    server = {name: np.zeros_like(leaf) for name, leaf in weights.items()}
    own, norms = dict.fromkeys(range(float64.N), server), []
    for number, cohort in float64.cohorts(sim):
        results = {c: train(weights, server, own[c], c, number, clip) for c in cohort}
        norms += [norm for _, _, all_ in results.values() for norm in all_]
        weights = float64.mean(float64.by_size(cohort), {c: model for c, (model, _, _) in results.items()})
        change = {k: sum(results[c][1][k] - own[c][k] for c in cohort) for k in server}
        server = {k: server[k] + change[k] / len(cohort) for k in server}
        own |= {c: results[c][1] for c in cohort}
    return weights, server, own, norms


def check(state, clip):
    weights, server, own, _ = transcription(clip)
    float64.assert_equal(state.variables.params, weights)
    float64.assert_equal(state.server["ControlVariates"], server, 1e-7)
    stacked = {name: np.stack([own[client][name] for client in range(float64.N)]) for name in server}
    float64.assert_equal(state.memory["ControlVariates"], stacked, 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(("clip", "bound"), [(None, np.inf), (10.0, 10.0)])
def test_it_equals_the_transcribed_code(clip, bound):
    check(float64.run(simulation(late_control_variates(clip))), bound)


def test_clipping_where_it_bites_equals_the_transcribed_code():
    clip = 1.0
    norms = transcription(clip)[3]
    assert min(norms) < clip < max(norms)
    recipe = late_control_variates(clip=10.0)
    assert recipe.parts == (LateControlVariates(clip=10.0),)
    check(float64.run(simulation(dataclasses.replace(recipe, parts=(LateControlVariates(clip=clip),)))), clip)


def test_a_client_without_a_step_keeps_its_controls_and_has_a_finite_derivative():
    own, ones = LateControlVariates(), {"w": jnp.ones(2)}
    ctx = SimpleNamespace(broadcast={own.slot: {"w": jnp.full(2, 5.0)}})

    def remembered(model):
        outcome = Outcome(Variables(model, {}), Variables(model, {}), jnp.array(0), jnp.array(0.0), ctx)
        return own.remember(ones, outcome)["w"].sum()

    value, derivative = jax.jit(jax.value_and_grad(remembered))(ones)
    assert (value, *derivative["w"]) == (2, 0, 0)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="both bring ControlVariates"):
        combine(scaffold(), late_control_variates())
    with pytest.raises(ValueError, match="late_control_variates: received CyclicRate"):
        simulation(combine(fedswa(), late_control_variates()))
    nesterov = optimizer("sgd", 0.1, momentum=0.5, nesterov=True)
    for bad, message in ((optimizer("adam", 0.1), "plain SGD"), (nesterov, "nesterov"), (optax.sgd(0.1), "an optax")):
        with pytest.raises(ValueError, match=message):
            simulation(late_control_variates(), local=LocalTraining(optimizer=bad))


def test_a_round_without_any_arrival_changes_nothing():
    lost = dataclasses.replace(SOME, delivery=bernoulli(1e-12))
    nobody = simulation(late_control_variates(clip=10.0), participation=lost)
    before = jax.device_get(nobody.init(SEED).state)
    assert toys.largest_difference(before, float64.run(nobody)) == 0
