"""Divergences against scipy, and at their edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedjax_bal.balance import kl_divergence, kl_to_uniform


def test_kl_divergence_equals_scipy():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(6), 20), rng.dirichlet(np.ones(6), 20)
    np.testing.assert_allclose(kl_divergence(p, q), scipy.stats.entropy(p, q, axis=1), rtol=1e-5)


def test_kl_to_uniform_equals_scipy_for_counts_of_any_type():
    counts = np.array([[3, 1, 0, 0], [5, 5, 5, 5], [1, 0, 0, 0]])
    wanted = [scipy.stats.entropy(row / row.sum(), np.full(4, 0.25)) for row in counts]
    for dtype in (np.int32, np.float32):
        np.testing.assert_allclose(kl_to_uniform(counts.astype(dtype)), wanted, rtol=1e-5, atol=1e-7)


def test_disjoint_classes_reach_log_c_and_cancel_when_pooled():
    one_hot = np.eye(10)
    np.testing.assert_allclose(kl_to_uniform(one_hot), np.log(10), rtol=1e-6)
    assert float(kl_to_uniform(one_hot.sum(0))) == pytest.approx(0, abs=1e-6)


def test_an_empty_row_is_zero_with_finite_gradient():
    assert float(kl_to_uniform(jnp.zeros(3))) == 0
    assert bool(jnp.isfinite(jax.grad(lambda c: kl_to_uniform(c))(jnp.array([2.0, 1.0, 1.0]))).all())


def test_batches_by_vmap():
    counts = jnp.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_allclose(jax.vmap(kl_to_uniform)(counts), kl_to_uniform(counts), rtol=1e-6)
