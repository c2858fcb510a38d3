"""Normalised features: against a transcription in NumPy."""

import jax
import numpy as np
import pytest
import reference
import toys
from methods import float64, hand

from fedjax_bal.models import with_normalised_features
from fedjax_bal.recipes import combine, feature_normalisation, fedprox

pytestmark = pytest.mark.usefixtures("double")


def forward(weights, images):
    """Features of length sqrt(F), and logits."""
    features, _ = reference.forward(weights, images)
    features = features * np.sqrt(features.shape[1]) / np.linalg.norm(features, axis=1, keepdims=True)
    return features, features @ weights["w2"]


def gradient(weights, images, labels):
    """Of the mean cross-entropy, by the chain rule through the length."""
    raw, _ = reference.forward(weights, images)
    features, logits = forward(weights, images)
    error = (reference.softmax(logits) - np.eye(toys.CLASSES)[labels]) / len(labels)
    of_features = error @ weights["w2"].T
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    along = (of_features * raw).sum(1, keepdims=True) / lengths**2
    of_raw = np.sqrt(raw.shape[1]) / lengths * (of_features - along * raw)
    return {"w1": images.T @ (of_raw * (1 - raw**2)), "w2": features.T @ error}


def test_feature_normalisation_equals_its_transcription():
    sim, data = float64.simulation(feature_normalisation()), toys.federation()
    model, flat = float64.initial(sim), data.images.reshape(len(data.images), -1).astype(float)
    for number, cohort in float64.cohorts(sim):
        rate, after = float64.OPTIONS.rate * float64.OPTIONS.decay**number, {}
        for client in cohort:
            weights = model
            for rows in reference.draws(data, float64.SEED, number, client, float64.OPTIONS):
                slopes = gradient(weights, flat[rows], data.labels[rows])
                weights = {k: weights[k] - rate * slopes[k] for k in weights}
            after[client] = weights
        model = float64.mean(float64.by_size(cohort), after)
    state, _, found = float64.finished(sim)
    float64.assert_equal(state.variables.params, model)
    predicted = forward(model, flat)[1].argmax(1)
    assert found.tolist() == np.bincount(data.labels * 4 + predicted, minlength=16).reshape(4, 4).tolist()


def test_a_row_of_zeros_stays_without_a_gradient():
    model = with_normalised_features(toys.network())
    assert with_normalised_features(toys.network()) is model
    images = np.zeros((2, 1, toys.WIDTH, 1))
    loss = lambda x: model.apply(hand.variables(0), x, train=True)[0].logits
    value, slopes = hand.value_and_gradient(loss, images)
    assert value == 0 and not slopes.any()


@pytest.mark.slow
def test_order_does_not_matter_beside_methods_that_keep_the_network():
    recipes = combine(feature_normalisation(), fedprox(0.1)), combine(fedprox(0.1), feature_normalisation())
    first, second = (float64.run(float64.simulation(recipe)).variables.params for recipe in recipes)
    assert toys.largest_difference(jax.device_get(first), jax.device_get(second)) == 0
