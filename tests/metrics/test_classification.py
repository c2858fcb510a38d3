"""Scores against hand-computed values."""

import numpy as np
import pytest

from fedjax_bal.metrics.classification import (
    accuracy,
    balanced_accuracy,
    macro_f1,
    mean_known,
    rank_correlations,
    recalls,
    worst_class_accuracy,
)


def test_scores_of_a_small_matrix():
    confusion = np.array([[8, 2, 0], [1, 4, 0], [5, 0, 0]])
    assert accuracy(confusion) == pytest.approx(12 / 20)
    assert recalls(confusion).tolist() == pytest.approx([0.8, 0.8, 0.0])
    assert balanced_accuracy(confusion) == pytest.approx(1.6 / 3)
    assert worst_class_accuracy(confusion) == 0
    # F1 = 2 TP / (2 TP + FP + FN): 16/24, 8/11, 0
    assert macro_f1(confusion) == pytest.approx((16 / 24 + 8 / 11 + 0) / 3)


def test_a_class_without_test_images_counts_nowhere():
    confusion = np.array([[3, 1], [0, 0]])
    np.testing.assert_equal(recalls(confusion), [0.75, np.nan])
    assert balanced_accuracy(confusion) == worst_class_accuracy(confusion) == 0.75


def test_a_mean_is_of_what_is_known():
    assert mean_known(np.array([0.5, np.nan, 1.0])) == 0.75
    assert np.isnan(mean_known(np.array([np.nan]))) and np.isnan(mean_known(np.zeros(0)))


def test_equal_numbers_share_their_rank_and_equal_rows_have_no_correlation():
    first, second = np.array([[1, 1, 2, 3], [5, 5, 5, 5]]), np.array([[1, 2, 3, 3], [1, 2, 3, 4]])
    # Ranks 1.5, 1.5, 3, 4 and 1, 2, 3.5, 3.5: products of deviations sum to 4, squares to 4.5 each.
    np.testing.assert_allclose(rank_correlations(first, second), [4 / 4.5, np.nan])
