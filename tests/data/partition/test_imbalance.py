import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_bal.data.partition import long_tailed


def rng(seed=0):
    return np.random.default_rng(seed)


def counts(labels, *arguments, seed=0, classes=10):
    return np.bincount(labels[long_tailed(rng(seed), labels, *arguments)], minlength=classes).tolist()


@pytest.mark.parametrize(
    ("classes", "each", "factor", "total"),
    [(10, 5000, 100, 12_406), (10, 5000, 50, 13_996), (10, 5000, 10, 20_431), (100, 500, 100, 10_847)],
)
def test_cifar_lt_has_the_sizes_that_everybody_reports(classes, each, factor, total):
    labels = np.repeat(np.arange(classes), each)
    kept = long_tailed(rng(), labels, factor)
    literal = [int(each * (1 / factor) ** (label / (classes - 1))) for label in range(classes)]
    assert len(kept) == total == sum(literal)
    assert np.bincount(labels[kept]).tolist() == literal


def test_steps():
    labels = np.repeat(np.arange(10), 500)
    assert counts(labels, 10, "step") == [500] * 5 + [50] * 5
    assert counts(labels[labels < 3], 7, "step", classes=3) == [500, 500, 71]


def test_orders():
    labels = np.repeat([0, 1, 2], [40, 100, 60])
    # by label the smallest n_max decides: class 0 has 40; by frequency: class 1, then 2, then 0
    assert counts(labels, 4, classes=3) == [40, 20, 10]
    assert counts(labels, 4, "exponential", "frequency", classes=3) == [25, 100, 50]
    drawn = {tuple(counts(labels, 4, "exponential", "random", seed=seed, classes=3)) for seed in range(20)}
    assert len(drawn) == 6


def test_a_factor_of_one_keeps_a_balanced_set_whole_and_levels_another():
    labels = np.repeat([3, 8], [5, 5])
    assert long_tailed(rng(), labels, 1).tolist() == list(range(10))
    assert len(long_tailed(rng(), np.repeat([3, 8], [5, 9]), 1)) == 10


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=12),
    factor=st.floats(1, 1000),
    profile=st.sampled_from(["exponential", "step"]),
    order=st.sampled_from(["label", "frequency", "random"]),
)
def test_any_pool(sizes, factor, profile, order):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    kept = long_tailed(rng(), labels, factor, profile, order)
    assert (np.diff(kept) > 0).all()
    left = np.bincount(labels[kept], minlength=len(sizes))
    assert (left >= 1).all() and (left <= sizes).all()
    # Rounding down moves each end by less than one row.
    assert (left.max() + 1) / max(left.min(), 1) >= min(factor, left.max()) * 0.999 or len(sizes) == 1
    assert left.max() <= factor * (left.min() + 1) * 1.001


@pytest.mark.parametrize("factor", [0.01, 0, -1, np.nan, np.inf, True, "100", None])
def test_a_wrong_factor_is_refused(factor):
    with pytest.raises(ValueError, match="imbalance_factor=.*at least 1.*this is 100"):
        long_tailed(rng(), np.zeros(4, int), factor)


def test_unknown_words():
    with pytest.raises(ValueError, match="profile: received 'exp'"):
        long_tailed(rng(), np.zeros(4, int), 2, "exp")
    with pytest.raises(ValueError, match="order: received 'x'"):
        long_tailed(rng(), np.zeros(4, int), 2, order="x")
