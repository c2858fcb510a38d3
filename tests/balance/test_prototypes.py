"""Prototypes and feature transfer against plain loops."""

import numpy as np
from rounding import FORMULA, SUM

from fedjax_bal.balance import class_prototypes, class_sums, transfer_features

RNG = np.random.default_rng(2)
FEATURES = RNG.normal(size=(50, 3)).astype(np.float32)
LABELS = RNG.integers(0, 3, 50)
MASK = RNG.random(50) < 0.7


def test_prototypes_are_masked_means():
    means, counts = class_prototypes(FEATURES, LABELS, MASK, 4)
    for c in range(3):
        chosen = MASK & (c == LABELS)
        assert counts[c] == chosen.sum()
        np.testing.assert_allclose(means[c], FEATURES[chosen].astype(float).mean(0), rtol=SUM, atol=FORMULA)
    assert counts[3] == 0
    assert (means[3] == 0).all()


def test_masked_rows_may_hold_anything():
    broken, mask = FEATURES.copy(), MASK.copy()
    broken[0], mask[0] = np.nan, False
    assert np.isfinite(class_sums(broken, LABELS, mask, 3)[0]).all()


def test_transfer_moves_row_j_to_class_j_mod_c():
    rng = np.random.default_rng(3)
    prototypes, labels = rng.normal(size=(10, 3)).astype(np.float32), rng.integers(0, 10, 50)
    moved, targets = map(np.asarray, transfer_features(FEATURES, labels, prototypes, np.ones(10, bool), 0.5))
    assert np.bincount(targets).tolist() == [5] * 10
    for j in range(50):
        wanted = prototypes[j % 10] + 0.5 * (FEATURES[j] - prototypes[labels[j]])
        np.testing.assert_allclose(moved[j], wanted, rtol=SUM, atol=FORMULA)


def test_transfer_to_the_own_class_with_scale_one_changes_no_bit():
    prototypes = np.random.default_rng(4).normal(size=(5, 3)).astype(np.float32)
    labels = np.arange(50) % 5
    moved, targets = transfer_features(FEATURES, labels, prototypes, np.ones(5, bool), 1.0)
    assert (np.asarray(moved) == FEATURES).all()
    assert (np.asarray(targets) == labels).all()


def test_a_missing_prototype_on_either_side_leaves_the_row():
    present = np.array([True, False, True])
    labels = np.array([0, 0, 1, 2])
    moved, targets = transfer_features(FEATURES[:4], labels, np.ones((3, 3), np.float32), present)
    # row 1 aims at the missing class 1, row 2 comes from it; rows 0 and 3 aim at class 0
    assert targets.tolist() == [0, 0, 1, 0]
    assert (np.asarray(moved)[[0, 1, 2]] == FEATURES[[0, 1, 2]]).all()
