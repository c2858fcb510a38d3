"""Weights and sampling laws of classes: their oracles in float64, and their edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounding import DOUBLE, FORMULA, STEPS

from fedjax_bal.balance import decayed_beta, effective_number_weights, inverse_class_probs


def transcribed(counts, beta):
    """The weights in float64, for the beta that is left once it has been rounded to 32 bits."""
    beta, counts = np.float64(np.float32(beta)), np.asarray(counts, np.float64)
    held = np.maximum(counts, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = (1 - beta) / -np.expm1(held * np.log(beta)) if beta < 1 else 1 / held
    return np.where(counts > 0, weights, 0.0)


COUNTS = np.array([[1, 2, 10, 0], [4500, 56, 55, 1], [10**6, 2 * 10**9, 0, 123_456]])


@pytest.mark.parametrize("beta", [0.0, 1e-6, 0.5, 0.8, 0.99, 0.9999, 0.999999, 1 - 1e-9, 1.0])
def test_weights_equal_the_formula_in_float64(beta):
    wanted = transcribed(COUNTS, beta)
    for counts in (COUNTS.astype(np.int32), COUNTS.astype(np.float32)):
        np.testing.assert_allclose(effective_number_weights(counts, beta), wanted, rtol=2e-6, atol=0)


@given(
    counts=st.lists(st.integers(0, 2**31 - 1), min_size=4, max_size=4).map(lambda counts: np.array(counts, np.int32)),
    beta=st.floats(0, 1, width=32),
)
def test_weights_lie_between_one_over_the_count_and_one(counts, beta):
    weights = np.asarray(effective_number_weights(counts, beta), np.float64)
    assert (weights[counts == 0] == 0).all()
    held = counts[counts > 0].astype(np.float64)
    least = np.maximum(1 / held, 1 - np.float64(beta))
    assert (weights[counts > 0] >= least * (1 - 1e-6)).all()
    assert (weights[counts > 0] <= 1 + 1e-6).all()
    np.testing.assert_allclose(weights, transcribed(counts, beta), rtol=3e-6, atol=0)


def test_limits():
    counts = np.array([1, 3, 10_000, 0])
    assert effective_number_weights(counts, 0.0).tolist() == [1.0, 1.0, 1.0, 0.0]
    np.testing.assert_allclose(effective_number_weights(counts, 1 - 1e-9)[:3], 1 / counts[:3], rtol=STEPS)
    np.testing.assert_allclose(effective_number_weights(counts, 1.0)[:3], 1 / counts[:3], rtol=FORMULA)
    huge = effective_number_weights(np.array([3e38, 1e9], np.float32), 0.999)
    np.testing.assert_allclose(huge, 1 - np.float32(0.999), rtol=FORMULA)


def test_double_precision_is_kept():
    with jax.enable_x64(True):
        weights = effective_number_weights(COUNTS, 1 - 1e-9)
        assert weights.dtype == np.float64
        held = np.maximum(COUNTS, 1).astype(np.longdouble)
        beta = np.longdouble(1 - 1e-9)
        wanted = np.where(COUNTS > 0, (1 - beta) / -np.expm1(held * np.log(beta)), 0)
        np.testing.assert_allclose(weights, wanted.astype(np.float64), rtol=DOUBLE)


@pytest.mark.parametrize("beta", [0.0, 0.9999, 1.0])
def test_no_gradient_passes(beta):
    total = lambda counts, beta: effective_number_weights(counts, beta).sum()
    gradients = jax.jit(jax.grad(total, (0, 1)))(jnp.array([5.0, 0.0, 1.0]), jnp.array(beta))
    assert all((np.asarray(gradient) == 0).all() for gradient in gradients)


@pytest.mark.parametrize(("round", "wanted"), [(0, 0.9999), (10, 0.98447), (50, 0.93378), (200, 0.84010), (10**6, 0.8)])
def test_beta_of_a_round(round, wanted):
    assert float(decayed_beta(round, 0.9999, 0.8, 0.992)) == pytest.approx(wanted, abs=6e-6)
    assert float(decayed_beta(jnp.int32(round), 0.9999, 0.8, 0.992)) == pytest.approx(wanted, abs=6e-6)


def test_ends_of_the_schedule_are_exact():
    assert decayed_beta(0, 0.9999, 0.8, 0.992) == np.float32(0.9999)
    assert decayed_beta(7, 0.9999, 0.8, 1.0) == np.float32(0.9999)
    assert decayed_beta(0, 0.9999, 0.8, 0.0) == np.float32(0.9999)
    assert decayed_beta(1, 0.9999, 0.8, 0.0) == np.float32(0.8)


@pytest.mark.parametrize(
    ("round", "ratio"), [(0, "1.24"), (1, "7.3"), (2, "13.5"), (5, "29"), (10, "47"), (20, "66"), (50, "79")]
)
def test_how_often_the_main_class_of_a_long_tail_client_is_drawn(round, ratio):
    """Main to tail class, for a client with 4500 samples of one and 5000 / 90 of another: 81 without weights."""
    counts = np.array([4500, 5000 / 90])
    drawn = counts * np.asarray(effective_number_weights(counts, decayed_beta(round, 0.9999, 0.8, 0.992)), np.float64)
    digits = len(ratio.partition(".")[2])
    assert f"{drawn[0] / drawn[1]:.{digits}f}" == ratio
    drawn = counts * np.asarray(effective_number_weights(counts, 0.0))
    assert drawn[0] / drawn[1] == pytest.approx(81, rel=FORMULA)


def by_steps(counts):
    """Shares, their complements, the complements normalised: the paper's three equations."""
    shares = np.asarray(counts, np.float64) / np.sum(counts)
    opposite = 1 - shares
    return opposite / opposite.sum()


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float32])
def test_one_large_one_small_and_two_absent_classes(dtype):
    probs = inverse_class_probs(np.array([90, 10, 0, 0], dtype))
    np.testing.assert_allclose(probs, [0.1 / 3, 0.3, 1 / 3, 1 / 3], rtol=FORMULA)


def test_equals_the_three_steps():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 500, (6, 7)) * rng.integers(0, 2, (6, 7))
    wanted = np.stack([by_steps(row) for row in counts])
    got = inverse_class_probs(counts)
    np.testing.assert_allclose(got, wanted, rtol=FORMULA, atol=1e-9)
    np.testing.assert_allclose(got.sum(-1), 1, rtol=FORMULA)
    np.testing.assert_allclose(inverse_class_probs(0.125 * counts), got, rtol=FORMULA)


def test_the_only_class_of_a_client_is_never_drawn():
    assert inverse_class_probs(np.array([0, 7, 0])).tolist() == [0.5, 0.0, 0.5]
    assert inverse_class_probs(np.array([0, 7])).tolist() == [1.0, 0.0]


def test_an_empty_client_draws_uniformly():
    np.testing.assert_allclose(inverse_class_probs(np.zeros(5, int)), 0.2, rtol=FORMULA)


def test_a_tiny_rest_keeps_its_digits():
    probs = inverse_class_probs(np.array([10_000_000, 1, 0]))
    np.testing.assert_allclose(probs, by_steps([10_000_000, 1, 0]), rtol=FORMULA)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match=r"class_counts: received shape \(1,\)"):
        inverse_class_probs(np.array([3]))
