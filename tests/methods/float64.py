"""What transcriptions in float64 share: plain local training in NumPy, and the library's runs to compare with.

Only the draws come from the library, never what is computed from them.
"""

import collections
import dataclasses
from functools import partial

import jax
import numpy as np
import reference
import toys

from fedjax_bal.engine.host import build_simulation
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Execution, LocalTraining, Participation
from fedjax_bal.selection import bernoulli

ROUNDS, SEED, N = 3, 3, len(toys.SIZES)
OPTIONS = reference.Options(rate=0.1, decay=0.9, batch_size=8, epochs=2)
LENGTH = 24  # of the largest client, in whole batches


CLIENTS = Participation(clients_per_round=6, availability=bernoulli(0.7), delivery=bernoulli(0.7))
EXECUTION = Execution(strategy="map", devices=1)
RECENT = collections.deque(maxlen=64)
"""The last simulations: those that differ from a living one in numbers only share its compiled program."""


def local_training(options):
    """The library's options of local training for those of the transcription."""
    rule = {"momentum": options.momentum, "weight_decay": options.weight_decay, "decay": options.decay}
    sgd = optimizer("sgd", options.rate, **rule)
    return LocalTraining(epochs=options.epochs, batch_size=options.batch_size, optimizer=sgd)


LOCAL = local_training(OPTIONS)


def simulation(recipe, options=OPTIONS, *, model=None, federation=None, test=None, **changes):
    """A simulation of ragged clients, of which some are away and some don't deliver."""
    settings = {"rounds": ROUNDS, "local": local_training(options), "participation": CLIENTS, "execution": EXECUTION}
    data = (model or toys.network(), federation or toys.federation(), test or toys.test_set())
    RECENT.append(build_simulation(recipe, *data, **(settings | changes)))
    return RECENT[-1]


def like(sim, **changes):
    """The same compiled program with other numbers."""
    other = dataclasses.replace(sim, **changes)
    other._compiled, other._traffic = sim._compiled, sim._traffic
    return other


def run(sim):
    """The state after the last round."""
    return finished(sim)[0]


def finished(sim):
    """The state after the last round, the records of all rounds, and the last round's confusion matrix."""
    snapshot, records, done = sim.init(SEED), [], None
    while snapshot.round < sim.rounds:
        done = sim.advance(SEED, snapshot)
        snapshot, records = done.snapshot, records + done.records
    return jax.device_get(snapshot.state), records, done.confusion


def assert_same_runs(first, second, tolerance=1e-12, **changes):
    """Compares the models of two recipes after all rounds."""
    got, want = (run(simulation(recipe, **changes)).variables.params for recipe in (first, second))
    assert_equal(got, want, tolerance)


def assert_averages(recipe, changes=None, **knobs):
    """Compares a run with FedAvg whose local training has `knobs`, functions of client and round."""
    sim = simulation(recipe, **(changes or {}))
    weights = initial(sim)
    for number, cohort in cohorts(sim):
        of_round = {name: partial(knob, number=number) for name, knob in knobs.items()}
        weights = plus(weights, averaged(weights, cohort, number, **of_round))
    assert_equal(run(sim).variables.params, weights)


def initial(sim):
    """The weights before the first round."""
    return jax.device_get(sim.init(SEED).state.variables.params)


def cohorts(sim):
    """Round numbers and the clients that deliver."""
    plans = [sim.plan(SEED, number, ())[0] for number in range(sim.rounds)]
    return [(number, [int(c) for c in plan.clients[plan.delivered]]) for number, plan in enumerate(plans)]


def gradient(weights, images, labels, scale=1.0, offset=0.0):
    """Of the mean cross-entropy of logits * scale - offset."""
    features, logits = reference.forward(weights, images)
    error = reference.softmax(logits * scale - offset) - np.eye(logits.shape[1])[labels]
    error = scale * error / len(labels)
    return {"w1": images.T @ ((error @ weights["w2"].T) * (1 - features**2)), "w2": features.T @ error}


def train(received, client, number, options=OPTIONS, *, change=None, batches=None, gradient=gradient, **given):
    """One local training: the new weights, and how many steps they took.

    Args:
        received: the weights that the client begins with.
        client: its number.
        number: of the round.
        options: of the training.
        change: of a gradient and the weights at which it was taken, makes the one that counts.
        batches: row numbers; by default those that the library draws.
        gradient: of weights, images and labels; weights of which it has none stay as they are.
        given: further arguments of `gradient`.
    """
    data = toys.federation()
    flat, rate = data.images.reshape(len(data.images), -1).astype(float), options.rate * options.decay**number
    weights, velocity, steps = dict(received), None, 0
    for rows in batches or reference.draws(data, SEED, number, client, options):
        grad = gradient(weights, flat[rows], data.labels[rows], **given)
        if change is not None:
            grad = change(grad, weights)
        grad = {k: grad[k] + options.weight_decay * weights[k] for k in grad}
        velocity = grad if velocity is None else {k: options.momentum * velocity[k] + grad[k] for k in grad}
        weights = weights | {k: weights[k] - rate * velocity[k] for k in grad}
        steps += 1
    return weights, steps


def difference(after, before):
    """Of two trees."""
    return {k: after[k] - before[k] for k in before}


def mean(shares, trees):
    """The sum of trees with shares, both by client."""
    return {k: sum(shares[c] * tree[k] for c, tree in trees.items()) for k in next(iter(trees.values()))}


def by_size(cohort):
    """Shares by number of samples."""
    total = sum(toys.SIZES[c] for c in cohort)
    return {c: toys.SIZES[c] / total for c in cohort}


def averaged(received, cohort, number, options=OPTIONS, **knobs):
    """The mean change of FedAvg, where `knobs` are functions of the client."""
    train_one = lambda client: train(received, client, number, options, **{k: f(client) for k, f in knobs.items()})[0]
    return mean(by_size(cohort), {client: difference(train_one(client), received) for client in cohort})


def plus(weights, delta):
    """The sum of two trees."""
    return {k: weights[k] + delta[k] for k in weights}


def assert_equal(got, want, tolerance=1e-8):
    """Compares the leaves of two dicts, relative to the largest value of each; float32 would not do."""
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == np.float64
        assert np.abs(got[name] - want[name]).max() < tolerance * np.abs(want[name]).max(), name
