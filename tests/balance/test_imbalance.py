"""Divergences against scipy; MID and WCS against their formulas written out; their edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
from rounding import FORMULA, SUM

from fedjax_bal.balance import (
    hellinger_distance,
    jensen_shannon_distance,
    kl_divergence,
    kl_to_uniform,
    multiclass_imbalance_degree,
    weighted_cosine_similarity,
)


def test_kl_divergence_equals_scipy():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(6), 20), rng.dirichlet(np.ones(6), 20)
    np.testing.assert_allclose(kl_divergence(p, q), scipy.stats.entropy(p, q, axis=1), rtol=SUM)


def test_jensen_shannon_equals_scipy_to_base_2_and_hellinger_the_bhattacharyya_form():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(6, 0.3), 20), rng.dirichlet(np.full(6, 0.3), 20)
    wanted = scipy.spatial.distance.jensenshannon(p, q, base=2, axis=1)
    np.testing.assert_allclose(jensen_shannon_distance(p, q), wanted, rtol=SUM)
    np.testing.assert_allclose(hellinger_distance(p, q), np.sqrt(1 - np.sqrt(p * q).sum(1)), rtol=SUM)


@pytest.mark.parametrize("distance", [hellinger_distance, jensen_shannon_distance])
def test_metrics_of_class_distributions(distance):
    p, q, r = np.random.default_rng(1).dirichlet(np.full(5, 0.5), (3, 200))
    assert (np.asarray(distance(p, p)) < 1e-3).all()
    np.testing.assert_allclose(distance(p, q), distance(q, p), rtol=FORMULA)
    assert (np.asarray(distance(p, q)) <= np.asarray(distance(p, r)) + np.asarray(distance(r, q)) + 1e-6).all()
    assert float(distance(np.array([0.3, 0.7, 0, 0]), np.array([0, 0, 0.5, 0.5]))) == pytest.approx(1, rel=FORMULA)


@pytest.mark.parametrize("distance", [hellinger_distance, jensen_shannon_distance])
def test_equal_distributions_and_absent_classes_have_finite_gradients(distance):
    slopes = jax.jit(jax.grad(lambda p, q: distance(p, q).sum(), argnums=(0, 1)))
    for p in ([0.25, 0.75], [0.5, 0.5, 0.0], [1.0, 0.0]):
        np.testing.assert_array_equal(slopes(jnp.array(p), jnp.array(p)), np.zeros((2, len(p))))
    p, q = jnp.array([0.6, 0.4, 0.0]), jnp.array([0.5, 0.5, 0.0])
    gradient = slopes(p, q)[0]
    assert np.isfinite(gradient).all()
    step = jnp.array([1e-3, -1e-3, 0.0])
    change = float(distance(p + step, q) - distance(p - step, q)) / 2e-3
    assert float(gradient[0] - gradient[1]) == pytest.approx(change, rel=1e-2)
    assert np.isnan(jax.jit(distance)(jnp.array([-0.5, 1.5]), jnp.array([0.5, 0.5])))


def test_kl_to_uniform_equals_scipy_for_counts_of_any_type():
    counts = np.array([[3, 1, 0, 0], [5, 5, 5, 5], [1, 0, 0, 0]])
    wanted = [scipy.stats.entropy(row / row.sum(), np.full(4, 0.25)) for row in counts]
    for dtype in (np.int32, np.float32):
        np.testing.assert_allclose(kl_to_uniform(counts.astype(dtype)), wanted, rtol=SUM, atol=1e-7)


def test_disjoint_classes_reach_log_c_and_cancel_when_pooled():
    one_hot = np.eye(10)
    np.testing.assert_allclose(kl_to_uniform(one_hot), np.log(10), rtol=FORMULA)
    assert float(kl_to_uniform(one_hot.sum(0))) == pytest.approx(0, abs=FORMULA)


def test_an_empty_row_is_zero_with_finite_gradient():
    assert float(kl_to_uniform(jnp.zeros(3))) == 0
    assert bool(jnp.isfinite(jax.jit(jax.grad(lambda c: kl_to_uniform(c)))(jnp.array([2.0, 1.0, 1.0]))).all())


COUNTS = np.random.default_rng(0).integers(0, 50, (6, 4))


def literal_mid(counts):
    classes, total = len(counts), sum(counts)
    return sum(n / total * np.log(classes * n / total) / np.log(classes) for n in counts if n)


def literal_wcs(table):
    whole = table.sum(0)
    cosines = [own @ whole / (np.linalg.norm(own) * np.linalg.norm(whole)) for own in table]
    return sum(own.sum() / table.sum() * cosine for own, cosine in zip(table, cosines, strict=True))


def test_formulas():
    for dtype in (np.int32, np.float32):
        np.testing.assert_allclose(multiclass_imbalance_degree(COUNTS[0].astype(dtype)), literal_mid(COUNTS[0]), 1e-5)
        np.testing.assert_allclose(weighted_cosine_similarity(COUNTS.astype(dtype)), literal_wcs(COUNTS), 1e-5)
    np.testing.assert_allclose(multiclass_imbalance_degree(COUNTS), kl_to_uniform(COUNTS) / np.log(4), 1e-6)


def test_clients_alike_give_one_whatever_their_size_and_clients_apart_the_least():
    alike = np.outer([1, 5, 200, 3], [7, 1, 4])
    assert float(weighted_cosine_similarity(alike)) == pytest.approx(1, abs=FORMULA)
    assert float(weighted_cosine_similarity(9 * np.eye(16))) == pytest.approx(1 / 4, abs=FORMULA)


def test_a_clients_say_is_its_size():
    table = np.array([[90, 0], [0, 10]])
    expected = (90 * 90 + 10 * 10) / (100 * np.hypot(90, 10))
    assert float(weighted_cosine_similarity(table)) == pytest.approx(expected, rel=FORMULA)
    with_empty = np.vstack([table, [[0, 0]]])
    assert float(weighted_cosine_similarity(with_empty)) == pytest.approx(expected, rel=FORMULA)
    slopes = jax.grad(weighted_cosine_similarity)(with_empty.astype(np.float32))
    np.testing.assert_allclose(slopes[:2], jax.grad(weighted_cosine_similarity)(table.astype(np.float32)), FORMULA)
    assert np.isfinite(slopes).all()


def test_edges():
    found = multiclass_imbalance_degree(jnp.array([[5, 0, 0], [0, 0, 0], [2, 2, 2]]))
    assert found.tolist() == pytest.approx([1, 0, 0])
    assert float(multiclass_imbalance_degree(jnp.array([7]))) == 0
    assert float(weighted_cosine_similarity(jnp.zeros((3, 2)))) == 1
    gradient = jax.jit(jax.grad(lambda table: weighted_cosine_similarity(table)))(jnp.array([[2.0, 1.0], [0.0, 3.0]]))
    assert bool(jnp.isfinite(gradient).all())
