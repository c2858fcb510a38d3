"""FL-CIR: against its transcription, its probe, its aggregation, and what is refused."""

from dataclasses import replace
from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from methods import float64
from methods.float64 import SEED, N, assert_equal, difference, mean, plus, train
from methods.heads import network

from fedjax_bal.options import Execution, Participation
from fedjax_bal.parts import CompositionProbe, Probe, Report, Step, part
from fedjax_bal.recipes import Recipe, combine, fedavg, fedetf, fednh, flcir, ldam
from fedjax_bal.selection import Choice, bernoulli
from fedjax_bal.types import Outcome

PER_CLASS, COHORT, ROUNDS = 3, 4, 6
ALPHA, RHO = 0.3, 0.8


pytestmark = pytest.mark.usefixtures("double")


@cache
def federation():
    """The toy federation, whose server holds three rows of each class; the last ones, in no order."""
    plain = toys.federation()
    rng = np.random.default_rng(1)
    images = rng.normal(size=(PER_CLASS * toys.CLASSES, 1, toys.WIDTH, 1)).astype(np.float32)
    labels = rng.permutation(np.repeat(np.arange(toys.CLASSES), PER_CLASS)).astype(np.int32)
    rows = len(plain.labels) + np.arange(len(labels), dtype=np.int32)
    return plain._replace(
        images=np.concatenate([plain.images, images]),
        labels=np.concatenate([plain.labels, labels]),
        auxiliary={"balanced": rows},
    )


CLIENTS = replace(float64.CLIENTS, clients_per_round=COHORT)


def simulation(recipe, **changes):
    settings = {"federation": federation(), "rounds": ROUNDS, "participation": CLIENTS}
    return float64.simulation(recipe, **(settings | changes))


@cache
def bandit():
    """One compiled program for all that look at whole runs."""
    return simulation(flcir(alpha=ALPHA, rho=RHO))


def advanced(sim, snapshot, rounds):
    while snapshot.round < rounds:
        snapshot = sim.advance(SEED, snapshot).snapshot
    return snapshot


def norms(weights, scope="network"):
    """How large the gradient of each class's mean cross-entropy is."""
    data = federation()
    rows, found = data.auxiliary["balanced"], []
    for label in range(toys.CLASSES):
        own = rows[data.labels[rows] == label]
        images = data.images[own].reshape(len(own), -1).astype(float)
        grad = float64.gradient(weights, images, data.labels[own])
        whole = sum((leaf**2).mean() for leaf in grad.values())
        found.append(whole if scope == "network" else (grad["w2"][:, label] ** 2).sum())
    return np.array(found)


def composition(weights):
    """The authors' normalised inverse."""
    inverse = 1 / norms(weights)
    return inverse / inverse.sum()


def entropy(shares):
    """Cross-entropy of the uniform law against shares."""
    return -np.log(shares + 1e-15).mean()


def chosen(number, there, asked, seen, means, mixed):
    """Algorithm 1's choice: the sweep in blocks, then Algorithm 2."""
    there = np.flatnonzero(there)
    if number * COHORT < N:
        return sorted(there, key=lambda k: (asked[k], k))[:COHORT]
    bonus = np.sqrt(3 * np.log(number) / (2 * np.maximum(seen, 1)))
    score = np.where(seen > 0, means + ALPHA * bonus, np.inf)
    members = [max(there, key=lambda k: (score[k], -k))]
    while len(members) < min(COHORT, len(there)):

        def together(k):
            if not mixed[members].any() and not mixed[k].any():
                return 1e9
            total = mixed[[*members, k]].mean(0) + 1e-15
            return -np.log(total / total.sum()).mean()

        members.append(min((k for k in there if k not in members), key=lambda k: (round(together(k), 11), k)))
    return members


def transcribed(sim):
    """Algorithm 1: weights, and what the server knows of the clients."""
    weights = float64.initial(sim)
    asked, seen, means, mixed, sums = *np.zeros((2, N), int), np.zeros(N), np.zeros((N, toys.CLASSES)), np.zeros(N)
    for number in range(ROUNDS):
        there = sim.participation.availability.mask(SEED, "availability", number, np.ones(N, bool))
        back = sim.participation.delivery.mask(SEED, "delivery", number, np.ones(N, bool))
        picked = chosen(number, there, asked, seen, means, mixed)
        asked[picked] += 1
        cohort = sorted(k for k in picked if back[k])
        after = {k: train(weights, k, number)[0] for k in cohort}
        for k, local in after.items():
            shares = composition(local)
            seen[k] += 1
            sums[k] = RHO * sums[k] + 1
            mixed[k] += (shares - mixed[k]) / sums[k]
            means[k] += (1 / entropy(shares) - means[k]) / seen[k]
        if cohort:
            shares = {k: toys.SIZES[k] / sum(toys.SIZES) for k in cohort}
            weights = plus(weights, mean(shares, {k: difference(local, weights) for k, local in after.items()}))
    return weights, seen, means, mixed


@pytest.mark.slow
def test_six_rounds_equal_the_transcription():
    sim = bandit()
    snapshot = advanced(sim, sim.init(SEED), ROUNDS)
    weights, seen, means, mixed = transcribed(sim)
    assert_equal(jax.device_get(snapshot.state.variables.params), weights)
    assert snapshot.selector.pulls.tolist() == seen.tolist() and seen.max() > 1
    np.testing.assert_allclose(snapshot.selector.mean_rewards, means, rtol=1e-8)
    np.testing.assert_allclose(snapshot.selector.compositions, mixed, rtol=1e-8)


@pytest.mark.slow
def test_the_chosen_clients_divergence_is_that_of_their_labels_counted_together():
    sim, data = bandit(), federation()
    snapshot, records, picked = sim.init(SEED), [], []
    while snapshot.round < ROUNDS:
        done = sim.advance(SEED, snapshot)
        snapshot, records, picked = done.snapshot, records + done.records, picked + done.chosen.tolist()
    there = [sim.participation.availability.mask(SEED, "availability", n, np.ones(N, bool)) for n in range(ROUNDS)]
    back = [sim.participation.delivery.mask(SEED, "delivery", n, np.ones(N, bool)) for n in range(ROUNDS)]
    for number, record in enumerate(records):
        asked = [picked.pop(0) for _ in range(min(COHORT, there[number].sum()))]
        spans = [data.rows[data.offsets[k] : data.offsets[k + 1]] for k in asked if back[number][k]]
        shares = np.bincount(data.labels[np.concatenate(spans)]) / sum(map(len, spans))
        expected = sum(share * np.log(share * toys.CLASSES) for share in shares if share)
        assert record["cohort_kl"] == pytest.approx(expected, rel=1e-12)
    assert not picked and len({record["cohort_kl"] for record in records}) == ROUNDS


@pytest.mark.parametrize("scope", ["network", "output"])
def test_the_probe_sees_the_gradients_of_each_class(scope):
    model = toys.network()
    end = model.init(jax.random.key(5))
    ctx = type("Ctx", (), {"federation": jax.tree.map(jnp.asarray, federation()), "model": model})()
    outcome = Outcome(end, end, None, None, ctx)
    inverse = 1 / norms(jax.device_get(end.params), scope)
    got = jax.jit(lambda: CompositionProbe(scope=scope).probe(outcome))()
    np.testing.assert_allclose(got, inverse / inverse.sum(), rtol=1e-10)


@pytest.mark.slow
def test_a_cohort_of_everybody_is_not_damped():
    everybody = {"participation": Participation(), "rounds": 1}
    recipes = [flcir("random", aggregation=how) for how in ("all_clients", "selected")]
    states = [float64.run(simulation(recipe, **everybody)) for recipe in recipes]
    assert toys.largest_difference(states[0].variables, states[1].variables) < 1e-15


def test_a_rival_without_compositions_is_refused():
    with pytest.raises(ValueError, match="learns from 'composition'"):
        simulation(fedavg(), participation=replace(CLIENTS, selector=Choice("cucb")))
    with pytest.raises(ValueError, match="chooses clients itself"):
        simulation(flcir(), participation=Participation(selector=toys.chosen([[0], [1]])))
    with pytest.raises(ValueError, match="set it to 1"):
        simulation(flcir(), execution=Execution(rounds_per_dispatch=2))


def test_unbalanced_rows_are_refused():
    rows = federation().auxiliary["balanced"]
    with pytest.raises(ValueError, match="between 2 and 3 rows of a class"):
        simulation(flcir(), federation=federation()._replace(auxiliary={"balanced": rows[:-1]}))


@pytest.mark.parametrize("other", [ldam(), fednh(), fedetf()], ids=lambda recipe: recipe.name)
def test_the_closed_form_is_refused_for_a_classifier_of_cosines(other):
    with pytest.raises(ValueError, match="received scope 'output' and the model"):
        simulation(combine(flcir(scope="output"), other), model=network())
    simulation(combine(flcir(scope="network"), other), model=network())
    simulation(flcir(scope="output"), model=network())


@part
class Losses(Probe, Report, Step):
    """The client's number and the steps it took; moves the model by the number of reports alone."""

    def probe(self, outcome):
        return {"client": outcome.ctx.client, "steps": outcome.steps}

    def report(self, outcome):
        return jnp.ones(())

    def step(self, delta, server):
        return jax.tree.map(lambda leaf: 0 * leaf + server.aggregate.reports[self.slot], delta), server.state


@pytest.mark.slow
def test_probes_losses_and_reports_are_those_of_the_clients_that_deliver():
    seen = []
    selector = toys.chosen([[3, 1], [0, 2]])._replace(
        closed_loop=True, update=lambda state, plan, probes: seen.append((plan, probes)) or state
    )
    recipe = Recipe("losses", (Losses(),))
    some = replace(CLIENTS, clients_per_round=None, selector=selector, delivery=bernoulli(0.6))
    sim = simulation(recipe, rounds=1, participation=some)
    end = sim.advance(SEED, sim.init(SEED)).snapshot.state.variables.params
    plan, probes = seen[0]
    assert 0 < plan.delivered.sum() < 4
    on = plan.delivered
    np.testing.assert_array_equal(probes["Losses"]["client"], np.where(on, plan.clients, 0))
    moved = jax.tree.map(lambda leaf: leaf + on.sum(), sim.init(SEED).state.variables.params)
    chex.assert_trees_all_close(end, moved)
    steps = [2 * -(-toys.SIZES[k] // 8) for k in plan.clients[on]]
    assert probes["Losses"]["steps"][on].tolist() == steps
    assert np.isfinite(probes["loss"][on]).all() and np.isnan(probes["loss"][~on]).all()
    weights, flat = float64.initial(sim), federation().images.reshape(len(federation().images), -1).astype(float)
    first = int(plan.clients[0][on[0]][0])
    losses = []
    for rows in reference.draws(federation(), SEED, 0, first, float64.OPTIONS):
        logits = reference.forward(weights, flat[rows])[1]
        labels = federation().labels[rows]
        losses.append(-np.log(reference.softmax(logits)[np.arange(len(rows)), labels]).mean())
        weights = train(weights, first, 0, batches=[rows])[0]
    assert probes["loss"][0][on[0]][0] == pytest.approx(np.mean(losses), rel=1e-9)


@pytest.mark.slow
def test_epochs_of_at_most_one_batch_see_only_the_first():
    def first_of_each_epoch(client, number):
        every = list(reference.draws(toys.federation(), SEED, number, client, float64.OPTIONS))
        return every[:: len(every) // float64.OPTIONS.epochs]

    changes = {"local": replace(float64.LOCAL, batches_per_epoch=1)}
    float64.assert_averages(fedavg(), changes, batches=first_of_each_epoch)
