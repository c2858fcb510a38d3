"""Scores against hand-computed values."""

import numpy as np
import pytest

from fedjax_bal.metrics.classification import classification_metrics, summarise


def test_scores_of_a_small_matrix():
    scores = classification_metrics(np.array([[8, 2, 0], [1, 4, 0], [5, 0, 0]]))
    assert scores["test_accuracy"] == pytest.approx(12 / 20)
    assert scores["per_class_accuracy"] == pytest.approx([0.8, 0.8, 0.0])
    assert scores["balanced_accuracy"] == pytest.approx(1.6 / 3)
    assert scores["worst_class_accuracy"] == 0
    # F1 = 2 TP / (2 TP + FP + FN): 16/24, 8/11, 0
    assert scores["macro_f1"] == pytest.approx((16 / 24 + 8 / 11 + 0) / 3)


def test_a_class_without_test_images_counts_nowhere():
    scores = classification_metrics(np.array([[3, 1], [0, 0]]))
    assert scores["per_class_accuracy"] == [0.75, None]
    assert scores["balanced_accuracy"] == scores["worst_class_accuracy"] == 0.75


def test_summary_of_a_curve():
    summary = summarise([0.1, 0.7, 0.5, 0.6, 0.4, 0.2], [2, 4, 6, 8, 10, 12], 0.55)
    assert summary == {
        "final_accuracy": 0.2,
        "best_accuracy": 0.7,
        "last5_accuracy": pytest.approx(0.48),
        "last10_accuracy": pytest.approx(2.5 / 6),
        "rounds_to_target": 4,
    }
    assert summarise([0.0] + [0.5] * 10, range(1, 12), 0.55)["last10_accuracy"] == 0.5
    assert summarise([0.1], [1], 0.2)["rounds_to_target"] is None
    assert summarise([0.1], [1], None)["rounds_to_target"] is None
