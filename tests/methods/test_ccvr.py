"""CCVR, which retrains the classifier on virtual features: against a transcription in NumPy."""

import jax
import numpy as np
import pytest
import toys
from methods import float64
from methods.heads import as_numpy, flat_images, network, retrained

from fedjax_bal.engine.device import purpose_key
from fedjax_bal.methods import ccvr as MODULE
from fedjax_bal.recipes import ccvr

SEED, C, F = float64.SEED, toys.CLASSES, toys.FEATURES

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.slow
def test_class_gaussians_are_those_of_all_clients_together(rng):
    clients = [(rng.normal(size=(n, F)) + 1, rng.integers(0, C - 1, n)) for n in (9, 14, 30)]
    real = np.ones(14) > 0
    parts = [MODULE.class_moments(x, y, np.ones(len(y)) > 0, C) for x, y in clients]
    means, covariances = MODULE.class_gaussians(jax.tree.map(lambda *leaves: sum(leaves), *parts))
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
    half = MODULE.class_moments(*clients[1], real & (np.arange(14) < 6), C)
    assert np.allclose(half.products, MODULE.class_moments(*(x[:6] for x in clients[1]), real[:6], C).products)


def test_virtual_features_follow_their_gaussians(rng):
    roots, means = rng.normal(size=(C, F, 3)), rng.normal(size=(C, F))  # of rank 3
    covariances = roots @ roots.transpose(0, 2, 1)
    drawn = np.asarray(MODULE.draw_gaussians(jax.random.key(0), means, covariances, 20_000))
    for c in range(C):
        assert np.allclose(drawn[c].mean(0), means[c], atol=0.1)
        assert np.allclose(np.cov(drawn[c].T), covariances[c], atol=0.05 * np.abs(covariances[c]).max())


@pytest.mark.slow
def test_a_closing_round_of_ccvr():
    options = {"per_class": 6, "epochs": 3, "batch_size": 7, "learning_rate": 0.4}
    sim = float64.simulation(ccvr(**options), model=network(), rounds=1)
    state, _, found = float64.finished(sim)
    params, data = as_numpy(state.variables.params), toys.federation()
    features = np.tanh(flat_images() @ params["body"])
    labels, rows = data.labels[data.rows], features[data.rows]
    means = np.stack([rows[labels == c].mean(0) for c in range(C)])
    covariances = np.stack([np.cov(rows[labels == c].T) for c in range(C)])
    draw, order = jax.random.split(
        purpose_key(jax.random.fold_in(jax.random.key(SEED), 0), "close/VirtualRepresentations")
    )
    drawn = np.asarray(MODULE.draw_gaussians(draw, means, covariances, 6))
    head = retrained(params["head"], drawn, np.ones(C), order, 3, 7, 0.4)
    confusion = lambda head: np.bincount(
        data.labels * C + (features @ head["kernel"] + head["bias"]).argmax(1), minlength=C * C
    ).reshape(C, C)
    assert found.tolist() == confusion(head).tolist() != confusion(params["head"]).tolist()
