"""FedROD: against a transcription in NumPy."""

from itertools import pairwise

import jax
import numpy as np
import pytest
import toys
from parts import float64
from parts.test_heads import network
from parts.test_personal import federation
from reference import draws, softmax

from fedjax_bal import models
from fedjax_bal.engine.device import PERSONAL
from fedjax_bal.recipes import balanced_softmax, combine, creff, ditto, fedloge, fednh, fedper, fedrod, moon, rebafl

SEED, C, F = float64.SEED, toys.CLASSES, toys.FEATURES


pytestmark = pytest.mark.usefixtures("double")


def as_numpy(tree):
    return jax.tree.map(np.asarray, jax.device_get(tree))


def flat_images():
    return toys.federation().images.reshape(len(toys.federation().images), -1).astype(float)


@pytest.mark.slow
def test_fedrod_trains_a_balanced_model_and_heads_of_the_clients_own():
    sim = float64.simulation(fedrod(), model=network(), federation=federation())
    snapshot, records = sim.init(SEED), []
    while snapshot.round < sim.rounds:
        done = sim.advance(SEED, snapshot)
        snapshot, records = done.snapshot, records + done.records
    model = {"body": as_numpy(sim.init(SEED).state.variables.params["body"])}
    model |= as_numpy(sim.init(SEED).state.variables.params["head"])
    heads = {c: {"kernel": np.zeros((F, C)), "bias": np.zeros(C)} for c in range(float64.N)}
    for number, cohort in float64.cohorts(sim):
        trained = {c: fedrod_visit(model, heads[c], c, number) for c in cohort}
        heads |= {c: head for c, (_, head) in trained.items()}
        model = float64.mean(float64.by_size(cohort), {c: shared for c, (shared, _) in trained.items()})
    state = as_numpy(snapshot.state)
    float64.assert_equal({"body": state.variables.params["body"], **state.variables.params["head"]}, model)
    for name in ("kernel", "bias"):
        kept = state.memory[PERSONAL][f".params['own_head']['{name}']"]
        float64.assert_equal({name: kept}, {name: np.stack([heads[c][name] for c in range(float64.N)])})
        assert not state.variables.params["own_head"][name].any()

    whole = {c: {name: model[name] + head[name] for name in head} for c, head in heads.items()}
    assert records[-1]["client_accuracy"] == pytest.approx(own_accuracies(model["body"], whole).mean())


def own_accuracies(body, heads):
    """Of the clients that have test rows, each with its classifier."""
    rows, offsets = federation().tests
    accuracies = []
    for client, (first, last) in enumerate(list(pairwise(offsets))[:-1]):
        logits = np.tanh(flat_images()[rows[first:last]] @ body) @ heads[client]["kernel"] + heads[client]["bias"]
        accuracies.append((logits.argmax(1) == federation().labels[rows[first:last]]).mean())
    return np.array(accuracies)


def fedrod_visit(model, head, client, number):
    """One local training: the shared model and the client's own head after it."""
    data, model, head = toys.federation(), dict(model), dict(head)
    counts, rate = data.class_counts[client], float64.OPTIONS.rate * float64.OPTIONS.decay**number
    with np.errstate(divide="ignore"):
        prior = np.log(counts / counts.sum())
    for rows in draws(data, SEED, number, client, float64.OPTIONS):
        images, wanted = flat_images()[rows], np.eye(C)[data.labels[rows]]
        features = np.tanh(images @ model["body"])
        logits = features @ model["kernel"] + model["bias"]
        personal = (softmax(logits + features @ head["kernel"] + head["bias"]) - wanted) / len(rows)
        error = (softmax(logits + prior) - wanted) / len(rows)
        into = (error @ model["kernel"].T) * (1 - features**2)
        head = {"kernel": head["kernel"] - rate * features.T @ personal, "bias": head["bias"] - rate * personal.sum(0)}
        model = {
            "body": model["body"] - rate * images.T @ into,
            "kernel": model["kernel"] - rate * features.T @ error,
            "bias": model["bias"] - rate * error.sum(0),
        }
    return model, head


def test_fedrod_is_balanced_softmax_with_a_part_of_its_own():
    assert fedrod().parts[:1] == balanced_softmax().parts
    model = models.build("mlp", 3, (4, 4, 1))
    part = fedrod().parts[1]
    assert part.bind(model) is part.bind(model)
    variables = part.bind(model).init(jax.random.key(0))
    shared = {name: leaf for name, leaf in variables.params.items() if name != "own_head"}
    assert toys.largest_difference(model.init(jax.random.key(0)).params, shared) == 0


def test_models_without_a_fitting_classifier_are_refused():
    squared = network()._replace(name="squared", head=lambda params, features: features @ params["head"]["kernel"] ** 2)
    with pytest.raises(ValueError, match="fedrod: received the model squared, whose classifier isn't linear"):
        fedrod().parts[1].bind(squared)


def test_what_means_nothing_together_is_refused():
    for other, slot in ((fedper(), "OwnHead"), (ditto(), "SeparateModel")):
        with pytest.raises(ValueError, match=f"fedrod: received {slot}, by which each client has another classifier"):
            float64.simulation(combine(fedrod(), other), model=network())
    with pytest.raises(ValueError, match="fedrod: received FeatureMatching, which puts another classifier in for"):
        float64.simulation(combine(fedrod(), creff()), model=network())
    with pytest.raises(ValueError, match="fedrod and rebafl both bring PriorCalibration"):
        combine(fedrod(), rebafl())


def test_methods_that_change_the_classifier_come_before_those_that_add_to_it():
    for late in (moon(width=3), fednh()):
        for first in (fedrod(), fedloge(steps=1)):
            with pytest.raises(ValueError, match=f"combine it before {first.name}"):
                float64.simulation(combine(first, late), model=network())
    assert float64.simulation(combine(moon(width=3), fedrod()), model=network())
