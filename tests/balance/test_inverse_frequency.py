"""CBFL's sampling law of classes: its oracle, its three steps in float64, and its edges."""

import jax
import numpy as np
import pytest

from fedjax_bal.balance import inverse_class_probs


def by_steps(counts):
    """Shares, their complements, the complements normalised: the paper's three equations."""
    shares = np.asarray(counts, np.float64) / np.sum(counts)
    opposite = 1 - shares
    return opposite / opposite.sum()


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float32])
def test_one_large_one_small_and_two_absent_classes(dtype):
    probs = inverse_class_probs(np.array([90, 10, 0, 0], dtype))
    np.testing.assert_allclose(probs, [0.1 / 3, 0.3, 1 / 3, 1 / 3], rtol=1e-6)


def test_equals_the_three_steps():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 500, (6, 7)) * rng.integers(0, 2, (6, 7))
    wanted = np.stack([by_steps(row) for row in counts])
    got = inverse_class_probs(counts)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(inverse_class_probs)(counts), got, rtol=1e-6)
    np.testing.assert_allclose(inverse_class_probs(0.125 * counts), got, rtol=1e-6)


def test_the_only_class_of_a_client_is_never_drawn():
    assert inverse_class_probs(np.array([0, 7, 0])).tolist() == [0.5, 0.0, 0.5]
    assert inverse_class_probs(np.array([0, 7])).tolist() == [1.0, 0.0]


def test_an_empty_client_draws_uniformly():
    np.testing.assert_allclose(inverse_class_probs(np.zeros(5, int)), 0.2, rtol=1e-6)


def test_a_tiny_rest_keeps_its_digits():
    probs = inverse_class_probs(np.array([10_000_000, 1, 0]))
    np.testing.assert_allclose(probs, by_steps([10_000_000, 1, 0]), rtol=1e-6)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match=r"class_counts: received shape \(1,\), must have at least 2 classes"):
        inverse_class_probs(np.array([3]))
