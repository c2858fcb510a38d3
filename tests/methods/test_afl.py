"""AFL and Fed3R: against transcriptions in NumPy, and the same classifier for every partition of the same rows."""

from itertools import pairwise

import numpy as np
import pytest
import toys
from methods import float64
from methods.heads import as_numpy, flat_images, network

from fedjax_bal.recipes import afl, combine, fed3r, fedavg, fedetf

C, F = toys.CLASSES, toys.FEATURES
PARTITIONS = 10

pytestmark = pytest.mark.usefixtures("double")


def partitioned(number):
    """The toys' rows, divided among ten clients in another way for each number: by label, evenly, at random."""
    data, rng = toys.federation(), np.random.default_rng(number)
    pool = rng.permutation(data.rows)
    if number == 0:
        pool = pool[np.argsort(data.labels[pool], kind="stable")]
    places = np.sort(rng.choice(np.arange(1, len(pool)), 9, replace=False)) if number > 1 else np.arange(9, 90, 9)
    offsets = np.r_[0, places, len(pool)].astype(np.int32)
    spans = [span[np.argsort(data.labels[span], kind="stable")] for span in (pool[a:b] for a, b in pairwise(offsets))]
    counts = np.stack([np.bincount(data.labels[span], minlength=C) for span in spans]).astype(np.int32)
    return data._replace(rows=np.concatenate(spans).astype(np.int32), offsets=offsets, class_counts=counts)


def classifier(recipe, federation):
    """That which is evaluated before training, and the features' weights."""
    sim = float64.simulation(recipe, model=network(), federation=federation)
    params = as_numpy(sim.tested_model(float64.SEED, sim.init(float64.SEED)).params)
    return params["head"], params["body"]


def clients_rows(data, body):
    """Features and unit vectors of the labels, by client."""
    features = np.tanh(flat_images() @ body)
    spans = [data.rows[a:b] for a, b in pairwise(data.offsets)]
    return [(features[span], np.eye(C)[data.labels[span]]) for span in spans]


def absolute_aggregation(clients, gamma):
    """AFL's: each client's own fit with a ridge, combined two at a time; then all ridges are removed."""
    fits = []
    for features, wanted in clients:
        gram = features.T @ features + gamma * np.eye(F)
        fits.append((np.linalg.inv(gram) @ features.T @ wanted, gram))
    total, gram = fits[0]
    for fit, own in fits[1:]:
        inverse, both = np.linalg.inv(gram), np.linalg.inv(gram + own)
        first = np.eye(F) - inverse @ own + inverse @ own @ both @ own
        inverse = np.linalg.inv(own)
        second = np.eye(F) - inverse @ gram + inverse @ gram @ both @ gram
        total, gram = first @ total + second @ fit, gram + own
    ridges = len(clients) * gamma
    return total + ridges * np.linalg.inv(gram - ridges * np.eye(F)) @ total


def recursive_ridge(clients, ridge):
    """Fed3R's: sums with a constant feature, one client after another, and class vectors of length 1."""
    gram, targets = ridge * np.eye(F + 1), np.zeros((F + 1, C))
    for features, wanted in clients:
        extended = np.c_[features, np.ones(len(features))]
        gram, targets = gram + extended.T @ extended, targets + extended.T @ wanted
    fit = np.linalg.solve(gram, targets)
    return fit / np.linalg.norm(fit[:-1], axis=0)


def test_all_partitions_of_the_same_rows_have_the_classifier_of_the_pairwise_law():
    found = []
    for number in range(PARTITIONS):
        data = partitioned(number)
        head, body = classifier(afl(), data)
        wanted = absolute_aggregation(clients_rows(data, body), 1.0)
        np.testing.assert_allclose(head["kernel"], wanted, rtol=0, atol=1e-9)
        assert not head["bias"].any()
        found.append(head["kernel"])
    assert np.ptp(found, axis=0).max() < 1e-9
    assert np.abs(found[0]).max() > 0.1
    assert len({partitioned(number).class_counts.tobytes() for number in range(PARTITIONS)}) == PARTITIONS


def test_fed3r_equals_its_transcription_for_two_partitions():
    for data in (toys.federation(), partitioned(0)):
        head, body = classifier(fed3r(0.5), data)
        wanted = recursive_ridge(clients_rows(data, body), 0.5)
        np.testing.assert_allclose(np.r_[head["kernel"], head["bias"][None]], wanted, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_a_ridge_and_too_few_rows_give_the_ridge_fit_and_the_fit_of_least_norm():
    data = toys.federation()
    few = data._replace(rows=data.rows[:3], offsets=np.array([0, 1, *[3] * 9], np.int32), copy=data.copy[:3])
    counts = [np.bincount(data.labels[few.rows[a:b]], minlength=C) for a, b in pairwise(few.offsets)]
    few = few._replace(class_counts=np.array(counts, np.int32))
    for ridge in (0.0, 0.3):
        head, body = classifier(afl(ridge), few)
        features, wanted = map(np.concatenate, zip(*clients_rows(few, body), strict=True))
        fit = np.linalg.pinv(features) @ wanted
        if ridge:
            fit = np.linalg.solve(features.T @ features + ridge * np.eye(F), features.T @ wanted)
        np.testing.assert_allclose(head["kernel"], fit, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_training_is_that_of_fedavg():
    runs = [float64.run(float64.simulation(r, model=network())).variables.params for r in (afl(), fed3r(), fedavg())]
    assert toys.largest_difference(runs[0], runs[2]) == toys.largest_difference(runs[1], runs[2]) == 0


def test_a_classifier_of_cosines_is_refused():
    with pytest.raises(ValueError, match="least squares: received the model headed"):
        float64.simulation(combine(fedetf(), afl()), model=network())
