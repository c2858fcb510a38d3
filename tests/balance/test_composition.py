"""FL-CIR's composition and reward against float64, and at their edges."""

import inspect

import jax
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from rounding import FORMULA, STEPS, SUM

from fedjax_bal.balance import composition_from_gradients, composition_reward

MODES = ["inverse", "softmax_inv", "softmax_rel"]
NORMS = np.array([[0.3, 0.05, 2.0, 0.7], [1e-4, 3e-4, 1e-1, 1e-4], [5.0, 5.0, 5.0, 5.0]])
EXTREMES = [0.0, 1e-45, 1e-38, 1e-30, 1e-12, 1e-6, 1.0, 1e38]
ANY_NORM = st.one_of(st.floats(0, 2.0**127, width=32), st.sampled_from(EXTREMES))


def transcribed(norms, mode, beta):
    """Shares in float64, with what overflows left to scipy's softmax."""
    norms = np.asarray(norms, np.float64)
    if mode == "inverse":
        return (1 / norms) / (1 / norms).sum(-1, keepdims=True)
    if mode == "softmax_inv":
        return scipy.special.softmax(beta / norms, axis=-1)
    relative = norms.min(-1, keepdims=True) / norms
    return scipy.special.softmax(beta * (relative - relative.mean(-1, keepdims=True)), axis=-1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_shares_equal_the_formula_in_float64(mode, beta):
    got = composition_from_gradients(NORMS.astype(np.float32), mode, beta)
    np.testing.assert_allclose(got, transcribed(NORMS.astype(np.float32), mode, beta), rtol=3e-5, atol=1e-30)


def test_beta_sharpens_the_relative_softmax_like_a_temperature():
    got = composition_from_gradients(NORMS, "softmax_rel", 1 / 0.25)
    relative = NORMS.min(-1, keepdims=True) / NORMS
    wanted = scipy.special.softmax((relative - relative.mean(-1, keepdims=True)) / 0.25, axis=-1)
    np.testing.assert_allclose(got, wanted, rtol=SUM)


def test_inverse_of_counts_of_any_type():
    for dtype in (np.int32, np.float32):
        found = composition_from_gradients(np.array([1, 2, 4], dtype))
        np.testing.assert_allclose(found, np.array([4, 2, 1]) / 7, rtol=FORMULA)


@pytest.mark.parametrize("mode", MODES)
@given(norms=st.lists(ANY_NORM, min_size=5, max_size=5))
def test_any_norms_give_shares_that_fall_as_the_norm_rises(mode, norms):
    norms = np.array(norms, np.float32)
    shares = np.asarray(composition_from_gradients(norms, mode))
    assert np.isfinite(shares).all()
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1, abs=FORMULA)
    assert (np.diff(shares[np.argsort(norms, kind="stable")]) <= 0).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e30])
@pytest.mark.parametrize("mode", ["inverse", "softmax_rel"])
def test_the_scale_of_the_gradients_does_not_matter(mode, scale):
    norms = np.array([3.0, 1.0, 2.0, 5.0], np.float32)
    got = composition_from_gradients(norms * np.float32(scale), mode)
    np.testing.assert_allclose(got, composition_from_gradients(norms, mode), rtol=SUM)


def test_a_class_without_gradient_counts_as_one_in_a_million_millions():
    got = composition_from_gradients(np.array([0.0, 1e-12, 1e-11, 1e-3]))
    np.testing.assert_allclose(got, np.array([1, 1, 0.1, 1e-9]) / 2.1, rtol=SUM)
    np.testing.assert_allclose(composition_from_gradients(np.array([0.0, 1e-20, 2e-20])), [0.4, 0.4, 0.2], rtol=SUM)
    for mode in MODES:
        np.testing.assert_allclose(composition_from_gradients(np.zeros(4), mode), 0.25)


def test_the_smallest_normal_number_is_a_gradient_and_anything_below_is_none():
    tiny = np.finfo(np.float32).tiny
    least = lambda norm: float(composition_from_gradients(np.array([norm, 1e-5], np.float32))[1])
    assert least(tiny) < 1e-30
    assert least(tiny / 2) == pytest.approx(1e-7, rel=STEPS)


@pytest.mark.parametrize("mode", MODES)
def test_infinite_norms_have_no_share_and_nan_stays(mode):
    shares = np.asarray(composition_from_gradients(np.array([np.inf, 2.0, 2.0]), mode))
    assert shares[1] == shares[2]
    assert shares.sum() == pytest.approx(1, abs=FORMULA)
    if mode == "inverse":
        assert shares[0] == 0
    assert np.isnan(composition_from_gradients(np.array([np.nan, 1.0, 0.0]), mode)).all()


def test_rewards_of_uniform_and_of_one_class():
    one = np.eye(10)[3]
    assert float(composition_reward(np.full(10, 0.1))) == pytest.approx(0.434294, abs=5e-7)
    assert float(composition_reward(one)) == pytest.approx(1 / 31.085, rel=2e-5)
    assert float(composition_reward(one)) == pytest.approx(0.03217, abs=5e-6)
    assert float(composition_reward(one, "literal")) == pytest.approx(1 / np.log(10), rel=FORMULA)
    assert float(composition_reward(np.full(10, 0.1), "literal")) == pytest.approx(1e6)


def test_rewards_equal_scipy():
    compositions = np.random.default_rng(0).dirichlet(np.full(6, 0.5), 30)
    uniform = np.full(6, 1 / 6)
    bounded = [1 / (np.log(6) + scipy.stats.entropy(uniform, row + 1e-15)) for row in compositions]
    literal = [1 / scipy.stats.entropy(row, uniform) for row in compositions]
    np.testing.assert_allclose(composition_reward(compositions), bounded, rtol=SUM)
    np.testing.assert_allclose(composition_reward(compositions, "literal"), literal, rtol=SUM)
    np.testing.assert_allclose(composition_reward(compositions * 7.0), bounded, rtol=SUM)


@pytest.mark.parametrize("mode", ["bounded", "literal"])
@given(shares=st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4))
def test_no_composition_is_worth_more_than_the_uniform_one(mode, shares):
    reward = float(composition_reward(np.array(shares, np.float32), mode))
    assert 0 < reward <= float(composition_reward(np.full(4, 0.25), mode)) * (1 + 1e-6)


@pytest.mark.parametrize("mode", ["bounded", "literal"])
def test_reward_at_its_edges(mode):
    assert composition_reward(np.zeros(4), mode) == composition_reward(np.ones(4), mode)
    assert np.isfinite(composition_reward(np.ones(1), mode))
    assert np.isnan(composition_reward(np.array([np.nan, 0.5, 0.5]), mode))
    assert (jax.grad(composition_reward)(np.zeros(4), mode) == 0).all()


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match="mode: received 'inv'"):
        inspect.unwrap(composition_from_gradients)(NORMS, "inv")
    with pytest.raises(ValueError, match="mode: received 'paper'"):
        inspect.unwrap(composition_reward)(NORMS, "paper")
