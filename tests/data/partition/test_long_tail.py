from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_bal.data.partition import long_tail


def rng(seed=0):
    return np.random.default_rng(seed)


def counts_of(labels, parts):
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def exact_counts(sizes, clients, alpha, quirk):
    """The published procedure in exact arithmetic, one class after another: rows of each class by client."""
    classes, alpha = len(sizes), Fraction(alpha)
    group = clients // classes
    main = alpha / group
    tail = (1 - (main if quirk else alpha)) / (clients - group)
    table = []
    for label, size in enumerate(sizes):
        vector = [tail] * clients
        for i in range(group):
            vector[label + i * classes] = main
        points = [Fraction(0)]
        for share in vector:
            points.append(points[-1] + share / sum(vector))
        ends = [int(point * size) for point in points]  # int() of a positive fraction is its floor
        table.append(np.diff(ends).tolist())
    return np.array(table).T.tolist()


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=2, max_size=5),
    group=st.integers(1, 6),
    alpha=st.fractions(0, 1, max_denominator=100),
    quirk=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_row_once_and_as_many_as_in_exact_arithmetic(sizes, group, alpha, quirk, seed):
    labels = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    clients = group * len(sizes)
    parts = long_tail(rng(seed), labels, clients, float(alpha), quirk)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert counts_of(labels, parts).tolist() == exact_counts(sizes, clients, alpha, quirk)


@pytest.mark.parametrize(
    ("clients", "quirk", "main", "tail"),
    [
        (10, False, 0.9, 0.011111),
        (10, True, 0.9, 0.011111),
        (100, False, 0.09, 0.0011111),
        (100, True, 0.0497238, 0.00558625),
    ],
)
def test_shares_of_large_classes(clients, quirk, main, tail):
    labels = np.repeat(np.arange(10), 100_000)
    shares = counts_of(labels, long_tail(rng(), labels, clients, 0.9, quirk)) / 100_000
    is_main = np.arange(clients)[:, None] % 10 == np.arange(10)
    np.testing.assert_allclose(shares[is_main], main, atol=1.1e-5)  # a row more or less is 1e-5
    np.testing.assert_allclose(shares[~is_main], tail, atol=1.1e-5)


def test_labels_need_not_count_from_zero_and_one_class_is_spread_evenly():
    labels = np.repeat([-3, 7], 10)
    parts = long_tail(rng(), labels, 2, 1.0)
    assert [set(labels[part].tolist()) for part in parts] == [{-3}, {7}]
    for alpha in (0.0, 0.5, 1.0):
        assert [len(part) for part in long_tail(rng(), np.zeros(12, int), 3, alpha)] == [4, 4, 4]


def test_which_rows_is_random_but_how_many_is_not():
    labels = np.repeat(np.arange(2), 50)
    one, other = long_tail(rng(1), labels, 4, 0.9), long_tail(rng(2), labels, 4, 0.9)
    assert counts_of(labels, one).tolist() == counts_of(labels, other).tolist()
    assert sorted(one[0].tolist()) != sorted(other[0].tolist())


@pytest.mark.parametrize(
    ("clients", "alpha", "message"),
    [
        (12, 0.9, "num_clients=12 for 10 classes; .* take a multiple of 10, as 20"),
        (3, 0.9, "num_clients=3 for 10 classes; .* as 10"),
        (0, 0.9, "num_clients: received 0, must be an integer of at least 1"),
        (10, 1.1, "alpha: received 1.1"),
        (10, True, "alpha: received True"),
    ],
)
def test_refusals(clients, alpha, message):
    with pytest.raises(ValueError, match=message):
        long_tail(rng(), np.repeat(np.arange(10), 5), clients, alpha)
