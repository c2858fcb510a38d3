"""FedPAC: against a transcription in NumPy, and its weights against all sets of clients that could have some."""

from itertools import combinations

import jax.numpy as jnp
import numpy as np
import pytest
import quick
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
    network,
    own_accuracies,
)

from fedjax_bal.engine.device import PERSONAL
from fedjax_bal.methods.fedpac import smallest_on_simplex
from fedjax_bal.recipes import combine, fedpac, fedrep, scaffold

pytestmark = pytest.mark.usefixtures("double")

C, F = toys.CLASSES, toys.FEATURES


def best(matrix):
    """The smallest value of a quadratic form on the simplex, and where: the best of the stationary points of faces."""
    found = []
    for count in range(1, len(matrix) + 1):
        for chosen in map(list, combinations(range(len(matrix)), count)):
            way = np.linalg.lstsq(matrix[np.ix_(chosen, chosen)], np.ones(count), rcond=None)[0]
            if (way >= 0).all() and way.sum() > 0:
                point = np.zeros(len(matrix))
                point[chosen] = way / way.sum()
                found.append((point @ matrix @ point, point))
    return min(found, key=lambda entry: entry[0])


def form(rng, count, own=0):
    """A problem as FedPAC has it: few classes, many features, small variances."""
    means = rng.dirichlet(np.full(3, 0.3), count) @ rng.normal(size=(3, 20))
    apart = means[own] - means
    return np.diag(rng.uniform(0.01, 0.3, count)) + apart @ apart.T


@pytest.mark.parametrize("count", quick.only((1, 2, 7), 7))
def test_the_weights_are_the_best_of_all_faces(count):
    rng = np.random.default_rng(count)
    for _ in range(5):
        matrix = form(rng, count)
        np.testing.assert_allclose(smallest_on_simplex(matrix, np.ones(count, bool)), best(matrix)[1], atol=1e-9)


@pytest.mark.slow
def test_clients_that_do_not_count_have_no_weight():
    matrix, counted = form(np.random.default_rng(0), 7), np.array([True, False, True, True, False, True, True])
    found = np.asarray(smallest_on_simplex(matrix, counted))
    assert (found[~counted] == 0).all()
    np.testing.assert_allclose(found[counted], best(matrix[np.ix_(counted, counted)])[1], atol=1e-9)


@pytest.mark.slow
def test_the_conditions_of_a_minimum_hold_for_many_clients_and_float32_is_enough():
    matrix, counted = form(np.random.default_rng(1), 60, own=5), np.ones(60, bool)
    found = np.asarray(smallest_on_simplex(matrix, counted))
    slopes, value = matrix @ found, found @ matrix @ found
    assert found.min() == 0 and found.sum() == pytest.approx(1)
    assert (slopes >= (1 - 1e-9) * value).all()
    np.testing.assert_allclose(smallest_on_simplex(jnp.asarray(matrix, jnp.float32), counted), found, atol=1e-5)


@pytest.mark.slow
def test_a_client_with_a_single_row_keeps_its_classifier():
    matrix = form(np.random.default_rng(2), 5)
    matrix[0, 0] = 0.0  # neither bias nor variance
    np.testing.assert_allclose(smallest_on_simplex(matrix, np.ones(5, bool)), np.eye(5)[0], atol=1e-9)


def trained(w, client, number, prototypes, weight, factor):
    """One local training: the classifier in the first half of the steps, then the body."""
    data, rate = toys.federation(), float64.OPTIONS.rate * float64.OPTIONS.decay**number
    batches = list(reference.draws(data, float64.SEED, number, client, float64.OPTIONS))
    for step, rows in enumerate(batches):
        images, labels = flat_images()[rows], data.labels[rows]
        slopes = gradient(w, images, labels)
        if step < len(batches) // 2:
            w = descended(w, {k: slopes[k] for k in ("kernel", "bias")}, factor * rate)
            continue
        features = np.tanh(images @ w["body"])
        pull = np.zeros_like(features)
        for row, label in enumerate(labels):
            if label in prototypes:
                pull[row] = 2 * weight * (features[row] - prototypes[label]) / features.size
        w = descended(w, {"body": slopes["body"] + images.T @ (pull * (1 - features**2))}, rate)
    return w


def of_client(client):
    """Its images and labels."""
    data = toys.federation()
    rows = data.rows[data.offsets[client] : data.offsets[client + 1]]
    return flat_images()[rows], data.labels[rows]


def statistics(body, client):
    """The variance and h of a client's features."""
    images, labels = of_client(client)
    features = np.tanh(images @ body)
    shares = {c: (labels == c).mean() for c in range(C)}
    h = np.stack([shares[c] * features[labels == c].mean(0) if shares[c] else np.zeros(F) for c in range(C)])
    second = sum(shares[c] * (features[labels == c] ** 2).sum(1).mean() for c in range(C) if shares[c])
    return (second - (h**2).sum()) / len(labels), h


@pytest.mark.slow
def test_fedpac_equals_its_transcription():
    sim = float64.simulation(fedpac(0.7, 0.5, 2.0), model=network(), federation=federation())
    state, records, _ = as_numpy(float64.finished(sim))
    model = flat(sim.init(float64.SEED).state.variables.params)
    heads, prototypes, spread = dict.fromkeys(range(float64.N), model), {}, []
    for number, cohort in float64.cohorts(sim):
        known = {c: statistics(model["body"], c) for c in cohort}
        after = {c: trained(heads[c] | {"body": model["body"]}, c, number, prototypes, 0.7, 2.0) for c in cohort}
        variances = np.diag([known[c][0] for c in cohort])
        for c in cohort:
            apart = np.stack([(known[c][1] - known[other][1]).ravel() for other in cohort])
            weights = best(variances + apart @ apart.T)[1]
            heads[c] = float64.mean(dict(zip(cohort, weights, strict=True)), after)
            spread.append(weights[weights > 0.01])
        model = model | {"body": float64.mean(float64.by_size(cohort), after)["body"]}
        features = np.concatenate([np.tanh(of_client(c)[0] @ after[c]["body"]) for c in cohort])
        labels = np.concatenate([of_client(c)[1] for c in cohort])
        prototypes = {c: features[labels == c].mean(0) for c in np.unique(labels)}
    assert any(len(some) > 2 and np.ptp(some) > 0.1 for some in spread)  # neither a single classifier nor a mean
    float64.assert_equal(flat(state.variables.params), model)
    kept = {k: state.memory[PERSONAL][f".params['head']['{k}']"] for k in ("kernel", "bias")}
    float64.assert_equal(kept, {k: np.stack([heads[c][k] for c in heads]) for k in kept})
    assert records[-1]["client_accuracy"] == pytest.approx(np.mean(own_accuracies(model["body"], heads)))


def test_what_means_nothing_together_is_refused():
    with pytest.raises(ValueError, match="scaffold: received MixedHeads, whose leaves stay"):
        float64.simulation(combine(scaffold(), fedpac()), model=network())
    with pytest.raises(ValueError, match="both bring HeadThenBody"):
        combine(fedrep(), fedpac())
