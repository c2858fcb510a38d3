"""FedAvg-FT and FedBABU: a classifier that the server fine-tunes, and one that clients never train."""

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
from methods import float64
from methods.heads import descended, flat, flat_images, gradient, head_gradient, network

from fedjax_bal.engine.device import purpose_key
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Participation
from fedjax_bal.parts import RefinedHead
from fedjax_bal.recipes import RECIPES, combine, fedavg, fedavg_ft, fedbabu, scaffold
from fedjax_bal.selection import bernoulli

SEED = float64.SEED
OPTIONS = reference.Options(rate=0.2, decay=0.9, momentum=0.5, weight_decay=0.1)
TUNING = {"epochs": 3, "batch_size": 5, "learning_rate": 0.3, "momentum": 0.6}
CLIENTS = Participation(clients_per_round=6, availability=bernoulli(0.8), delivery=bernoulli(0.8))
ALL = ("body", "kernel", "bias")

pytestmark = pytest.mark.usefixtures("double")


@cache
def federation():
    """The toy federation, whose server holds the rows that no client owns."""
    plain = toys.federation()
    spare = np.setdiff1d(np.arange(len(plain.labels)), plain.rows).astype(np.int32)
    assert len(spare) % TUNING["batch_size"] > 0
    return plain._replace(auxiliary={"balanced": spare[::-1]})


def simulation(recipe, **changes):
    given = {"local": float64.local_training(OPTIONS), "participation": CLIENTS}
    return float64.simulation(recipe, **({"model": network(), "federation": federation()} | given | changes))


@cache
def compiled(recipe):
    """A recipe's program, shared by all tests that change only its numbers."""
    sim = simulation(recipe)
    sim.compile()
    return sim


def run(sim):
    """The start, the end and the records of a run."""
    return jax.device_get(sim.init(SEED).state.variables.params), *float64.finished(sim)[:2]


def train(received, client, number, trained):
    """Local SGD on the named parameters alone."""
    of_some = lambda *batch: {k: slope for k, slope in gradient(*batch).items() if k in trained}
    return float64.train(received, client, number, OPTIONS, gradient=of_some)[0]


def tuned(w, number, purpose):
    """The classifier after the server's epochs, in the library's order of rows."""
    key = purpose_key(jax.random.fold_in(jax.random.key(SEED), number), purpose)
    rows, velocity = federation().auxiliary["balanced"], {"kernel": 0.0, "bias": 0.0}
    for epoch in range(TUNING["epochs"]):
        order = rows[np.asarray(jax.random.permutation(jax.random.fold_in(key, epoch), len(rows)))]
        for start in range(0, len(rows), TUNING["batch_size"]):
            batch = order[start : start + TUNING["batch_size"]]
            grad, _ = head_gradient(np.tanh(flat_images()[batch] @ w["body"]), federation().labels[batch], w)
            velocity = {k: TUNING["momentum"] * velocity[k] + grad[k] for k in velocity}
            w = descended(w, velocity, TUNING["learning_rate"])
    return w


def check_run(sim, trained, refined=lambda w, number: w, shown=lambda w, number: w):
    """Compares model and test losses with the transcription; returns the start and the end of the run.

    `refined` changes the model after a round, `shown` only what the test set sees.
    """
    start, state, records = run(sim)
    w, (images, labels) = flat(start), toys.test_set()
    for (number, cohort), record in zip(float64.cohorts(sim), records, strict=True):
        mean = float64.mean(float64.by_size(cohort), {c: train(w, c, number, trained) for c in cohort})
        w = refined(w | {k: mean[k] for k in trained}, number)
        seen = shown(w, number)
        logits = np.tanh(images.reshape(len(images), -1).astype(float) @ seen["body"]) @ seen["kernel"] + seen["bias"]
        loss = -np.log(reference.softmax(logits)[np.arange(len(labels)), labels]).mean()
        assert record["test_loss"] == pytest.approx(loss, rel=1e-8)
    float64.assert_equal(flat(state.variables.params), w)
    return start, state.variables.params


@pytest.mark.slow
@pytest.mark.parametrize("tunes", [False, True], ids=["as trained", "shown fine-tuned"])
def test_fedbabu_trains_the_body_and_leaves_every_bit_of_the_classifier(tunes):
    named = {f"fine_tune_{key}": value for key, value in TUNING.items()} if tunes else {}
    shown = {"shown": lambda w, number: tuned(w, number, "present/ShownHead")} if tunes else {}
    start, end = check_run(simulation(fedbabu(**named)), ("body",), **shown)
    assert toys.largest_difference(end["head"], start["head"]) == 0
    assert np.abs(end["body"] - start["body"]).max() > 1e-2


@pytest.mark.slow
def test_fedavg_ft_equals_its_transcription():
    refined = lambda w, number: tuned(w, number, "refine/RefinedHead")
    check_run(compiled(fedavg_ft(**TUNING)), ALL, refined)


@pytest.mark.slow
def test_a_frozen_classifier_stays_so_under_control_variates_and_decaying_optimizers():
    adamw = optimizer("adamw", 0.1, weight_decay=0.3)
    sgd = optimizer("sgd", 0.1, weight_decay=0.3)
    for recipe, local in ((fedbabu(), adamw), (combine(scaffold(), fedbabu()), sgd)):
        start, state, _ = run(simulation(recipe, local=replace(float64.local_training(OPTIONS), optimizer=local)))
        assert toys.largest_difference(state.variables.params["head"], start["head"]) == 0
        assert toys.largest_difference(state.variables.params["body"], start["body"]) > 1e-3


@pytest.mark.slow
def test_fine_tuning_at_a_rate_of_zero_is_fedavg_and_happens_only_where_something_arrives():
    tuning = compiled(fedavg_ft(**TUNING))
    still = fedavg_ft(**(TUNING | {"learning_rate": 0.0})).parts
    _, got, _ = run(float64.like(tuning, setting=dataclasses.replace(tuning.setting, parts=still)))
    assert toys.largest_difference(got.variables, run(simulation(fedavg()))[1].variables) < 1e-14
    start, state, _ = run(float64.like(tuning, participation=Participation(delivery=bernoulli(1e-12))))
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
@pytest.mark.parametrize("auxiliary", [{}, {"balanced": np.zeros(0, np.int32)}], ids=["none", "empty"])
def test_a_federation_without_rows_for_it_is_refused(recipe, auxiliary):
    with pytest.raises(ValueError, match=r"must have rows in 'balanced' .* set auxiliary.per_class"):
        simulation(recipe, federation=toys.federation()._replace(auxiliary=auxiliary))


@pytest.mark.parametrize("name", ["ccvr", "creff", "fedavg_ft", "fedbabu", "fedgrab", "fedloge", "fedrod", "rucr"])
def test_a_model_without_a_named_classifier_is_refused(name):
    message = r"received parameters \['w1', 'w2'\], must have the classifier's under 'head'"
    with pytest.raises(ValueError, match=message):
        simulation(RECIPES[name](), model=toys.network()).compile()
