"""FedBABU and FedAvg-FT: a classifier that clients never train, and one that the server fine-tunes."""

import dataclasses
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toys
from parts import float64

from fedjax_bal.engine.device.keys import purpose_key
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Participation
from fedjax_bal.parts import EqualWeights, RefinedHead
from fedjax_bal.recipes import RECIPES, combine, fedavg, fedavg_ft, fedbabu, scaffold
from fedjax_bal.selection import bernoulli
from fedjax_bal.types import Model, Outputs, Variables

ROUNDS, SEED = 3, 3
OPTIONS = reference.Options(rate=0.2, decay=0.9, momentum=0.5, weight_decay=0.1)
TUNING = {"epochs": 3, "batch_size": 5, "learning_rate": 0.3, "momentum": 0.6}


def test_updates_that_count_weigh_the_same():
    cohort = SimpleNamespace(sizes=jnp.array([300.0, 0.0, 7.0]))
    assert EqualWeights().weigh(cohort.sizes, cohort, None).tolist() == [1.0, 0.0, 1.0]
    assert EqualWeights().weigh(cohort.sizes / 4, cohort, None).tolist() == [0.25, 0.0, 0.25]


pytestmark = pytest.mark.usefixtures("double")


@cache
def network():
    """tanh(x W) K + b, the classifier under its usual name."""

    def init(key):
        first, second, third = jax.random.split(key, 3)
        head = {
            "kernel": jax.random.normal(second, (toys.FEATURES, toys.CLASSES)) * 0.4,
            "bias": jax.random.normal(third, (toys.CLASSES,)) * 0.4,
        }
        return Variables({"body": jax.random.normal(first, (toys.WIDTH, toys.FEATURES)) * 0.4, "head": head}, {})

    def classify(params, features):
        return features @ params["head"]["kernel"] + params["head"]["bias"]

    def apply(variables, images, *, train, key=None, real=None):
        features = jnp.tanh(images.reshape(images.shape[0], -1) @ variables.params["body"])
        return Outputs(classify(variables.params, features), features), variables

    return Model(init, apply, classify, "headed", toys.CLASSES, (1, toys.WIDTH, 1))


@cache
def federation():
    """The toy federation, whose server holds the rows that no client owns."""
    plain = toys.federation()
    spare = np.setdiff1d(np.arange(len(plain.labels)), plain.rows).astype(np.int32)
    assert len(spare) % TUNING["batch_size"] > 0
    return plain._replace(auxiliary={"balanced": spare[::-1]})


def simulation(recipe, model=None, data=None, local=None):
    clients = Participation(clients_per_round=6, availability=bernoulli(0.8), delivery=bernoulli(0.8))
    given = {"local": local or float64.local_training(OPTIONS), "participation": clients}
    return float64.simulation(recipe, model=model or network(), federation=data or federation(), **given)


@cache
def compiled(recipe):
    """A recipe's program, shared by all tests that change only its numbers."""
    sim = simulation(recipe)
    sim.compile()
    return sim


def like(sim, **changes):
    """The same program with other numbers."""
    other = dataclasses.replace(sim, **changes)
    other._compiled, other._traffic = sim._compiled, sim._traffic
    return other


def run(sim):
    """The start, the end and the records of a run."""
    start = jax.device_get(sim.init(SEED).state.variables.params)
    advance = sim.advance(SEED, sim.init(SEED))
    return start, jax.device_get(advance.snapshot.state), advance.records


def flat(params):
    return {k: np.asarray(v, np.float64) for k, v in {"body": params["body"], **params["head"]}.items()}


def relative_error(got, expected):
    scale = max(np.abs(leaf).max() for leaf in expected.values())
    return max(np.abs(got[name] - expected[name]).max() for name in expected) / scale


# The transcription.


def pixels():
    return federation().images.reshape(len(federation().images), -1).astype(np.float64)


def slopes(w, images, labels):
    features = np.tanh(images @ w["body"])
    error = reference.softmax(features @ w["kernel"] + w["bias"]) - np.eye(toys.CLASSES)[labels]
    error /= len(labels)
    body = images.T @ (error @ w["kernel"].T * (1 - features**2))
    return {"body": body, "kernel": features.T @ error, "bias": error.sum(0)}


def train(received, client, number, trained):
    """Local SGD on the named parameters alone."""
    w, velocity = dict(received), dict.fromkeys(trained, 0.0)
    for rows in reference.draws(federation(), SEED, number, client, OPTIONS):
        grad = slopes(w, pixels()[rows], federation().labels[rows])
        for k in trained:
            velocity[k] = OPTIONS.momentum * velocity[k] + grad[k] + OPTIONS.weight_decay * w[k]
        w |= {k: w[k] - OPTIONS.rate * OPTIONS.decay**number * velocity[k] for k in trained}
    return w


def tuned(w, number, purpose):
    """The classifier after the server's epochs, in the library's order of rows."""
    key = purpose_key(jax.random.fold_in(jax.random.key(SEED), number), purpose)
    rows = federation().auxiliary["balanced"]
    w, velocity = dict(w), {"kernel": 0.0, "bias": 0.0}
    for epoch in range(TUNING["epochs"]):
        order = rows[np.asarray(jax.random.permutation(jax.random.fold_in(key, epoch), len(rows)))]
        assert sorted(order) == sorted(rows)
        for start in range(0, len(rows), TUNING["batch_size"]):
            batch = order[start : start + TUNING["batch_size"]]
            grad = slopes(w, pixels()[batch], federation().labels[batch])
            for k in velocity:
                velocity[k] = TUNING["momentum"] * velocity[k] + grad[k]
            w |= {k: w[k] - TUNING["learning_rate"] * velocity[k] for k in velocity}
    return w


def transcription(start, trained, after_round=lambda w, number: w):
    """The global model after each round."""
    w, models = flat(start), []
    sim = compiled(fedavg())
    for number in range(ROUNDS):
        plan, _ = sim.plan(SEED, number, ())
        cohort = [int(client) for client in plan.clients[plan.delivered]]
        total = sum(toys.SIZES[c] for c in cohort)
        results = {c: train(w, c, number, trained) for c in cohort}
        w = {k: sum(toys.SIZES[c] / total * results[c][k] for c in cohort) if k in trained else w[k] for k in w}
        w = after_round(w, number)
        models.append(w)
    return models


def loss_on_tests(w):
    images, labels = toys.test_set()
    features = np.tanh(images.reshape(len(images), -1).astype(np.float64) @ w["body"])
    chances = reference.softmax(features @ w["kernel"] + w["bias"])
    return -np.log(chances[np.arange(len(labels)), labels]).mean()


def check_records(records, models):
    for record, w in zip(records, models, strict=True):
        assert record["test_loss"] == pytest.approx(loss_on_tests(w), rel=1e-8)


@pytest.mark.slow
def test_fedbabu_trains_the_body_and_leaves_every_bit_of_the_classifier():
    start, state, records = run(compiled(fedbabu()))
    got = state.variables.params
    for name, leaf in start["head"].items():
        assert np.array_equal(got["head"][name], leaf)
    models = transcription(start, ("body",))
    assert relative_error(flat(got), models[-1]) < 1e-8
    assert np.abs(got["body"] - start["body"]).max() > 1e-2
    check_records(records, models)


@pytest.mark.slow
def test_a_frozen_classifier_stays_so_under_control_variates_and_decaying_optimizers():
    adamw = optimizer("adamw", 0.1, weight_decay=0.3)
    sgd = optimizer("sgd", 0.1, weight_decay=0.3)
    for recipe, local in ((fedbabu(), adamw), (combine(scaffold(), fedbabu()), sgd)):
        start, state, _ = run(simulation(recipe, local=replace(float64.local_training(OPTIONS), optimizer=local)))
        assert toys.largest_difference(state.variables.params["head"], start["head"]) == 0
        assert toys.largest_difference(state.variables.params["body"], start["body"]) > 1e-3


@pytest.mark.slow
def test_fedbabu_shows_a_fine_tuned_classifier_and_goes_on_without_it():
    named = {f"fine_tune_{key}": value for key, value in TUNING.items()}
    start, state, records = run(simulation(fedbabu(**named)))
    models = transcription(start, ("body",))
    assert relative_error(flat(state.variables.params), models[-1]) < 1e-8
    assert toys.largest_difference(state.variables.params["head"], start["head"]) == 0
    check_records(records, [tuned(w, number, "present/ShownHead") for number, w in enumerate(models)])


@pytest.mark.slow
def test_fedavg_ft_equals_its_transcription():
    start, state, records = run(compiled(fedavg_ft(**TUNING)))
    models = transcription(start, ("body", "kernel", "bias"), lambda w, number: tuned(w, number, "refine/RefinedHead"))
    assert relative_error(flat(state.variables.params), models[-1]) < 1e-8
    check_records(records, models)


@pytest.mark.slow
def test_fine_tuning_at_a_rate_of_zero_is_fedavg():
    tuning = compiled(fedavg_ft(**TUNING))
    still = fedavg_ft(**(TUNING | {"learning_rate": 0.0})).parts
    _, got, _ = run(like(tuning, setting=dataclasses.replace(tuning.setting, parts=still)))
    _, want, _ = run(compiled(fedavg()))
    assert toys.largest_difference(got.variables, want.variables) < 1e-14


@pytest.mark.slow
def test_a_round_in_which_nothing_arrives_fine_tunes_nothing():
    start, state, _ = run(like(compiled(fedavg_ft(**TUNING)), participation=Participation(delivery=bernoulli(1e-12))))
    assert toys.largest_difference(state.variables.params, start) == 0


@pytest.mark.slow
def test_a_batch_larger_than_the_set_takes_all_of_it():
    variables, key = network().init(jax.random.key(0)), jax.random.key(1)
    server = SimpleNamespace(model=network(), federation=jax.tree.map(jnp.asarray, federation()))
    whole, larger = (RefinedHead(2, size, 0.3, 0.6).refine(key, variables, server) for size in (13, 500))
    assert len(server.federation.auxiliary["balanced"]) == 13
    assert toys.largest_difference(whole, larger) == 0
    assert toys.largest_difference(whole, variables) > 1e-3


@pytest.mark.parametrize("recipe", [fedavg_ft(), fedbabu(fine_tune_epochs=1)], ids=["fedavg_ft", "fedbabu"])
def test_a_federation_without_rows_for_it_is_refused(recipe):
    for auxiliary in ({}, {"balanced": np.zeros(0, np.int32)}):
        data = toys.federation()._replace(auxiliary=auxiliary)
        with pytest.raises(ValueError, match=r"must have rows in 'balanced' .* set auxiliary.per_class"):
            simulation(recipe, data=data)


@pytest.mark.parametrize("name", ["ccvr", "creff", "fedavg_ft", "fedbabu", "fedgrab", "fedloge", "fedrod"])
def test_a_model_without_a_named_classifier_is_refused(name):
    with pytest.raises(
        ValueError, match=r"received parameters \['w1', 'w2'\], must have the classifier's under 'head'"
    ):
        simulation(RECIPES[name](), model=toys.network()).compile()
