"""CReFF, which retrains the classifier on features that match gradients: against a transcription in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from methods import float64
from methods.heads import as_numpy, flat_images, head_gradient, network, retrained
from rounding import DOUBLE, FORMULA

from fedjax_bal.engine.device import purpose_key
from fedjax_bal.methods import creff as MODULE
from fedjax_bal.parts import FeatureMatching
from fedjax_bal.recipes import creff, fedavg
from fedjax_bal.types import Aggregate, ServerContext

SEED, C, F = float64.SEED, toys.CLASSES, toys.FEATURES

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.slow
def test_retraining_is_sgd_on_the_classifier(rng):
    features, weights, key = rng.normal(size=(C, 5, F)), np.array([1.0, 0, 2, 1]), jax.random.key(3)
    params = as_numpy(network().init(jax.random.key(0)).params)
    options = {"epochs": 2, "batch_size": 6, "learning_rate": 0.3}
    labels = np.repeat(np.arange(C), 5)
    retrain = jax.jit(lambda *given: MODULE.retrain_classifier(network(), *given, **options))
    found = retrain(params, features.reshape(-1, F), labels, key, weights[labels])
    wanted = retrained(params["head"], features, weights, key, 2, 6, 0.3)
    assert all(np.allclose(found[name], wanted[name], atol=DOUBLE) for name in wanted)


def class_gradient(features, head, c):
    """Mean gradient of the classifier over rows of one class."""
    return head_gradient(features, np.full(len(features), c), head)[0]


def numpy_distance(found, wanted):
    cos = lambda a, b: (a @ b) / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-6)
    rows = sum(1 - cos(a, b) for a, b in zip(found["kernel"].T, wanted["kernel"].T, strict=True))
    return rows + 1 - cos(found["bias"], wanted["bias"])


def numpy_matched(features, head, wanted, steps, rate):
    """Gradient descent on the distances, with gradients by central differences."""
    features = features.copy()
    for _ in range(steps):
        slopes = np.zeros_like(features)
        for place in np.ndindex(*features.shape):
            c, values = place[0], []
            for shift in (1e-5, -1e-5):
                moved = features[c].copy()
                moved[place[1:]] += shift
                values.append(numpy_distance(class_gradient(moved, head, c), wanted[c]))
            slopes[place] = (values[0] - values[1]) / 2e-5
        features -= rate * slopes
    return features


@pytest.mark.slow
def test_a_class_that_nobody_has_keeps_its_features_and_padding_counts_for_nothing(rng):
    params = as_numpy(network().init(jax.random.key(0)).params)
    features, labels, real = rng.normal(size=(20, F)), rng.integers(0, C - 1, 20), np.arange(20) < 17
    padded, alone = (MODULE.class_gradients(network(), params, features[:n], labels[:n], real[:n], C) for n in (20, 17))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=DOUBLE), padded, alone)
    begin, there = rng.normal(size=(C, 3, F)), np.arange(C) < C - 1
    found = MODULE.matched_features(network(), params, jnp.asarray(begin), padded, there, 2, 0.1)
    assert (found != begin).any((1, 2)).tolist() == there.tolist()


@pytest.mark.slow
def test_features_of_a_class_that_no_client_has_teach_nothing():
    part = FeatureMatching(per_class=3, match_steps=0, epochs=2)
    model = network()
    variables = model.init(jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros((C, *leaf.shape)), variables.params["head"])
    reports = {part.slot: MODULE.ClassGradients(zeros, jnp.zeros(C))}

    def trained(features, federation):
        fields = {
            "model": model, "variables": variables, "federation": federation,
            "state": MODULE.FederatedFeatures(features, variables.params["head"]),
            "aggregate": Aggregate(None, reports, None, None),
        }  # fmt: skip
        server = ServerContext(**(dict.fromkeys(ServerContext._fields) | fields))
        return part.update(jax.random.key(1), server).head

    features = jax.random.normal(jax.random.key(2), (C, 3, F))
    data = toys.federation()
    lacking = data._replace(class_counts=data.class_counts * (np.arange(C) < C - 1))
    for federation, same in ((lacking, True), (data, False)):
        one, other = (trained(given, federation) for given in (features, features.at[-1].add(3.0)))
        assert (toys.largest_difference(one, other) == 0) == same


@pytest.mark.slow
def test_a_round_of_creff():
    recipe = creff(per_class=3, match_steps=2, epochs=2, batch_size=5, learning_rate=0.3)
    sim = float64.simulation(recipe, model=network(), rounds=1)
    start, state, data = as_numpy(sim.init(SEED).state), float64.run(sim), toys.federation()
    other = as_numpy(sim.init(SEED + 1).state).server["FeatureMatching"].features
    ((_, cohort),) = float64.cohorts(sim)
    body, head = start.variables.params["body"], start.variables.params["head"]
    gradients = {}
    for client in cohort:
        rows = data.rows[data.offsets[client] : data.offsets[client + 1]]
        features = np.tanh(flat_images()[rows] @ body)
        for c in np.unique(data.labels[rows]):
            gradients.setdefault(c, []).append(class_gradient(features[data.labels[rows] == c], head, c))
    wanted = {c: {k: np.mean([g[k] for g in all_], 0) for k in all_[0]} for c, all_ in gradients.items()}
    before, after = start.server["FeatureMatching"], state.server["FeatureMatching"]
    features = numpy_matched(before.features, head, wanted, 2, 0.1)
    assert np.allclose(after.features, features, atol=1e-7) and not np.allclose(before.features, other)

    key = purpose_key(jax.random.fold_in(jax.random.key(SEED), 0), "update/FeatureMatching")
    begin, order = jax.random.split(key)
    fresh = as_numpy(network().init(begin).params["head"])
    head = retrained(fresh, features, np.ones(C), order, 2, 5, 0.3)
    assert all(np.allclose(after.head[k], head[k], atol=FORMULA) for k in head)
    plain = float64.run(float64.simulation(fedavg(), model=network(), rounds=1))
    assert toys.largest_difference(plain.variables, state.variables) < DOUBLE
