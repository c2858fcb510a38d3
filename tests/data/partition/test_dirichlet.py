"""Classes divided by a Dirichlet law: among all clients, among ten at a time, and among the owners of a class."""

import numpy as np
import pytest
import scipy.stats
from data.partition.drawn import Given, counts_of, rng
from hypothesis import given
from hypothesis import strategies as st

from fedjax_bal.data.partition import dirichlet, equal_cut_dirichlet, extended_dirichlet, pathological

TEN = np.repeat(np.arange(10), 500)


@given(
    labels=st.lists(st.sampled_from([-3, 0, 2, 7]), min_size=1, max_size=80).map(np.array),
    clients=st.integers(1, 30),
    alpha=st.sampled_from([1e-37, 1e-12, 0.01, 0.09, 0.1, 1.0, 100.0, 1e38]),
    min_size=st.integers(0, 12),
    seed=st.integers(0, 99),
)
def test_balanced_always_ends_with_everybody_served(labels, clients, alpha, min_size, seed):
    if clients * min_size > len(labels):
        with pytest.raises(ValueError, match=f"need {clients * min_size} rows, but there are {len(labels)}"):
            dirichlet(rng(seed), labels, clients, alpha, min_size=min_size)
        return
    parts = dirichlet(rng(seed), labels, clients, alpha, min_size=min_size)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(map(len, parts)) >= min_size


def test_balanced_by_hand():
    labels = np.repeat([0, 1], 8)
    draws = Given([0.3, 0.6, 0.1, 0.0], [0.5, 0.25, 0.25])  # cut points 2.4, 7.2, 8, 8: counts 2, 5, 1, 0
    parts = dirichlet(draws, labels, 4, 0.7, min_size=1)  # 16 / 4 = 4: client 1 is full and left out
    assert draws.asked == [[0.7] * 4, [0.7] * 3]
    assert [part.tolist() for part in parts] == [[0, 1, 8, 9, 10, 11], [2, 3, 4, 5, 6], [7, 12, 13], [14, 15]]


def test_balanced_redraws_until_everybody_has_enough():
    labels = np.zeros(8, int)
    draws = Given([1.0, 0.0], [0.9, 0.1], [0.5, 0.5])
    assert [len(part) for part in dirichlet(draws, labels, 2, 1.0, min_size=3)] == [4, 4]


def test_balanced_loses_no_row_to_rounding():
    draws = Given([1 / 3, 1 / 3, 1 / 3 - 1e-15])
    assert [len(part) for part in dirichlet(draws, np.zeros(9, int), 3, 1.0, min_size=1)] == [3, 3, 3]


@pytest.mark.parametrize("alpha", [1e-37, 0.01, 0.05])
def test_repair_keeps_clients_skewed_and_takes_from_the_largest(alpha):
    parts = dirichlet(rng(), TEN, 100, alpha)
    sizes = np.array([len(part) for part in parts])
    classes = np.array([len(np.unique(TEN[part])) for part in parts])
    assert sizes.min() == 10
    assert sizes.sum() == 5000
    assert (sizes == 10).sum() > 10  # so the repair has run
    assert classes[sizes == 10].mean() < 6.5 / 2  # a uniform sample of 10 rows holds 6.5 classes


def test_repair_levels_the_largest_down():
    labels = np.zeros(100, int)
    parts = dirichlet(rng(), labels, 10, 1e-37, min_size=10)
    assert [len(part) for part in parts] == [10] * 10
    sizes = sorted(len(part) for part in dirichlet(rng(), labels, 4, 1e-37, min_size=10))
    assert sizes == [10, 10, 10, 70]


def test_cbfl_by_hand():
    draws = Given([0.34, 0.26, 0.40], [0.05, 0.05, 0.90])
    parts = dirichlet(draws, np.repeat([4, 9], [10, 4]), 3, 0.5, "cbfl")  # 3.4 2.6 4 -> 3 3 4; 0.2 0.2 3.6 -> 0 0 4
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9, 10, 11, 12, 13]]
    # clipped to [5, 15]: 15, 5, and nothing is left
    parts = dirichlet(Given([0.95, 0.01, 0.04]), np.zeros(20, int), 3, 0.05, "cbfl")
    assert [len(part) for part in parts] == [15, 5, 0]
    # a class of 7 can't be clipped to [5, 2]: 5, then what is left
    assert [len(part) for part in dirichlet(Given([1.0, 0.0]), np.zeros(7, int), 2, 0.05, "cbfl")] == [5, 2]


def test_cbfl_clips_above_200_clients():
    labels = np.zeros(2000, int)
    parts = dirichlet(rng(), labels, 201, 1e6, "cbfl")
    assert {len(part) for part in parts[:150]} == {10}
    sizes = [len(part) for part in dirichlet(rng(), labels, 201, 0.5, "cbfl")]
    assert min(sizes[:50]) == 5


def test_cbfl_nobody_gets_a_row():
    with pytest.raises(ValueError, match="every share rounds to 0"):
        dirichlet(rng(), np.zeros(50, int), 200, 1e6, "cbfl")


FALLING = np.repeat(np.arange(5), [300, 250, 200, 150, 100])


def literal_equal_cut(rng, labels, clients, alpha):
    """The procedure of FedDF's code and its cut, row by row; returns the counts of each client."""
    rows = rng.permutation(len(labels))
    pieces, line = -(-clients // 10), []
    for piece in range(pieces):
        step = int(10 / clients * len(rows))
        own = rows[piece * step : len(rows) if piece == pieces - 1 else (piece + 1) * step]
        members = min(10, clients - 10 * piece)
        least = -1
        while least < int(0.5 * len(own) / members):
            held = [[] for _ in range(members)]
            for label in range(labels.max() + 1):
                of_class = [row for row in own if labels[row] == label]
                shares = rng.dirichlet([alpha] * members)
                shares = shares * [len(one) < len(own) / members for one in held]
                ends = (np.cumsum(shares / shares.sum()) * len(of_class)).astype(int)[:-1]
                for one, more in zip(held, np.split(np.array(of_class, int), ends), strict=True):
                    one.extend(more.tolist())
            least = min(map(len, held))
        line += [row for one in held for row in one]
    parts = np.array_split(np.array(line), clients)
    return counts_of(labels, parts)


@pytest.mark.parametrize("clients", [20, 14])
def test_equal_cut_has_the_law_of_the_code(clients):
    drawn = [equal_cut_dirichlet(rng(seed), FALLING, clients, 0.5) for seed in range(30)]
    here = np.stack([counts_of(FALLING, parts) for parts in drawn])
    there = np.stack([literal_equal_cut(rng(100 + seed), FALLING, clients, 0.5) for seed in range(30)])
    assert here.sum(axis=2).tolist() == there.sum(axis=2).tolist()
    for measure in (lambda counts: counts.max(axis=2), lambda counts: (counts > 0).sum(axis=2), lambda c: c[..., 0]):
        # Clients of one draw depend on each other: one number of each draw.
        for client in (0, 3, clients - 1):
            assert scipy.stats.ks_2samp(measure(here)[:, client], measure(there)[:, client]).pvalue > 0.005


def test_a_client_has_the_end_of_one_member_and_the_beginning_of_the_next():
    parts = equal_cut_dirichlet(rng(0), FALLING, 10, 0.2)
    falls = [int((np.diff(FALLING[rows]) < 0).sum()) for rows in parts]
    assert max(falls) >= 1 and sum(falls) <= 9  # classes ascend within a member, of whom there are ten


FIVE = np.repeat(np.arange(5), 100)


def test_extended_by_hand():
    # Each of four clients owns the one label of its position: 0, 1, 0, 1 of two.
    labels = np.repeat([3, 8], 10)
    draws = Given([0.75, 0.25], [1.0, 0.0])
    parts = extended_dirichlet(draws, labels, 4, 1, 0.6)
    assert draws.asked == [[0.6] * 2] * 2
    assert [len(rows) for rows in parts] == [8, 9, 2, 1]  # 7.5 and 2.5; all but the one that the other owner gets
    assert [set(labels[rows].tolist()) for rows in parts] == [{3}, {8}, {3}, {8}]


@pytest.mark.parametrize("alpha", [1e-37, 0.1, 10.0])
def test_everybody_has_exactly_as_many_classes_as_asked_for(alpha):
    counts = counts_of(FIVE, extended_dirichlet(rng(0), FIVE, 20, (1, 2, 5), alpha))
    assert (counts > 0).sum(axis=1).tolist() == ([1, 2, 5] * 7)[:20]
    assert counts.sum(axis=0).tolist() == [100] * 5
    assert (counts[np.arange(20), np.arange(20) % 5] > 0).all()


def test_a_large_alpha_is_an_even_split_over_the_owners():
    ours = counts_of(FIVE, extended_dirichlet(rng(4), FIVE, 10, 2, 1e38))
    even = counts_of(FIVE, pathological(rng(4), FIVE, 10, 2, form="niid_bench"))
    assert sorted(ours[ours > 0]) == pytest.approx(sorted(np.repeat(100 / (ours > 0).sum(0), (ours > 0).sum(0))), abs=1)
    assert (ours > 0).sum() == (even > 0).sum() == 20


def test_extended_refuses():
    with pytest.raises(ValueError, match="classes_per_client=6, but only 5 classes are present"):
        extended_dirichlet(rng(), FIVE, 10, 6, 1.0)
    with pytest.raises(ValueError, match="a label with 100 rows has 101 owners"):
        extended_dirichlet(rng(), FIVE, 101, 5, 1.0)
