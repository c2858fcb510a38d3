"""Leaves that are clipped, shifted, decayed and trained by themselves: against steps written by hand, and without."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import quick
import reference
import table
import toys
from golden import cases
from methods.heads import network
from rounding import DOUBLE, FORMULA, STEPS

from fedjax_bal import models, recipes
from fedjax_bal.engine.device import ChainClients, RoundInputs, init_state, training_key
from fedjax_bal.engine.device.chain import client_context, finish_client
from fedjax_bal.engine.device.leaves import keep, moving_leaves
from fedjax_bal.engine.device.local_training import train_locally
from fedjax_bal.engine.device.round import broadcast
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.metrics import HUGE
from fedjax_bal.optim import optimizer
from fedjax_bal.options import Execution, LocalTraining, Participation
from fedjax_bal.parts import (
    Deliver,
    Gradient,
    Loss,
    Memory,
    Prepare,
    Refine,
    Report,
    Separate,
    Server,
    Shift,
    Start,
    Step,
    Steps,
    Update,
    part,
)
from fedjax_bal.recipes import Recipe, combine

SEED, CLIENT, EPOCHS, BATCH = 3, 2, 2, 8
RATE, MOMENTUM, DECAY, CLIP = 0.3, 0.5, 0.2, 0.15
SGD = optimizer("sgd", RATE, momentum=MOMENTUM, weight_decay=DECAY, clip_norm=CLIP)
BODY, HEAD = ("body",), ("head.bias", "head.kernel")
MODEL = BODY + HEAD


class Trained(NamedTuple):
    """One client's parameters by name, before and after its training, and the norm by which they are huge."""

    start: dict[str, np.ndarray]
    end: dict[str, np.ndarray]
    norm: float


def trained(recipe, local=SGD):
    """What a client makes of the initial model in four local steps."""
    sim = build_simulation(
        recipe, network(), toys.federation(), toys.test_set(), rounds=1,
        participation=Participation(clients_per_round=1),
        local=LocalTraining(batch_size=BATCH, epochs=EPOCHS, optimizer=local),
        execution=Execution(strategy="map", devices=1),
    )  # fmt: skip

    def train(setting, key, federation):
        state, number = init_state(setting, key, federation), jnp.zeros((), jnp.int32)
        sent = broadcast(setting, key, number, state, federation)[1]
        shared = RoundInputs(key, number, state.variables, sent, federation)
        memory = jax.tree.map(lambda leaf: leaf[0], state.memory)
        client = ChainClients(jnp.asarray(CLIENT), jnp.array(True), memory)
        ctx = client_context(setting, shared, state.variables, client)
        own = training_key(key, number, client.id, number)
        outcome, last = train_locally(setting, own, ctx, jnp.asarray(max(toys.SIZES)), None)
        params, moving = outcome.end.params, moving_leaves(setting, outcome.end.params)
        length = optax.tree.norm(keep(moving, params))
        # The largest norm that is allowed is a little above or below that of what is trained.
        broken = [
            finish_client(setting, own, client, outcome, last.loss_sum)[1][1].broken
            for own in (shared._replace(largest_norm=factor * length) for factor in (1.001, 0.999))
        ]
        return outcome.start.params, params, (length, broken)

    federation = jax.tree.map(jnp.asarray, sim.federation)
    start, end, (length, broken) = jax.device_get(jax.jit(train)(sim.setting, jax.random.key(SEED), federation))
    assert broken == [0, HUGE]
    return Trained(by_name(start), by_name(end), float(length))


def by_name(params):
    """The leaves of a tree by their paths."""
    named = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in named}


class Objective(NamedTuple):
    """Parameters with the loss that they are trained on, a function of all parameters, those received, and a batch."""

    names: tuple[str, ...]
    loss: Callable
    rho: float = 0.0
    on: Callable[[int], bool] = lambda step: True


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def features(w, images, model=""):
    return jnp.tanh(images @ w[f"{model}body"])


def logits_of(w, inputs, head="head"):
    return inputs @ w[f"{head}.kernel"] + w[f"{head}.bias"]


def plain(w, received, images, labels):
    return cross_entropy(logits_of(w, features(w, images)), labels)


def near(w, received, images, labels):
    """FedProx with mu = 2."""
    return plain(w, received, images, labels) + sum(((w[name] - received[name]) ** 2).sum() for name in MODEL)


def own_model(w, received, images, labels):
    """Ditto with lambda = 0.7."""
    pull = sum(((w[f"own_model.{name}"] - received[name]) ** 2).sum() for name in MODEL)
    return cross_entropy(logits_of(w, features(w, images, "own_model."), "own_model.head"), labels) + 0.35 * pull


def balanced(w, received, images, labels):
    counts = toys.federation().class_counts[CLIENT]
    with np.errstate(divide="ignore"):
        return cross_entropy(logits_of(w, features(w, images)) + np.log(counts / counts.sum()), labels)


def residual(w, received, images, labels):
    """FedROD's own classifier."""
    inputs = features(w, images)
    return cross_entropy(logits_of(w, inputs) + logits_of(w, inputs, "own_head"), labels)


def further(head):
    """FedLoGe's classifiers."""
    return lambda w, received, images, labels: cross_entropy(logits_of(w, features(w, images), head), labels)


def cosine(w, received, images, labels):
    """FedNH's cosines to prototypes."""
    unit = lambda vectors, axis: vectors / jnp.linalg.norm(vectors, axis=axis, keepdims=True)
    cosines = unit(features(w, images), 1) @ unit(w["head.kernel"], 0)
    return cross_entropy(w["head.scale"] * cosines, labels)


FIRST_HALF, SECOND_HALF = (lambda step: step < 2), (lambda step: step >= 2)
OWN_MODEL = tuple(f"own_model.{name}" for name in MODEL)
BY_HAND = {
    "fedprox+ditto": (
        combine(recipes.fedprox(2.0), recipes.ditto(0.7)),
        [Objective(MODEL, near), Objective(OWN_MODEL, own_model)],
    ),
    "fedrod": (
        recipes.fedrod(),
        [Objective(MODEL, balanced), Objective(("own_head.bias", "own_head.kernel"), residual)],
    ),
    "fedloge": (
        recipes.fedloge(0.3, steps=3),
        [Objective(BODY, plain)]
        + [Objective((f"{head}.bias", f"{head}.kernel"), further(head)) for head in ("global_head", "own_head")],
    ),
    "fednh": (recipes.fednh(), [Objective(("body", "head.scale"), cosine)]),
    "fedsam+fedrep": (
        combine(recipes.fedsam(0.4), recipes.fedrep()),
        [Objective(HEAD, plain, 0.4, FIRST_HALF), Objective(BODY, plain, 0.4, SECOND_HALF)],
    ),
    "fedper": (recipes.fedper(), [Objective(MODEL, plain)]),
}
"""Methods that train something by itself or not at all, and FedPer, which trains all of a client's model together."""


def by_hand(objectives, start, step):
    """The parameters after local training; `step(objective, gradient, weights)` gives an objective's new ones."""
    rows_of, weights = toys.federation(), dict(start)
    images = rows_of.images.reshape(len(rows_of.images), -1).astype(float)
    options = reference.Options(batch_size=BATCH, epochs=EPOCHS)
    slopes = [
        jax.jit(jax.grad(lambda at, w, *batch, own=own: own.loss({**w, **at}, start, *batch))) for own in objectives
    ]
    for number, rows in enumerate(reference.draws(rows_of, SEED, 0, CLIENT, options)):
        new, batch = dict(weights), (images[rows], rows_of.labels[rows])
        for own, slope in zip(objectives, slopes, strict=True):
            if own.on(number):
                given = (weights, *batch)
                new |= step(own, lambda at, slope=slope, given=given: jax.device_get(slope(at, *given)), weights)
        weights = new
    return weights


def norm(tree):
    return np.sqrt(sum((leaf**2).sum() for leaf in tree.values()))


def sgd(clipped):
    """Steps with momentum and decay; whether each gradient was longer than the limit goes to `clipped`."""
    velocity = {}

    def step(own, gradient, weights):
        here = {name: weights[name] for name in own.names}
        grads = gradient(here)
        if own.rho:
            length = norm(grads) + 1e-7
            grads = gradient({name: here[name] + own.rho / length * grads[name] for name in here})
        clipped.append(norm(grads) > CLIP)
        for name in here:
            slope = min(1.0, CLIP / norm(grads)) * grads[name] + DECAY * here[name]
            velocity[name] = MOMENTUM * velocity.get(name, 0.0) + slope
        return {name: here[name] - RATE * velocity[name] for name in here}

    return step


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HAND)
def test_steps_with_clipping_momentum_and_decay_are_those_written_by_hand(name, double):
    recipe, objectives = BY_HAND[name]
    found, clipped = trained(recipe), []
    wanted = by_hand(objectives, found.start, sgd(clipped))
    assert sum(clipped) > 1
    moving = {leaf for own in objectives for leaf in own.names}
    for leaf, end in found.end.items():
        np.testing.assert_allclose(end, wanted[leaf], rtol=1e-9, atol=DOUBLE)
        assert (end == found.start[leaf]).all() == (leaf not in moving)
    counted = {leaf: end for leaf, end in found.end.items() if leaf in moving and not leaf.startswith("own_")}
    assert found.norm == pytest.approx(norm(counted))


@pytest.mark.slow
def test_optimizer_states_of_what_is_frozen_stand_still(double):
    found, moments = trained(recipes.fedrep(), optimizer("adam", 0.1, b1=0.8, b2=0.9, eps=1e-3)), {}

    def adam(own, gradient, weights):
        here = {name: weights[name] for name in own.names}
        new, grads = {}, gradient(here)
        for name in here:
            count, m, v = moments.get(name, (0, 0.0, 0.0))
            count, m, v = count + 1, 0.8 * m + 0.2 * grads[name], 0.9 * v + 0.1 * grads[name] ** 2
            moments[name] = count, m, v
            new[name] = here[name] - 0.1 * (m / (1 - 0.8**count)) / (np.sqrt(v / (1 - 0.9**count)) + 1e-3)
        return new

    wanted = by_hand(BY_HAND["fedsam+fedrep"][1], found.start, adam)
    assert {count for count, *_ in moments.values()} == {2}  # the body's first step is its own, not the third one's
    for leaf, end in found.end.items():
        np.testing.assert_allclose(end, wanted[leaf], rtol=1e-9)


@pytest.mark.slow
def test_clipping_within_an_optax_transformation_is_that_of_the_package(double):
    recipe = recipes.fedrep()
    ours = trained(recipe, optimizer("sgd", RATE, momentum=MOMENTUM, clip_norm=CLIP))
    theirs = trained(recipe, optax.chain(optax.clip_by_global_norm(CLIP), optax.sgd(RATE, MOMENTUM)))
    assert toys.largest_difference(ours.end, theirs.end) < DOUBLE


@part
class Misnamed(Separate):
    """Names an entry that it doesn't add."""

    own = ("other_head",)

    def own_model(self, variables):
        return variables


def test_entries_that_the_parameters_lack_are_refused():
    with pytest.raises(ValueError, match=r"Separate: received the entries \['other_head'\]"):
        trained(Recipe("misnamed", (Misnamed(),)))


@part
class Pushed(Gradient):
    """Adds a constant to the gradient."""

    def gradient(self, grads, params, ctx):
        return jax.tree.map(lambda leaf: leaf + 5.0, grads)


@pytest.mark.slow
def test_gradients_are_clipped_before_or_after_parts_change_them(double):
    steps = {}
    for where in ("start", "end"):
        local = optimizer("sgd", 1.0, clip_norm=CLIP, clip_at=where)
        found = trained(combine(recipes.fedbabu(), Recipe("pushed", (Pushed(),))), local)
        steps[where] = found.start["body"] - found.end["body"]
        assert (found.end["head.kernel"] == found.start["head.kernel"]).all()  # nothing of the push reaches it
    longest, size = 4 * CLIP, steps["end"].size
    assert np.linalg.norm(steps["end"]) <= longest * (1 + 1e-9)
    assert np.linalg.norm(steps["start"] - 4 * 5.0) <= longest * (1 + 1e-9)
    np.testing.assert_allclose(steps["end"], longest / np.sqrt(size), rtol=0.1)  # nearly all of it is the push
    with pytest.raises(ValueError, match="optimizer: clip_at: received 'middle'"):
        optimizer("sgd", 1.0, clip_at="middle")


@pytest.mark.slow
def test_the_server_s_decay_and_its_norms_leave_out_what_is_frozen_or_stays():
    federation = cases.federation(False)
    model = models.build("mlp", cases.CLASSES, federation.images.shape[1:], hidden=(3,))
    server = optax.chain(optax.add_decayed_weights(0.5), optax.clip_by_global_norm(0.2), optax.sgd(1.0))
    sim = build_simulation(
        combine(recipes.fedbabu(), recipes.ditto()), model, federation, cases.test_set(), rounds=1,
        local=LocalTraining(batch_size=4, optimizer=optimizer("sgd", 1e-6)),
        participation=Participation(clients_per_round=2), server_optimizer=server,
        execution=Execution(strategy="map", devices=1),
    )  # fmt: skip
    start = by_name(jax.device_get(sim.init(0).state.variables.params))
    end = by_name(table.finish(sim)[0].variables.params)
    body = {leaf: value for leaf, value in start.items() if leaf.startswith("body")}
    factor = 1 - 0.5 * min(1.0, 0.2 / (0.5 * norm(body)))  # clients move by next to nothing
    for leaf, value in start.items():
        np.testing.assert_allclose(end[leaf], (factor if leaf in body else 1.0) * value, atol=STEPS)
        assert leaf in body or (end[leaf] == value).all()


@part
class Everywhere(Loss, Shift, Gradient, Update, Start, Steps, Prepare, Memory, Report, Server, Step, Refine, Deliver):
    """Does something with all that is like parameters wherever it can see any; other entries would not fit together."""

    def init_server(self, server):
        return server.variables.params

    def broadcast(self, key, server):
        return server.state, optax.tree.add(server.state, server.variables.params)

    def update(self, key, server):
        seen = (server.variables.params, server.aggregate.delta, server.aggregate.reports[self.slot])
        return jax.tree.map(lambda *leaves: 0.1 * sum(leaves), server.state, *seen)

    def prepare(self, key, variables, ctx):
        return jax.tree.map(jnp.add, variables.params, ctx.broadcast[self.slot])

    def start(self, variables, ctx):
        params = jax.tree.map(
            lambda y, w, p: 0.9 * y + 0.05 * (w + p), variables.params, ctx.start.params, ctx.prepared[self.slot]
        )
        return variables._replace(params=params)

    def init_steps(self, ctx):
        return jax.tree.map(jnp.zeros_like, ctx.start.params)

    def next_steps(self, carry, outputs, batch, ctx):
        shift = optax.tree.zeros_like(carry) if ctx.shift is None else ctx.shift
        return jax.tree.map(lambda c, w, e: 0.5 * c + 0.1 * w + e, carry, ctx.start.params, shift)

    def loss(self, outputs, batch, params, ctx):
        apart = optax.tree.norm(jax.tree.map(jnp.subtract, params, ctx.steps_state[self.slot]))
        return 0.1 * apart + 0.1 * optax.tree.norm(ctx.memory[self.slot])

    def shift(self, params, grads, ctx):
        return jax.tree.map(lambda y, g: y + 0.1 * g / optax.tree.norm(grads), params, ctx.only_trained(grads))

    def gradient(self, grads, params, ctx):
        return jax.tree.map(lambda g, y: g / (1 + optax.tree.norm(grads)) + 0.1 * y, grads, params)

    def updates(self, updates, params, ctx):
        return jax.tree.map(lambda u, y: u / (1 + optax.tree.norm(updates)) - 0.01 * y, updates, params)

    def deliver(self, outcome):
        params = jax.tree.map(lambda y, w: 0.9 * y + 0.1 * w, outcome.end.params, outcome.start.params)
        return outcome.end._replace(params=params)

    def init_memory(self, variables):
        return jax.tree.map(jnp.ones_like, variables.params)

    def remember(self, memory, outcome):
        return jax.tree.map(lambda m, y: 0.5 * m + 0.1 * y, memory, outcome.end.params)

    def report(self, outcome):
        return jax.tree.map(jnp.subtract, outcome.end.params, outcome.ctx.start.params)

    def step(self, delta, server):
        return jax.tree.map(lambda d, s: d / (1 + optax.tree.norm(delta)) + 0.01 * s, delta, server.state), server.state

    def refine(self, key, variables, server):
        params = jax.tree.map(lambda w, d: w + 0.1 * d, variables.params, server.aggregate.delta)
        return variables._replace(params=params)


REPRESENTATIVES = ("rebafl+everywhere", "fednova+flcir+creff", "fedgrab+median", "fedwsq+astraea")
"""A part that plays most roles, methods that play the others, and one with chains."""


@pytest.mark.slow
@pytest.mark.parametrize("names", quick.only(REPRESENTATIVES, *REPRESENTATIVES[::3], others=pytest.mark.nightly))
def test_an_own_model_leaves_methods_as_they_are_without(names):
    federation = cases.federation(False)
    model = models.build("mlp", cases.CLASSES, federation.images.shape[1:], hidden=(3,))
    everywhere = {"everywhere": Recipe("everywhere", (Everywhere(),))}
    method = combine(
        *(everywhere.get(name) or recipes.RECIPES[name](**table.ACTIVE[name]) for name in names.split("+"))
    )

    def finished(recipe):
        sim = build_simulation(
            recipe, model, federation, cases.test_set(), rounds=3,
            execution=Execution(broken_clients="exclude", strategy="map", devices=1),
            participation=Participation(clients_per_round=3), local=LocalTraining(batch_size=4, optimizer=SGD),
        )  # fmt: skip
        state, records = table.finish(sim)
        params = {entry: leaf for entry, leaf in state.variables.params.items() if entry != "own_model"}
        return params, state.server, [(record["test_accuracy"], record["train_loss"]) for record in records]

    assert toys.largest_difference(finished(combine(method, recipes.ditto())), finished(method)) < FORMULA
