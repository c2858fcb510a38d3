"""Roles that no recipe of the package plays, by the smallest parts that do, against transcriptions in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
import toys
from parts import float64

from fedjax_bal import recipes
from fedjax_bal.data import over_rows
from fedjax_bal.options import Execution
from fedjax_bal.parts import Closing, Criterion, Gradient, Memory, Shift, Step, Steps, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.testing import check_recipe

SEED = float64.SEED


@part
class Brier(Criterion):
    """The squared distance of probabilities to the label's."""

    def losses(self, logits, labels, ctx):
        return ((jax.nn.softmax(logits) - jax.nn.one_hot(labels, logits.shape[-1])) ** 2).sum(-1)


@part
class Sam(Shift):
    """Ascends along the gradient."""

    rho: float = 0.3

    def shift(self, params, grads, ctx):
        return optax.tree.add_scale(params, self.rho / (optax.tree.norm(grads) + 1e-12), grads)


@part
class Ahead(Shift):
    """Moves on by as much as the client has moved."""

    needs_gradient = False

    def shift(self, params, grads, ctx):
        assert grads is None
        return jax.tree.map(lambda now, start: 1.5 * now - 0.5 * start, params, ctx.start.params)


@part
class Slower(Steps, Gradient, Memory):
    """Shrinks gradients by the classes seen in the steps before; the client remembers them."""

    def init_steps(self, ctx):
        return ctx.memory[self.slot] / 2

    def next_steps(self, carry, outputs, batch, ctx):
        return carry + (jax.nn.one_hot(batch.labels, carry.shape[-1]) * batch.real[:, None]).sum(0)

    def gradient(self, grads, params, ctx):
        seen = ctx.steps_state[self.slot]
        return jax.tree.map(lambda leaf: leaf / (1 + 0.1 * seen[0] + 0.01 * seen.sum()), grads)

    def init_memory(self, variables):
        return jnp.zeros(variables.params["w2"].shape[-1])

    def remember(self, memory, outcome):
        return outcome.ctx.steps_state[self.slot]


def gradient_of(weights, images, labels, error_of):
    features, logits = reference.forward(weights, images)
    error = error_of(reference.softmax(logits), np.eye(logits.shape[1])[labels]) / len(labels)
    return {"w1": images.T @ ((error @ weights["w2"].T) * (1 - features**2)), "w2": features.T @ error}


def cross_entropy(probabilities, wanted):
    return probabilities - wanted


def brier(probabilities, wanted):
    distance = 2 * (probabilities - wanted)
    return probabilities * (distance - (probabilities * distance).sum(1, keepdims=True))


def plain(weights, received, images, labels):
    return gradient_of(weights, images, labels, cross_entropy)


def sam(weights, received, images, labels):
    first = plain(weights, received, images, labels)
    norm = np.sqrt(sum((g**2).sum() for g in first.values()))
    return plain({k: w + 0.3 * first[k] / norm for k, w in weights.items()}, received, images, labels)


def ahead(weights, received, images, labels):
    return plain({k: 1.5 * w - 0.5 * received[k] for k, w in weights.items()}, received, images, labels)


def trained(received, client, number, gradient, factor=lambda labels: 1.0):
    data = toys.federation()
    flat, weights = data.images.reshape(len(data.images), -1).astype(float), dict(received)
    rate = float64.OPTIONS.rate * float64.OPTIONS.decay**number
    for rows in reference.draws(data, SEED, number, client, float64.OPTIONS):
        grad, share = gradient(weights, received, flat[rows], data.labels[rows]), factor(data.labels[rows])
        weights = {k: weights[k] - rate * share * grad[k] for k in weights}
    return weights


CASES = {
    "criterion": (Brier(), lambda w, start, x, y: gradient_of(w, x, y, brier)),
    "shift": (Sam(), sam),
    "shift without gradient": (Ahead(), ahead),
}
LANES = {"execution": Execution(strategy="vmap", devices=2, chunk=2)}


@pytest.mark.parametrize("name", CASES)
def test_part_equals_its_transcription(double, name):
    own, gradient = CASES[name]
    sim = float64.simulation(Recipe("mine", (own,)))
    weights = float64.initial(sim)
    for number, cohort in float64.cohorts(sim):
        models = {c: trained(weights, c, number, gradient) for c in cohort}
        weights = float64.mean(float64.by_size(cohort), models)
    float64.assert_equal(float64.run(sim).variables.params, weights)


def test_parts_of_two_classes_are_two_structures():
    structures = [jax.tree.structure(own) for own in (Brier(), Ahead(), Slower(), Sam(), recipes.fedprox().parts[0])]
    assert all(one != other for one in structures for other in structures if one is not other)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{}, LANES], ids=["one at a time", "lanes"])
def test_what_is_carried_through_steps_begins_afresh_and_can_be_remembered(double, layout):
    sim = float64.simulation(Recipe("mine", (Slower(),)), **layout)
    weights, memory = float64.initial(sim), {c: np.zeros(toys.CLASSES) for c in range(float64.N)}
    for number, cohort in float64.cohorts(sim):
        models = {}
        for c in cohort:
            seen = [memory[c] / 2]

            def factor(labels, seen=seen):
                share = 1 / (1 + 0.1 * seen[-1][0] + 0.01 * seen[-1].sum())
                seen.append(seen[-1] + np.bincount(labels, minlength=toys.CLASSES))
                return share

            models[c] = trained(weights, c, number, plain, factor)
            memory[c] = seen[-1]
        weights = float64.mean(float64.by_size(cohort), models)
    state = float64.run(sim)
    float64.assert_equal(state.variables.params, weights)
    assert np.allclose(state.memory["Slower"], np.stack(list(memory.values())))


@part
class Closest(Closing):
    """Classifies by the nearest class mean of all clients' features."""

    def closing_report(self, outcome):
        def add(sums, batch):
            outputs, _ = outcome.ctx.model.apply(outcome.end, batch.images, train=False)
            labels = jax.nn.one_hot(batch.labels, outputs.logits.shape[-1]) * batch.real[:, None]
            return sums[0] + labels.T @ outputs.features, sums[1] + labels.sum(0)

        assert outcome.steps is not None
        return over_rows(add, (jnp.zeros((toys.CLASSES, toys.FEATURES)), jnp.zeros(toys.CLASSES)), outcome.ctx)

    def close(self, key, variables, reports, server):
        sums, counts = reports
        return variables._replace(params={**variables.params, "w2": (sums / counts[:, None]).T})


@pytest.mark.parametrize("layout", [{}, pytest.param(LANES, marks=pytest.mark.slow)], ids=["one device", "two devices"])
def test_a_closing_round_hears_every_client_once(layout):
    sim = float64.simulation(Recipe("closest", (Closest(),)), rounds=1, **layout)
    done = sim.advance(SEED, sim.init(SEED))
    params, data = jax.device_get(done.snapshot.state.variables.params), toys.federation()
    features = np.tanh(data.images.reshape(len(data.images), -1) @ params["w1"])
    own = data.labels[data.rows], features[data.rows]
    means = np.stack([own[1][own[0] == c].mean(0) for c in range(toys.CLASSES)])
    wanted = np.zeros((toys.CLASSES, toys.CLASSES), int)
    np.add.at(wanted, (data.labels, (features @ means.T).argmax(1)), 1)
    assert done.confusion.tolist() == wanted.tolist()
    alone = float64.simulation(recipes.fedavg(), rounds=1)
    plain = alone.advance(SEED, alone.init(SEED))
    assert plain.confusion.tolist() != wanted.tolist()
    assert toys.largest_difference(plain.snapshot.state.variables, done.snapshot.state.variables) < 1e-6


@part
class Again(Step):
    """Averages the updates once more, by the clients' losses, and scales the mean by a draw.

    Attributes:
        noise: the largest share that the draw adds.
    """

    noise: float = 0.0

    needs_deltas = True

    def step(self, delta, server):
        found = server.aggregate
        losses = jnp.where(found.weights > 0, found.losses[:, 0], 0.0)
        share = (1 + self.noise * jax.random.uniform(server.key)) * losses / losses.sum()
        return jax.tree.map(lambda leaf: jnp.tensordot(share, leaf, 1), found.deltas), server.state


def test_a_class_without_the_decorator_is_refused():
    class Bare(Step):
        share: float = 0.5

        def step(self, delta, server):
            return delta, server.state

    with pytest.raises(ValueError, match=r"Bare: not declared as a part: put @part.* above class Bare"):
        Bare(share=0.1)


@pytest.mark.slow
def test_a_server_part_sees_updates_and_losses_of_every_client(double):
    sim = float64.simulation(Recipe("mine", (Again(),)))
    weights = float64.initial(sim)
    for number, cohort in float64.cohorts(sim):
        losses = {c: [] for c in cohort}

        def gradient(weights, received, images, labels, seen):
            chosen = reference.softmax(reference.forward(weights, images)[1])[np.arange(len(labels)), labels]
            seen.append(-np.log(chosen).mean())
            return plain(weights, received, images, labels)

        models = {c: trained(weights, c, number, partial(gradient, seen=losses[c])) for c in cohort}
        mean = {c: np.mean(own) for c, own in losses.items()}
        weights = float64.mean({c: own / sum(mean.values()) for c, own in mean.items()}, models)
    float64.assert_equal(float64.run(sim).variables.params, weights)


PLAYED = [Brier(), Sam(), Ahead(), Closest(), Again(0.1)]


@pytest.mark.slow
@pytest.mark.parametrize("own", PLAYED, ids=repr)
def test_parts_pass_the_battery(own):
    options = {"model": toys.network(), "federation": toys.federation(), "test": toys.test_set()}
    report = check_recipe(Recipe("mine", (own,)), **options)
    assert not report.failed
