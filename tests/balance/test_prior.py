"""Prior-calibrated cross-entropy against float64, and what it excludes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding import FORMULA, SUM

from fedjax_bal.balance import prior_calibrated_cross_entropy, prior_calibrated_logits, smoothed_prior


def test_smoothed_prior_of_two_classes_in_ten():
    counts = np.array([500, 500] + [0] * 8)
    wanted = [0.496] * 2 + [0.001] * 8
    np.testing.assert_allclose(smoothed_prior(counts, 0.01), wanted, rtol=SUM)
    np.testing.assert_allclose(smoothed_prior(counts.astype(np.float32), 0.01), wanted, rtol=SUM)


def test_smoothed_prior_of_an_empty_client_is_uniform():
    np.testing.assert_allclose(smoothed_prior(np.zeros(4, int), 0.0), 0.25)


def test_cross_entropy_equals_the_ratio_of_the_paper():
    rng = np.random.default_rng(1)
    logits, labels, prior = rng.normal(size=(30, 5)), rng.integers(0, 5, 30), rng.dirichlet(np.ones(5))
    scores = prior * np.exp(logits)
    wanted = -np.log(scores[np.arange(30), labels] / scores.sum(1))
    got = prior_calibrated_cross_entropy(logits.astype(np.float32), labels, prior.astype(np.float32))
    np.testing.assert_allclose(got, wanted, rtol=SUM)


def test_epsilon_one_is_plain_cross_entropy():
    logits, labels = jnp.array([[2.0, -1.0, 0.5]]), jnp.array([2])
    prior = smoothed_prior(jnp.array([7, 0, 1]), 1.0)
    plain = -jax.nn.log_softmax(logits)[0, 2]
    assert float(prior_calibrated_cross_entropy(logits, labels, prior)[0]) == pytest.approx(float(plain), rel=FORMULA)


def test_an_absent_class_gets_no_gradient_and_changes_nothing():
    prior, labels = jnp.array([0.5, 0.5, 0.0]), jnp.array([0, 1])
    loss = lambda logits: prior_calibrated_cross_entropy(logits, labels, prior).sum()
    logits = jnp.array([[1.0, 2.0, 3.0], [0.0, -1.0, 50.0]])
    assert (jax.jit(jax.grad(loss))(logits)[:, 2] == 0).all()
    assert float(loss(logits)) == float(loss(logits.at[:, 2].set(-7.0)))


def test_a_single_class_client_has_no_loss_and_no_gradient():
    prior = smoothed_prior(jnp.array([0, 9, 0]), 0.0)
    loss = lambda logits: prior_calibrated_cross_entropy(logits, jnp.array([1, 1]), prior).sum()
    logits = jnp.array([[4.0, -3.0, 1.0], [0.0, 0.0, 0.0]])
    assert float(loss(logits)) == 0
    assert (jax.jit(jax.grad(loss))(logits) == 0).all()


def test_a_label_without_prior_gives_zero_not_infinity():
    value, grad = jax.jit(
        jax.value_and_grad(
            lambda z: prior_calibrated_cross_entropy(z, jnp.array([2]), jnp.array([1.0, 0.0, 0.0])).sum()
        )
    )(jnp.ones((1, 3)))
    assert float(value) == 0
    assert (grad == 0).all()


def test_logits_stay_finite_under_extremes():
    calibrated = prior_calibrated_logits(jnp.array([[1e30, -1e30, 0.0]]), jnp.array([1e-30, 1.0, 0.0]))
    assert bool(jnp.isfinite(calibrated).all())


def test_the_prior_of_a_client_with_a_single_row_is_its_class():
    assert smoothed_prior(jnp.array([0, 1, 0]), 0.0).tolist() == [0, 1, 0]
