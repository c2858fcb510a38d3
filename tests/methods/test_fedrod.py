"""FedROD: against a transcription in NumPy."""

import jax
import numpy as np
import pytest
import reference
import toys
from methods import float64
from methods.heads import (
    as_numpy,
    descended,
    federation,
    flat,
    flat_images,
    gradient,
    head_gradient,
    network,
    own_accuracies,
)

from fedjax_bal import models
from fedjax_bal.engine.device import PERSONAL
from fedjax_bal.recipes import balanced_softmax, combine, creff, ditto, fedloge, fednh, fedper, fedrod, moon, rebafl

SEED, C, F = float64.SEED, toys.CLASSES, toys.FEATURES

pytestmark = pytest.mark.usefixtures("double")


def trained(model, head, client, number):
    """One local training: the shared model and the client's own head after it."""
    data, rate = toys.federation(), float64.OPTIONS.rate * float64.OPTIONS.decay**number
    counts = data.class_counts[client]
    prior = reference.log_prior(counts / counts.sum())
    for rows in reference.draws(data, SEED, number, client, float64.OPTIONS):
        images, labels = flat_images()[rows], data.labels[rows]
        features = np.tanh(images @ model["body"])
        of_head, _ = head_gradient(features, labels, head, features @ model["kernel"] + model["bias"])
        of_model = gradient(model, images, labels, prior)
        head, model = descended(head, of_head, rate), descended(model, of_model, rate)
    return model, head


@pytest.mark.slow
def test_fedrod_trains_a_balanced_model_and_heads_of_the_clients_own():
    sim = float64.simulation(fedrod(), model=network(), federation=federation())
    state, records, _ = as_numpy(float64.finished(sim))
    model = flat(sim.init(SEED).state.variables.params)
    heads = {c: {"kernel": np.zeros((F, C)), "bias": np.zeros(C)} for c in range(float64.N)}
    for number, cohort in float64.cohorts(sim):
        results = {c: trained(model, heads[c], c, number) for c in cohort}
        heads |= {c: head for c, (_, head) in results.items()}
        model = float64.mean(float64.by_size(cohort), {c: shared for c, (shared, _) in results.items()})
    float64.assert_equal(flat(state.variables.params), model)
    for name in ("kernel", "bias"):
        kept = state.memory[PERSONAL][f".params['own_head']['{name}']"]
        float64.assert_equal({name: kept}, {name: np.stack([heads[c][name] for c in range(float64.N)])})
        assert not state.variables.params["own_head"][name].any()

    whole = {c: {name: model[name] + head[name] for name in head} for c, head in heads.items()}
    assert records[-1]["client_accuracy"] == pytest.approx(own_accuracies(model["body"], whole).mean())


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


REFUSED = {
    "fedrod: received OwnHead, by which each client has another classifier": (fedrod, fedper),
    "fedrod: received SeparateModel, by which each client has another classifier": (fedrod, ditto),
    "fedrod: received FeatureMatching, which puts another classifier in for": (fedrod, creff),
    "fedrod and rebafl both bring PriorCalibration": (fedrod, rebafl),
    # Methods that change the classifier come before those that add to it.
    "combine it before fedrod": (fedrod, lambda: moon(width=3)),
    "combine it before fedro[d]": (fedrod, fednh),
    "combine it before fedloge": (lambda: fedloge(steps=1), lambda: moon(width=3)),
    "combine it before fedlog[e]": (lambda: fedloge(steps=1), fednh),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_means_nothing_together_is_refused(message):
    with pytest.raises(ValueError, match=message):
        float64.simulation(combine(*(recipe() for recipe in REFUSED[message])), model=network())


def test_a_projection_comes_before_a_head():
    assert float64.simulation(combine(moon(width=3), fedrod()), model=network())
