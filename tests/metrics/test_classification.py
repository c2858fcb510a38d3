"""Scores of confusion matrices, groups of classes, and accuracies over clients."""

import numpy as np
import pytest

from fedjax_bal.metrics import Shots, across_clients, class_means, client_accuracies, listed_clients, shot_groups
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


def test_more_than_100_is_many_fewer_than_20_is_few_and_both_ends_are_medium():
    groups = shot_groups(np.array([500, 101, 100, 20, 19, 0]))
    assert groups["many"].tolist() == [True, True, False, False, False, False]
    assert groups["medium"].tolist() == [False, False, True, True, False, False]
    assert groups["few"].tolist() == [False, False, False, False, True, True]


def test_other_ends_may_be_given_and_every_class_is_in_one_group():
    groups = shot_groups(np.arange(12), Shots(few=3, many=3))
    assert [groups[name].sum() for name in ("few", "medium", "many")] == [3, 1, 8]
    with pytest.raises(ValueError, match="few=5 above many=3"):
        shot_groups(np.arange(12), Shots(few=5, many=3))


def test_clients_count_the_same_whatever_they_hold():
    accuracies = client_accuracies(np.array([1, 90, 0, 7]), np.array([2, 100, 0, 10]))
    np.testing.assert_array_equal(accuracies, [0.5, 0.9, np.nan, 0.7])
    spread = across_clients("it", accuracies)
    assert spread["it"] == pytest.approx(0.7)
    assert spread["it_std"] == pytest.approx((0.08 / 3) ** 0.5)
    assert spread["it_worst10"] == 0.5
    assert (spread["it_p10"], spread["it_p90"]) == (pytest.approx(0.54), pytest.approx(0.86))


def test_a_clients_mean_over_classes_is_of_the_classes_that_it_has():
    hits, sizes = np.array([[4, 0, 1], [0, 0, 0], [0, 3, 0]]), np.array([[5, 0, 2], [0, 0, 0], [0, 3, 0]])
    np.testing.assert_allclose(class_means(hits, sizes), [(0.8 + 0.5) / 2, np.nan, 1.0])
    np.testing.assert_allclose(client_accuracies(hits, sizes)[0], [0.8, np.nan, 0.5])


def test_clients_are_listed_in_their_order_up_to_a_thousand():
    assert listed_clients(np.array([0.9, np.nan, 1 / 3])) == [0.9, None, 0.3333]
    assert len(listed_clients(np.zeros(1000)) or ()) == 1000 and listed_clients(np.zeros(1001)) is None


@pytest.mark.parametrize(("clients", "worst"), [(1, [0]), (10, [0]), (11, [0, 1]), (30, [0, 1, 2])])
def test_the_worst_tenth_is_rounded_up(clients, worst):
    values = np.arange(clients)[::-1] / 100
    assert across_clients("it", values)["it_worst10"] == pytest.approx(np.mean(worst) / 100)


def test_without_clients_there_is_nothing():
    assert set(across_clients("it", np.zeros(0)).values()) == {None}
