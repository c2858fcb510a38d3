"""FedLC's offsets and FedRS's factors against float64, and at their edges."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounding import FORMULA, STEPS

from fedjax_bal.balance import logit_calibration, restricted_scale

COUNTS = np.array([[16, 1, 0, 500], [0, 0, 3, 0], [0, 0, 0, 0]])
ANY_COUNTS = st.lists(st.integers(0, 2**31 - 1), min_size=4, max_size=4).map(lambda counts: np.array(counts, np.int32))


@given(counts=ANY_COUNTS, tau=st.floats(0, 10, width=32))
def test_calibration_equals_the_formula_in_float64(counts, tau):
    wanted = tau * np.maximum(counts.astype(np.float64), 1e-8) ** -0.25
    for given_counts in (counts, counts.astype(np.float32)):
        np.testing.assert_allclose(logit_calibration(given_counts, tau), wanted, rtol=2e-6, atol=1e-37)


def test_calibration_of_absent_classes_is_large_and_finite():
    assert logit_calibration(COUNTS, 1.0)[0].tolist() == pytest.approx([0.5, 1.0, 100.0, 500**-0.25], rel=FORMULA)
    assert (logit_calibration(COUNTS, 0.0) == 0).all()
    shifted = jax.nn.softmax(jnp.zeros(4) - logit_calibration(COUNTS[0], 1.0))
    assert float(shifted[2]) == pytest.approx(np.exp(-100) / np.exp(-np.array([0.5, 1, 500**-0.25])).sum(), rel=STEPS)


def test_calibration_of_equal_counts_shifts_all_logits_alike():
    logits = jnp.array([0.3, -1.0, 2.0])
    before, after = jax.nn.log_softmax(logits), jax.nn.log_softmax(logits - logit_calibration(np.full(3, 7), 1.0))
    np.testing.assert_allclose(after, before, rtol=FORMULA, atol=FORMULA)


@given(counts=ANY_COUNTS, alpha=st.floats(0, 1, width=32))
def test_scale_equals_the_formula_in_float64(counts, alpha):
    share = counts / max(1, counts.max())
    for given_counts in (counts, counts.astype(np.float32)):
        hard, soft = restricted_scale(given_counts, alpha), restricted_scale(given_counts, alpha, "soft")
        assert hard.tolist() == [1.0 if count else alpha for count in counts]
        np.testing.assert_allclose(soft, alpha + (1 - alpha) * share, rtol=FORMULA, atol=1e-37)


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_scale_at_its_ends(mode):
    scale = np.asarray(restricted_scale(COUNTS, 0.1, mode))
    assert (scale[COUNTS == 0] == np.float32(0.1)).all()  # an empty client's classes are all absent
    assert scale[0, 3] == scale[1, 2] == 1
    np.testing.assert_allclose(restricted_scale(COUNTS, 1.0, mode), 1.0, rtol=1e-7)
    np.testing.assert_array_equal(restricted_scale(COUNTS, 0.0, mode)[1], [0, 0, 1, 0])


def test_a_factor_of_zero_holds_back_the_gradient_of_absent_classes():
    scale = restricted_scale(np.array([3, 2, 0]), 0.0)
    gradient = jax.jit(jax.grad(lambda logits: -jax.nn.log_softmax(scale * logits)[0]))(jnp.array([1.0, 2.0, 3.0]))
    assert gradient[2] == 0
    assert (gradient[:2] != 0).all()


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode: received 'sfot'"):
        inspect.unwrap(restricted_scale)(COUNTS, 0.5, "sfot")


@pytest.mark.parametrize("function", [logit_calibration, restricted_scale, lambda c, a: restricted_scale(c, a, "soft")])
def test_no_gradient_passes(function):
    counts = jnp.asarray(COUNTS, float)
    gradients = jax.jit(jax.grad(lambda counts, strength: function(counts, strength).sum(), (0, 1)))(counts, 0.5)
    assert all((np.asarray(gradient) == 0).all() for gradient in gradients)


def test_double_precision_is_kept():
    with jax.enable_x64(True):
        for function in (logit_calibration, restricted_scale):
            assert function(COUNTS, 0.1).dtype == np.float64
        np.testing.assert_allclose(logit_calibration(np.array([0, 81]), 1.0), [100, 1 / 3], rtol=1e-14)
