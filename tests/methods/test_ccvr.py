"""CCVR, which retrains the classifier on virtual features: against a transcription in NumPy."""

import jax
import numpy as np
import pytest
import toys
from methods import float64
from methods.heads import as_numpy, flat_images, network, retrained
from rounding import DOUBLE

from fedjax_bal.engine.device import purpose_key
from fedjax_bal.methods import ccvr as MODULE
from fedjax_bal.recipes import ccvr

SEED, C, F = float64.SEED, toys.CLASSES, toys.FEATURES

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def test_a_class_without_rows_has_zeros_and_padding_counts_for_nothing(rng):
    features, labels = rng.normal(size=(14, F)), rng.integers(0, C - 1, 14)
    moments = jax.jit(lambda *rows: MODULE.class_moments(*rows, C))
    padded, alone = (moments(features[:n], labels[:n], np.arange(n) < 6) for n in (14, 6))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=DOUBLE), padded, alone)
    means, covariances = map(np.asarray, jax.jit(MODULE.class_gaussians)(padded))
    assert not means[C - 1].any() and not covariances[C - 1].any()


def test_virtual_features_follow_their_gaussians(rng):
    roots, means = rng.normal(size=(C, F, 3)), rng.normal(size=(C, F))  # of rank 3
    covariances = roots @ roots.transpose(0, 2, 1)
    draw = jax.jit(lambda *given: MODULE.draw_gaussians(*given, 20_000))
    drawn = np.asarray(draw(jax.random.key(0), means, covariances))
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
    key = jax.random.fold_in(jax.random.key(SEED), 0)
    draw, order = jax.random.split(purpose_key(key, "close/VirtualRepresentations"))
    drawn = np.asarray(MODULE.draw_gaussians(draw, means, covariances, 6))
    head = retrained(params["head"], drawn, np.ones(C), order, 3, 7, 0.4)
    confusion = lambda head: np.bincount(
        data.labels * C + (features @ head["kernel"] + head["bias"]).argmax(1), minlength=C * C
    ).reshape(C, C)
    assert found.tolist() == confusion(head).tolist() != confusion(params["head"]).tolist()
