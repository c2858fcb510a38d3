"""Sizes of clients by a law, and quantity skew."""

from fractions import Fraction

import numpy as np
import pytest
from data.partition.drawn import Given, rng
from hypothesis import given
from hypothesis import strategies as st

from fedjax_bal.data.partition import empirical_sizes, lognormal_sizes, quantity
from fedjax_bal.data.partition.dealing import apportion

UPLOADS = {0.10: 3, 0.25: 9, 0.50: 31.5, 0.75: 80, 0.90: 171, 0.99: 585, 1: 1058}


def shared_out(weights, total, least, most):
    """clip(s w, least, most) with the s for which they sum to the total, in exact arithmetic, piece by piece."""
    weights = [Fraction(weight) for weight in weights]
    ends = {Fraction(bound) / weight for weight in weights if weight for bound in (least, *most)}
    clipped = lambda scale: [max(Fraction(least), min(scale * w, m)) for w, m in zip(weights, most, strict=True)]
    low = max((end for end in ends | {Fraction(0)} if sum(clipped(end)) <= total), default=Fraction(0))
    free = [least < (low + Fraction(1, 10**9)) * w < m for w, m in zip(weights, most, strict=True)]
    slope = sum(weight for weight, mine in zip(weights, free, strict=True) if mine)
    return clipped(low + (total - sum(clipped(low))) / slope) if slope else clipped(low)


@given(
    rows=st.lists(st.tuples(st.integers(0, 20), st.integers(2, 40)), min_size=1, max_size=8),
    least=st.integers(0, 2),
    share=st.floats(0, 1),
)
def test_within_a_row_of_exact_proportions_between_the_bounds(rows, least, share):
    weights, most = [weight for weight, _ in rows], np.array([bound for _, bound in rows])
    reachable = int(sum(bound if weight else least for weight, bound in rows))
    total = len(rows) * least + round(share * (reachable - len(rows) * least))
    if not any(weights):
        return
    numbers = apportion(weights, total, least, most)
    assert numbers.sum() == total
    assert (numbers >= least).all()
    assert (numbers <= most).all()
    exact = shared_out(weights, total, least, most.tolist())
    assert all(abs(number - wanted) < 1 + 1e-6 for number, wanted in zip(numbers.tolist(), exact, strict=True))


def test_largest_remainders():
    assert apportion([5.4, 3.3, 1.3], 10).tolist() == [6, 3, 1]
    assert apportion([1, 1, 1], 4, least=1).tolist() == [2, 1, 1]
    assert apportion([1, 0], 5, most=np.array([9, 9])).tolist() == [5, 0]
    assert apportion([1e-200, 1e200], 10, least=1).tolist() == [1, 9]


def test_what_cannot_be_shared_out():
    with pytest.raises(ValueError, match=r"total=11 can't be shared out: .* 0 to 10 are possible"):
        apportion([1, 1, 0], 11, most=np.array([5, 5, 5]))
    with pytest.raises(ValueError, match="with at least 4 each.* 8 to"):
        apportion([1, 1], 7, least=4)


def test_lognormal_sizes_are_lognormal():
    sizes = lognormal_sizes(rng(), 2_000_000_000, 20_000, 1.2, least=0)
    logs = np.log(sizes)
    assert logs.std() == pytest.approx(1.2, abs=0.02)
    assert np.median(sizes) / sizes.mean() == pytest.approx(np.exp(-(1.2**2) / 2), abs=0.02)
    assert lognormal_sizes(rng(), 100, 8, sigma=0.0).tolist() == [13, 13, 13, 13, 12, 12, 12, 12]


def test_lognormal_sizes_of_astraea():
    sizes = lognormal_sizes(rng(), 117_500, 500)
    assert (sizes.sum(), sizes.min()) == (117_500, 10)
    above = sizes > 10
    logs = np.log(sizes[above])
    words = 1.2 * rng().standard_normal(500)[above]
    assert np.abs((logs - logs.mean()) - (words - words.mean())).max() < 0.1  # raised ones apart, in proportion


def test_empirical_sizes_of_a_list():
    sizes = empirical_sizes(rng(), 3000, 300, values=[1, 2, 5], least=0)
    assert sizes.sum() == 3000
    scale = np.array([1, 2, 5]) * 3000 / np.array([1, 2, 5])[rng().choice(3, 300)].sum()
    assert set(sizes.tolist()) <= {*np.floor(scale).tolist(), *np.ceil(scale).tolist()}


def test_empirical_sizes_of_quantiles():
    sizes = empirical_sizes(rng(), 10**9, 20_000, quantiles=UPLOADS, least=0)
    assert sizes.sum() == 10**9
    unscaled = sizes / np.median(sizes) * 31.5
    for level in (0.25, 0.75, 0.9, 0.99):
        assert np.quantile(unscaled, level) == pytest.approx(UPLOADS[level], rel=0.06)
    assert unscaled.min() == pytest.approx(3, rel=0.06)
    assert unscaled.max() < 1058 * 1.06
    pairs = [[level, size] for level, size in UPLOADS.items()]
    np.testing.assert_array_equal(sizes, empirical_sizes(rng(), 10**9, 20_000, quantiles=pairs, least=0))
    assert empirical_sizes(rng(), 100, 7, quantiles={0.5: 3.0}).tolist() == [15, 15, 14, 14, 14, 14, 14]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: lognormal_sizes(rng(), 99, 10), "10 clients of 10 rows or more .least. need 100 rows"),
        (lambda: empirical_sizes(rng(), 100, 5), "give one of them, and only one"),
        (lambda: empirical_sizes(rng(), 100, 5, values=[1, 0]), r"values=\[1.0, 0.0\]"),
        (lambda: empirical_sizes(rng(), 100, 5, quantiles={25: 3}), r"quantiles has levels \[25.0\]"),
        (lambda: empirical_sizes(rng(), 100, 5, quantiles={0.1: 5, 0.9: 3}), "sizes must not fall as levels rise"),
        (lambda: empirical_sizes(rng(), 100, 5, quantiles=[(0.5, 1), (0.5, 2)]), "each of them once"),
    ],
)
def test_sizes_that_are_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


LABELS = np.repeat(np.arange(10), 100)


def sizes(*arguments, clients=4, seed=0, **parameters):
    parts = quantity(rng(seed), LABELS, clients, *arguments, **parameters)
    return [len(rows) for rows in parts]


@pytest.mark.parametrize(
    ("exponent", "expected"), [(0, [250] * 4), (1, [100, 200, 300, 400]), (-1, [480, 240, 160, 120])]
)
def test_powers(exponent, expected):
    assert sizes("power", exponent=exponent) == expected


def test_a_power_that_does_not_divide_is_rounded_up_or_down():
    squares = sizes("power", exponent=2)
    assert sum(squares) == 1000
    assert np.abs(np.array(squares) - [100 / 3, 400 / 3, 300, 1600 / 3]).max() < 1


def test_exponential():
    shares = np.exp(np.arange(4)) / np.exp(np.arange(4)).sum()
    assert np.abs(np.array(sizes("exponential")) - 1000 * shares).max() < 1
    assert sizes("exponential", exponent=-1.0) == sizes("exponential")[::-1]
    assert sizes("exponential", exponent=1000.0, least=3) == [3, 3, 3, 991]


def test_dirichlet_by_hand():
    draws = Given([0.5, 0.3, 0.195, 0.005])
    parts = quantity(draws, LABELS, 4, alpha=0.7)
    assert draws.asked == [[0.7] * 4]
    assert [len(rows) for rows in parts] == [500, 300, 195, 5]
    assert np.concatenate(parts).tolist() == list(range(1000))
    # 20 rows for the last one leave 980 to the others, in proportion to 0.5, 0.3, 0.195
    raised = quantity(Given([0.5, 0.3, 0.195, 0.005]), LABELS, 4, least=20)
    assert [len(rows) for rows in raised] == [492, 296, 192, 20]


def test_given_sizes_leave_the_rest_out():
    assert sizes("given", values=[1, 2.0, 30, 4]) == [1, 2, 30, 4]
    parts = quantity(rng(0), LABELS, 2, "given", values=[500, 500])
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))


def test_classes_are_those_of_the_whole_up_to_chance():
    parts = quantity(rng(0), np.repeat(np.arange(2), 50_000), 2, "power")
    shares = [np.mean(rows >= 50_000) for rows in parts]
    np.testing.assert_allclose(shares, 0.5, atol=0.01)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"least": 251}, "4 clients of 251 rows or more .least. need 1004 rows"),
        ({"sizes": "given"}, "'given' with no values for 4 clients"),
        ({"sizes": "given", "values": [1, 2, 3, 995]}, "values sum to 1001 rows, but there are 1000"),
        ({"sizes": "given", "values": [1, 2, 3, 0]}, "values: received 0"),
        ({"values": [1, 2, 3, 4]}, "values are given, but sizes='dirichlet'"),
        ({"sizes": "lognormal", "alpha": 0.01}, "alpha=0.01 is given"),
        ({"sizes": "given", "values": [1] * 4, "quantiles": {0: 1}}, "quantiles are given, but sizes='given'"),
        ({"sizes": "empirical"}, "values and quantiles: give one of them"),
        ({"sizes": "given", "values": [2**62] * 4}, f"values sum to {2**64} rows"),
    ],
)
def test_refusals(parameters, message):
    with pytest.raises(ValueError, match=message):
        sizes(**parameters)
