"""The loss on batch-normalisation statistics against normal laws, its oracles, and channels that are constant."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding import FORMULA, STEPS, SUM

from fedjax_bal.balance import batch_norm_statistics_loss

SIZES = (3, 5, 2)


def drawn(seed):
    """Observed means and variances, stored means and variances, of three layers."""
    rng = np.random.default_rng(seed)
    means = [[rng.normal(0, 1, size).astype(np.float32) for size in SIZES] for _ in range(2)]
    variances = [[rng.uniform(0.3, 3, size).astype(np.float32) for size in SIZES] for _ in range(2)]
    return means[0], variances[0], means[1], variances[1]


def by_quadrature(mean, variance, stored_mean, stored):
    """The divergence of one normal law from another, as the integral that defines it."""
    grid = np.linspace(mean - 12 * variance**0.5, mean + 12 * variance**0.5, 20_001)
    log_density = lambda centre, spread: -0.5 * np.log(2 * np.pi * spread) - (grid - centre) ** 2 / (2 * spread)
    own, other = log_density(mean, variance), log_density(stored_mean, stored)
    return np.sum(np.exp(own) * (own - other)) * (grid[1] - grid[0])


def transcribed(means, variances, running_means, running_variances):
    """By layer, with the added 1e-6, in float64."""
    layers = []
    for group in zip(means, variances, running_means, running_variances, strict=True):
        m, v, rm, rv = (np.asarray(part, np.float64) for part in group)
        sigma, stored = np.sqrt(v + 1e-6), np.sqrt(rv + 1e-6)
        layers.append(np.sum(np.log(stored / sigma) + (v + (m - rm) ** 2) / (2 * rv + 1e-6) - 0.5))
    return layers


def test_equals_the_divergence_of_normal_laws():
    case = drawn(0)
    channels = [np.concatenate(part).astype(float) for part in case]
    wanted = sum(by_quadrature(*values) for values in zip(*channels, strict=True))
    np.testing.assert_allclose(batch_norm_statistics_loss(*case, "sum"), wanted, rtol=2e-5)


def test_sums_over_channels_and_averages_or_sums_over_layers():
    case = drawn(1)
    layers = transcribed(*case)
    np.testing.assert_allclose(batch_norm_statistics_loss(*case), np.mean(layers), rtol=SUM)
    np.testing.assert_allclose(batch_norm_statistics_loss(*case, mode="sum"), np.sum(layers), rtol=SUM)


def test_a_shift_of_one_deviation_costs_half_a_nat_and_equal_statistics_nothing():
    ones, zeros = [np.ones(4, np.float32)], [np.zeros(4, np.float32)]
    assert float(batch_norm_statistics_loss(ones, ones, zeros, ones)) == pytest.approx(4 * 0.5, abs=SUM)
    assert float(batch_norm_statistics_loss(ones, ones, ones, ones)) == pytest.approx(0, abs=SUM)
    small = [np.full(4, 1e-3, np.float32)]
    # The added 1e-6 shows: v / (2 v + 1e-6) - 1/2.
    assert float(batch_norm_statistics_loss(ones, small, ones, small)) == pytest.approx(-4 * 2.4988e-4, rel=1e-3)


def test_gradients_are_the_formula_s_and_reach_the_observed_statistics_only():
    case = drawn(2)
    gradients = jax.jit(jax.grad(batch_norm_statistics_loss, (0, 1, 2, 3)))(*case)
    for layer in range(3):
        mean, variance, stored_mean, stored = (np.asarray(part[layer], np.float64) for part in case)
        of_mean, of_variance, *others = (part[layer] for part in gradients)
        np.testing.assert_allclose(
            of_mean, 2 * (mean - stored_mean) / (2 * stored + 1e-6) / 3, rtol=STEPS, atol=FORMULA
        )
        wanted = (1 / (2 * stored + 1e-6) - 0.5 / (variance + 1e-6)) / 3
        np.testing.assert_allclose(of_variance, wanted, rtol=STEPS, atol=FORMULA)
        assert all((other == 0).all() for other in others)


def test_constant_channels_are_finite_in_value_and_gradient():
    observed, stored = np.array([0.0, 1.0, 0.0], np.float32), np.array([0.0, 0.0, 1.0], np.float32)
    means, running = [np.array([2.0, 0.0, 0.0], np.float32)], [np.array([2.0, 0.0, 0.0], np.float32)]
    case = means, [observed], running, [stored]
    value, gradients = jax.jit(jax.value_and_grad(batch_norm_statistics_loss, (0, 1)))(*case)
    np.testing.assert_allclose(value, transcribed(*case)[0], rtol=SUM)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradients))


def test_a_model_without_batch_normalisation_has_no_loss():
    assert float(batch_norm_statistics_loss((), (), (), ())) == 0
    assert float(batch_norm_statistics_loss((), (), (), (), "sum")) == 0


def test_what_does_not_match_is_refused():
    means, variances, running_means, running_variances = drawn(0)
    with pytest.raises(ValueError, match="mode: received 'total'"):
        inspect.unwrap(batch_norm_statistics_loss)(means, variances, running_means, running_variances, "total")
    with pytest.raises(AssertionError, match="trees 0 and 2"):
        batch_norm_statistics_loss(means, variances, running_means[:2], running_variances)
    narrow = [*running_variances[:2], np.ones(1, np.float32)]
    with pytest.raises(AssertionError, match=r"\(1,\)"):
        batch_norm_statistics_loss(means, variances, running_means, narrow)
