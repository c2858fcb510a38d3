import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_bal.data.partition import dirichlet

TEN = np.repeat(np.arange(10), 500)


def rng(seed=0):
    return np.random.default_rng(seed)


class Shares(np.random.Generator):
    """A generator whose Dirichlet draws are given and whose permutations leave the order as it is."""

    def __init__(self, *draws):
        super().__init__(np.random.PCG64(0))
        self.draws, self.asked = list(draws), []

    def dirichlet(self, alpha):
        self.asked.append(alpha.tolist())
        return np.array(self.draws.pop(0))

    def permutation(self, rows):
        return rows


@settings(max_examples=150, deadline=None)
@given(
    labels=st.lists(st.sampled_from([-3, 0, 2, 7]), min_size=1, max_size=80).map(np.array),
    clients=st.integers(1, 30),
    alpha=st.sampled_from([5e-324, 1e-12, 0.01, 0.09, 0.1, 1.0, 100.0, 1e308]),
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
    draws = Shares([0.3, 0.6, 0.1, 0.0], [0.5, 0.25, 0.25])  # cut points 2.4, 7.2, 8, 8: counts 2, 5, 1, 0
    parts = dirichlet(draws, labels, 4, 0.7, min_size=1)  # 16 / 4 = 4: client 1 is full and left out
    assert draws.asked == [[0.7] * 4, [0.7] * 3]
    assert [part.tolist() for part in parts] == [[0, 1, 8, 9, 10, 11], [2, 3, 4, 5, 6], [7, 12, 13], [14, 15]]


def test_balanced_redraws_until_everybody_has_enough():
    labels = np.zeros(8, int)
    draws = Shares([1.0, 0.0], [0.9, 0.1], [0.5, 0.5])
    assert [len(part) for part in dirichlet(draws, labels, 2, 1.0, min_size=3)] == [4, 4]


def test_balanced_loses_no_row_to_rounding():
    draws = Shares([1 / 3, 1 / 3, 1 / 3 - 1e-15])
    assert [len(part) for part in dirichlet(draws, np.zeros(9, int), 3, 1.0, min_size=1)] == [3, 3, 3]


def test_leaving_clients_out_has_the_law_of_zeroing_and_renormalising():
    """Mean and variance of the largest share over 3 of 5 clients, against the literal recipe."""
    alpha, draws = 0.5, 20_000
    literal = rng(1).dirichlet(np.full(5, alpha), draws)[:, [0, 2, 3]]
    literal = (literal / literal.sum(axis=1, keepdims=True)).max(axis=1)
    direct = rng(2).dirichlet(np.full(3, alpha), draws).max(axis=1)
    error = 5 * literal.std() * (2 / draws) ** 0.5
    assert abs(literal.mean() - direct.mean()) < error
    assert abs(literal.var() - direct.var()) < error


@pytest.mark.parametrize("alpha", [1e-300, 0.01, 0.05])
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
    parts = dirichlet(rng(), labels, 10, 5e-324, min_size=10)
    assert [len(part) for part in parts] == [10] * 10
    sizes = sorted(len(part) for part in dirichlet(rng(), labels, 4, 5e-324, min_size=10))
    assert sizes == [10, 10, 10, 70]


def test_cbfl_by_hand():
    draws = Shares([0.34, 0.26, 0.40], [0.05, 0.05, 0.90])
    parts = dirichlet(draws, np.repeat([4, 9], [10, 4]), 3, 0.5, "cbfl")  # 3.4 2.6 4 -> 3 3 4; 0.2 0.2 3.6 -> 0 0 4
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9, 10, 11, 12, 13]]
    # clipped to [5, 15]: 15, 5, and nothing is left
    parts = dirichlet(Shares([0.95, 0.01, 0.04]), np.zeros(20, int), 3, 0.05, "cbfl")
    assert [len(part) for part in parts] == [15, 5, 0]
    # a class of 7 can't be clipped to [5, 2]: 5, then what is left
    assert [len(part) for part in dirichlet(Shares([1.0, 0.0]), np.zeros(7, int), 2, 0.05, "cbfl")] == [5, 2]


def test_cbfl_clips_above_200_clients():
    labels = np.zeros(2000, int)
    parts = dirichlet(rng(), labels, 201, 1e6, "cbfl")
    assert {len(part) for part in parts[:150]} == {10}
    sizes = [len(part) for part in dirichlet(rng(), labels, 201, 0.5, "cbfl")]
    assert min(sizes[:50]) == 5


def test_cbfl_nobody_gets_a_row():
    with pytest.raises(ValueError, match="every share rounds to 0"):
        dirichlet(rng(), np.zeros(50, int), 200, 1e6, "cbfl")


@pytest.mark.parametrize("alpha", [0, -1.0, np.nan, np.inf, "0.1", None, True, 1j])
def test_alpha(alpha):
    for form in ("balanced", "cbfl"):
        with pytest.raises(ValueError, match=r"alpha=.*finite number above 0"):
            dirichlet(rng(), TEN, 10, alpha, form)


def test_other_refusals():
    with pytest.raises(ValueError, match="form: received 'x'"):
        dirichlet(rng(), TEN, 10, 1.0, "x")
    with pytest.raises(ValueError, match="min_size: received -1"):
        dirichlet(rng(), TEN, 10, 1.0, min_size=-1)
    assert len(dirichlet(rng(), TEN, 10, np.float32(0.5))) == 10
