"""Presence: rates, holding, and rounds without any client."""

import numpy as np
import pytest

from fedjax_bal.selection import always, bernoulli, clustered, periodic

ALL = np.ones(20, bool)


def masks(presence, rounds, eligible=ALL, seed=0):
    draw = lambda r: presence.mask(seed, "availability", r, eligible)
    return np.array([draw(r) for r in range(rounds)])


def test_always_is_everybody_eligible():
    eligible = ALL.copy()
    eligible[3] = False
    assert (masks(always(), 3, eligible) == eligible).all()


def test_bernoulli_rate_is_within_four_standard_errors():
    share = masks(bernoulli(0.3), 2000).mean()
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 40_000)


def test_rounds_without_any_client_are_as_frequent_as_independence_says():
    clients, p, rounds = 10, 0.05, 4000
    drawn = masks(bernoulli(p), rounds, np.ones(clients, bool))
    none = (1 - p) ** clients
    assert abs((drawn.sum(1) == 0).mean() - none) < 4 * np.sqrt(none * (1 - none) / rounds)
    assert abs(drawn.mean() - p) < 4 * np.sqrt(p * (1 - p) / drawn.size)
    assert not masks(bernoulli(1e-30), 5).any()


def test_probabilities_by_client_hold_together_and_without_those_that_are_not_eligible():
    drawn = masks(clustered([0.1, 0.02]), 30_000, np.array([True, True, False]))
    assert not drawn[:, 2].any()
    for pattern, chance in {(0, 0): 0.9 * 0.98, (1, 0): 0.1 * 0.98, (0, 1): 0.9 * 0.02, (1, 1): 0.1 * 0.02}.items():
        seen = (drawn[:, :2] == np.array(pattern, bool)).all(1).mean()
        assert abs(seen - chance) < 4 * np.sqrt(chance * (1 - chance) / 30_000)


def test_periodic_holds_a_draw_for_the_period():
    drawn = masks(periodic(0.5, 5), 20)
    for block in range(4):
        assert (drawn[5 * block : 5 * block + 5] == drawn[5 * block]).all()
    assert not (drawn[0] == drawn[5]).all()


def test_clustered_repeats_the_list_over_clients():
    share = masks(clustered(), 4000).mean(0)
    np.testing.assert_allclose(share, np.tile([0.5, 0.5, 0.3, 0.3, 0.2], 4), atol=0.04)


@pytest.mark.parametrize("presence", [bernoulli(0.5), clustered([0.2, 0.9, 0.5])])
def test_draws_for_few_of_many_are_those_for_all(presence):
    few = np.zeros(50_000, bool)
    few[np.random.default_rng(0).choice(50_000, 100, replace=False)] = True
    for number in range(3):
        of_all = presence.mask(7, "delivery", number, np.ones(50_000, bool))
        assert 0 < (of_all & few).sum() < 100
        assert (presence.mask(7, "delivery", number, few) == (of_all & few)).all()


def test_draws_depend_on_seed_round_and_purpose_only():
    presence = bernoulli(0.5)
    one = presence.mask(1, "availability", 2, ALL)
    assert (one == presence.mask(1, "availability", 2, ALL)).all()
    for other in ((2, "availability", 2), (1, "delivery", 2), (1, "availability", 3)):
        assert not (one == presence.mask(*other, ALL)).all()


@pytest.mark.parametrize("p", [0, -0.1, 1.5, float("nan"), "half", True, None])
def test_a_wrong_probability_is_named(p):
    with pytest.raises(ValueError, match="p: received .* above 0 and of at most 1"):
        bernoulli(p)


@pytest.mark.parametrize("p", [[], "0.5", 0.5, [0.5, 2]])
def test_a_wrong_list_is_named(p):
    with pytest.raises(ValueError, match="p: received"):
        clustered(p)
