"""What two papers' code calls SCAFFOLD, against a transcription of that code in NumPy."""

import dataclasses
from functools import cache, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import reference
import toys
from parts import float64

from fedjax_bal.methods.scaffold import LateControlVariates
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import LocalTraining, Participation
from fedjax_bal.recipes import combine, scaffold
from fedjax_bal.selection import bernoulli
from fedjax_bal.types import Outcome, Variables

ROUNDS, SEED, CLIENTS = 3, 3, len(toys.SIZES)
OPTIONS = reference.Options(rate=0.1, decay=0.9, momentum=0.5, weight_decay=0.01)


pytestmark = pytest.mark.usefixtures("double")


SOME = Participation(clients_per_round=5, availability=bernoulli(0.7), delivery=bernoulli(0.8))
simulation = partial(float64.simulation, options=OPTIONS, participation=SOME)


@cache
def compiled(variant):
    """A variant's program, shared by all tests that change only its numbers."""
    sim = simulation(scaffold(variant=variant))
    sim.compile()
    return sim


def finished(sim):
    return jax.device_get(sim.advance(SEED, sim.init(SEED)).snapshot.state)


def double(tree):
    return {name: np.asarray(leaf, np.float64) for name, leaf in tree.items()}


def relative_error(got, expected):
    scale = max(np.abs(leaf).max() for leaf in expected.values())
    return max(np.abs(np.asarray(got[name]) - expected[name]).max() for name in expected) / scale


def train(received, server, own, client, number, clip):
    """The code's local loop: loss gradient, clipping, an SGD step with momentum, then the correction."""
    federation = toys.federation()
    flat = federation.images.reshape(len(federation.images), -1).astype(np.float64)
    rate = OPTIONS.rate * OPTIONS.decay**number
    weights, velocity, steps, norms = dict(received), None, 0, []
    for rows in reference.draws(federation, SEED, number, client, OPTIONS):
        features = np.tanh(flat[rows] @ weights["w1"])
        error = reference.softmax(features @ weights["w2"])
        error[np.arange(len(rows)), federation.labels[rows]] -= 1
        error /= len(rows)
        grad = {"w1": flat[rows].T @ (error @ weights["w2"].T * (1 - features**2)), "w2": features.T @ error}
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
    sim = compiled("cbfl_code")
    weights = double(sim.init(SEED).state.variables.params)
    server = {name: np.zeros_like(leaf) for name, leaf in weights.items()}
    own, norms = dict.fromkeys(range(CLIENTS), server), []
    for number in range(ROUNDS):
        plan, _ = sim.plan(SEED, number, ())
        cohort = [int(client) for client in plan.clients[plan.delivered]]
        results = {c: train(weights, server, own[c], c, number, clip) for c in cohort}
        norms += [norm for _, _, all_ in results.values() for norm in all_]
        total = sum(toys.SIZES[c] for c in cohort)
        weights = {k: sum(toys.SIZES[c] / total * results[c][0][k] for c in cohort) for k in weights}
        change = {k: sum(results[c][1][k] - own[c][k] for c in cohort) for k in server}
        server = {k: server[k] + change[k] / len(cohort) for k in server}
        own |= {c: results[c][1] for c in cohort}
    return weights, server, own, norms


def check(state, clip):
    weights, server, own, _ = transcription(clip)
    assert relative_error(state.variables.params, weights) < 1e-8
    assert relative_error(state.server["ControlVariates"], server) < 1e-8
    stacked = {name: np.stack([own[client][name] for client in range(CLIENTS)]) for name in server}
    assert relative_error(state.memory["ControlVariates"], stacked) < 1e-8


VARIANTS = [("cbfl_code", np.inf), ("rebafl_code", 10.0)]


@pytest.mark.parametrize(("variant", "clip"), quick.only(VARIANTS, VARIANTS[0]))
def test_variant_equals_the_transcribed_code(variant, clip):
    check(finished(compiled(variant)), clip)


def test_clipping_where_it_bites_equals_the_transcribed_code():
    clip = 1.0
    norms = transcription(clip)[3]
    assert min(norms) < clip < max(norms)
    sim = compiled("rebafl_code")
    assert sim.setting.parts == (LateControlVariates(clip=10.0),)
    setting = dataclasses.replace(sim.setting, parts=(LateControlVariates(clip=clip),))
    clipped = dataclasses.replace(sim, setting=setting)
    clipped._compiled, clipped._traffic = sim._compiled, sim._traffic
    check(finished(clipped), clip)


@pytest.mark.slow
def test_a_first_round_without_momentum_has_the_papers_controls_but_for_the_servers_factor():
    plain = dataclasses.replace(OPTIONS, momentum=0.0)
    sims = [simulation(recipe, options=plain, rounds=1) for recipe in (scaffold(variant="cbfl_code"), scaffold())]
    ours, paper = map(finished, sims)
    assert toys.largest_difference(ours.memory, paper.memory) < 1e-14
    arrived = int(sims[0].plan(SEED, 0, ())[0].delivered.sum())
    assert 1 < arrived < CLIENTS
    for name, leaf in paper.server["ControlVariates"].items():
        np.testing.assert_allclose(ours.server["ControlVariates"][name], leaf * CLIENTS / arrived, rtol=1e-12)


def test_a_round_without_any_arrival_changes_nothing():
    sim = compiled("rebafl_code")
    nobody = dataclasses.replace(sim, participation=Participation(delivery=bernoulli(1e-12)))
    nobody._compiled, nobody._traffic = sim._compiled, sim._traffic
    before = jax.device_get(nobody.init(SEED).state)
    assert toys.largest_difference(before, finished(nobody)) == 0


def test_a_client_without_a_step_keeps_its_controls_and_has_a_finite_derivative():
    own, ones = LateControlVariates(), {"w": jnp.ones(2)}
    ctx = SimpleNamespace(broadcast={own.slot: {"w": jnp.full(2, 5.0)}})

    def remembered(model):
        outcome = Outcome(Variables(model, {}), Variables(model, {}), jnp.array(0), jnp.array(0.0), ctx)
        return own.remember(ones, outcome)["w"].sum()

    value, derivative = jax.value_and_grad(remembered)(ones)
    assert (value, *derivative["w"]) == (2, 0, 0)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="scaffold: variant: received 'rebafl'; .* did you mean 'rebafl_code'"):
        scaffold(variant="rebafl")
    with pytest.raises(ValueError, match="scaffold_momentum: received true beside cbfl_code"):
        scaffold(scaffold_momentum=True, variant="cbfl_code")
    with pytest.raises(ValueError, match="both bring ControlVariates"):
        combine(scaffold(), scaffold(variant="cbfl_code"))
    for bad, message in ((optimizer("adam", 0.1), "plain SGD"), (nesterov(), "nesterov")):
        with pytest.raises(ValueError, match=message):
            simulation(scaffold(variant="rebafl_code"), local=LocalTraining(optimizer=bad))


def nesterov():
    return optimizer("sgd", 0.1, momentum=0.5, nesterov=True)
