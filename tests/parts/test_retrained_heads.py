"""CReFF and CCVR, which train the classifier anew on features: against transcriptions in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from parts import float64
from parts.test_fedrod import as_numpy, flat_images
from parts.test_heads import network
from reference import softmax

from fedjax_bal.engine.device.keys import purpose_key
from fedjax_bal.methods.ccvr import class_gaussians, class_moments, draw_gaussians
from fedjax_bal.methods.creff import class_gradients, gradient_distance, matched_features
from fedjax_bal.methods.heads import retrained
from fedjax_bal.recipes import ccvr, creff, fedavg

SEED, C, F = float64.SEED, toys.CLASSES, toys.FEATURES


pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def one_hot(labels):
    return np.eye(C)[labels]


def numpy_retrained(head, features, weights, key, epochs, size, rate):
    """SGD on the classifier; only the order is the library's."""
    kernel, bias = head["kernel"].copy(), head["bias"].copy()
    rows, labels = features.reshape(-1, features.shape[-1]), np.repeat(np.arange(len(features)), features.shape[1])
    for epoch in range(epochs):
        order = np.asarray(jax.random.permutation(jax.random.fold_in(key, epoch), len(rows)))
        for places in np.split(order, range(size, len(order), size)):
            own, share = rows[places], weights[labels[places]]
            error = share[:, None] * (softmax(own @ kernel + bias) - one_hot(labels[places])) / share.sum()
            kernel, bias = kernel - rate * own.T @ error, bias - rate * error.sum(0)
    return {"kernel": kernel, "bias": bias}


def test_retraining_is_sgd_on_the_classifier(rng):
    features, weights, key = rng.normal(size=(C, 5, F)), np.array([1.0, 0, 2, 1]), jax.random.key(3)
    params = as_numpy(network().init(jax.random.key(0)).params)
    options = {"epochs": 2, "batch_size": 6, "learning_rate": 0.3}
    labels = np.repeat(np.arange(C), 5)
    rows = jnp.asarray(features.reshape(-1, F))
    found = retrained(network(), params, rows, jnp.asarray(labels), key, jnp.asarray(weights[labels]), **options)
    wanted = numpy_retrained(params["head"], features, weights, key, 2, 6, 0.3)
    assert all(np.allclose(found[name], wanted[name], atol=1e-12) for name in wanted)


# CCVR.


@pytest.mark.slow
def test_class_gaussians_are_those_of_all_clients_together(rng):
    clients = [(rng.normal(size=(n, F)) + 1, rng.integers(0, C - 1, n)) for n in (9, 14, 30)]
    real = np.ones(14) > 0
    parts = [class_moments(x, y, np.ones(len(y)) > 0, C) for x, y in clients]
    means, covariances = class_gaussians(jax.tree.map(lambda *leaves: sum(leaves), *parts))
    for c in range(C - 1):
        own_rows = [x[y == c] for x, y in clients]
        n, mu = [len(x) for x in own_rows], [x.mean(0) for x in own_rows]
        total = sum(n)
        mean = sum(a * b for a, b in zip(n, mu, strict=True)) / total  # eq. 3
        within = sum((a - 1) / (total - 1) * np.cov(x.T) for a, x in zip(n, own_rows, strict=True) if a > 1)
        between = sum(a / (total - 1) * np.outer(b, b) for a, b in zip(n, mu, strict=True))
        assert np.allclose(means[c], mean)
        assert np.allclose(covariances[c], within + between - total / (total - 1) * np.outer(mean, mean))  # eq. 4
    assert not means[C - 1].any() and not covariances[C - 1].any()
    half = class_moments(*clients[1], real & (np.arange(14) < 6), C)
    assert np.allclose(half.products, class_moments(*(x[:6] for x in clients[1]), real[:6], C).products)


def test_virtual_features_follow_their_gaussians(rng):
    roots, means = rng.normal(size=(C, F, 3)), rng.normal(size=(C, F))  # of rank 3
    covariances = roots @ roots.transpose(0, 2, 1)
    drawn = np.asarray(draw_gaussians(jax.random.key(0), means, covariances, 20_000))
    for c in range(C):
        assert np.allclose(drawn[c].mean(0), means[c], atol=0.1)
        assert np.allclose(np.cov(drawn[c].T), covariances[c], atol=0.05 * np.abs(covariances[c]).max())


@pytest.mark.slow
def test_a_closing_round_of_ccvr():
    options = {"per_class": 6, "epochs": 3, "batch_size": 7, "learning_rate": 0.4}
    sim = float64.simulation(ccvr(**options), model=network(), rounds=1)
    done = sim.advance(SEED, sim.init(SEED))
    params, data = as_numpy(done.snapshot.state.variables.params), toys.federation()
    features = np.tanh(flat_images() @ params["body"])
    labels, rows = data.labels[data.rows], features[data.rows]
    means = np.stack([rows[labels == c].mean(0) for c in range(C)])
    covariances = np.stack([np.cov(rows[labels == c].T) for c in range(C)])
    draw, order = jax.random.split(
        purpose_key(jax.random.fold_in(jax.random.key(SEED), 0), "close/VirtualRepresentations")
    )
    drawn = np.asarray(draw_gaussians(draw, means, covariances, 6))
    head = numpy_retrained(params["head"], drawn, np.ones(C), order, 3, 7, 0.4)
    confusion = lambda head: np.bincount(
        data.labels * C + (features @ head["kernel"] + head["bias"]).argmax(1), minlength=C * C
    ).reshape(C, C)
    assert done.confusion.tolist() == confusion(head).tolist() != confusion(params["head"]).tolist()


# CReFF.


def class_gradient(features, head, c):
    """Mean gradient of the classifier over rows of one class."""
    error = (softmax(features @ head["kernel"] + head["bias"]) - one_hot(np.full(len(features), c))) / len(features)
    return {"kernel": features.T @ error, "bias": error.sum(0)}


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
            if c not in wanted:
                continue
            for shift in (1e-5, -1e-5):
                moved = features[c].copy()
                moved[place[1:]] += shift
                values.append(numpy_distance(class_gradient(moved, head, c), wanted[c]))
            slopes[place] = (values[0] - values[1]) / 2e-5
        features -= rate * slopes
    return features


@pytest.mark.slow
def test_features_are_matched_by_their_gradients(rng):
    params = as_numpy(network().init(jax.random.key(0)).params)
    features, labels = rng.normal(size=(20, F)), rng.integers(0, C - 1, 20)
    real = np.arange(20) < 17
    found = class_gradients(network(), params, features, labels, real, C)
    counts = np.bincount(labels[real], minlength=C)
    wanted = {c: class_gradient(features[real & (labels == c)], params["head"], c) for c in range(C - 1)}
    for c in wanted:
        assert all(np.allclose(found[name][c] / counts[c], wanted[c][name]) for name in ("kernel", "bias"))
    assert not found["kernel"][C - 1].any()
    pair = jax.tree.map(jnp.asarray, (wanted[0], wanted[1]))
    assert gradient_distance(*pair) == pytest.approx(numpy_distance(wanted[0], wanted[1]))

    begin = rng.normal(size=(C, 3, F))
    real_gradients = jax.tree.map(lambda *leaves: jnp.stack(leaves), *wanted.values(), wanted[0])
    got = matched_features(network(), params, jnp.asarray(begin), real_gradients, np.arange(C) < C - 1, 2, 0.1)
    assert np.allclose(got, numpy_matched(begin, params["head"], wanted, 2, 0.1), atol=1e-8)
    assert np.array_equal(got[C - 1], begin[C - 1])


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
    retrained = numpy_retrained(fresh, features, np.ones(C), order, 2, 5, 0.3)
    assert all(np.allclose(after.head[k], retrained[k], atol=1e-6) for k in retrained)
    plain = float64.run(float64.simulation(fedavg(), model=network(), rounds=1))
    assert toys.largest_difference(plain.variables, state.variables) < 1e-12


@pytest.mark.parametrize("recipe", [creff, ccvr])
def test_a_wrong_hyperparameter_is_named(recipe):
    with pytest.raises(ValueError, match=f"{recipe.__name__}: per_class: received 0"):
        recipe(per_class=0)
