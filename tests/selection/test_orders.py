"""Selectors that order clients, and draws in proportion to weights."""

import itertools
import math

import numpy as np
import pytest

from fedjax_bal.lab.checkpoint import load, save
from fedjax_bal.selection import SELECTORS, by_size, make_plan, power_of_choice, round_robin
from fedjax_bal.selection.selectors import LOSS, weighted_sample

ALL = np.ones(10, bool)
SIZES = np.array([5, 0, 1, 2, 3, 8, 1, 0, 4, 6])


def chosen(selector, number=0, available=ALL, seed=0, state=None):
    state = selector.init(seed, len(available)) if state is None else state
    clients, _ = selector.select(state, seed, number, available)
    return clients[:, 0].tolist()


# Draws.


def test_weighted_draws_have_the_law_of_one_after_another():
    weights, count = np.array([1.0, 2.0, 3.0, 0.0, 4.0]), 20_000
    available = np.array([True, True, True, True, False])
    rng = np.random.default_rng(0)
    pairs = [tuple(weighted_sample(rng, available, weights, 2)) for _ in range(count)]
    for first, second in itertools.permutations(range(3), 2):
        chance = weights[first] / 6 * weights[second] / (6 - weights[first])
        share = pairs.count((first, second)) / count
        assert abs(share - chance) < 4 * math.sqrt(chance * (1 - chance) / count)


def test_weighted_draws_end_with_those_that_have_a_weight():
    found = weighted_sample(np.random.default_rng(0), ALL, SIZES.astype(float), 99)
    assert sorted(found) == np.flatnonzero(SIZES).tolist()
    assert len(weighted_sample(np.random.default_rng(0), ~ALL, SIZES.astype(float), 3)) == 0


def test_fewer_draws_are_the_beginning_of_more():
    long, short = (weighted_sample(np.random.default_rng(7), ALL, SIZES.astype(float), size) for size in (7, 3))
    assert long[:3].tolist() == short.tolist()


# Round robin.


def walk(available_by_round, size):
    selector = round_robin(size)
    state, seen = selector.init(0, len(available_by_round[0])), []
    for number, available in enumerate(available_by_round):
        clients, state = selector.select(state, 0, number, available)
        seen.append(clients[:, 0].tolist())
    return seen


def test_round_robin_goes_round():
    assert walk([ALL] * 4, 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5]]
    assert walk([ALL] * 2, 1) == [[0], [1]]


def test_round_robin_passes_over_those_away_and_waits_where_nobody_is_there():
    odd = np.arange(10) % 2 == 1
    assert walk([odd, ~ALL, ALL, odd], 3) == [[1, 3, 5], [10, 10, 10], [6, 7, 8], [9, 1, 3]]
    assert walk([np.arange(10) == 4, ALL], 2) == [[4, 10], [5, 6]]


@pytest.mark.parametrize("share", [0.0, 0.002, 0.1, 1.0])
def test_round_robin_looks_as_far_ahead_as_it_must(share):
    available = np.random.default_rng(0).random(1000) < share
    for start in (0, 400, 999):
        in_turn = (np.arange(1000) + start) % 1000
        wanted = in_turn[available[in_turn]][:7]
        clients, after = round_robin(7).select(np.array(start), 0, 0, available)
        assert clients[:, 0].tolist() == [*wanted, *[1000] * (7 - len(wanted))]
        assert after == ((wanted[-1] + 1) % 1000 if len(wanted) else start)


def test_round_robin_never_repeats_a_client_in_a_round():
    assert walk([ALL[:3]] * 2, 5) == [[0, 1, 2, 3, 3], [0, 1, 2, 3, 3]]
    assert walk([ALL[:2]], 8) == [[0, 1, *[2] * 6]]


# By size.


def test_by_size_draws_in_proportion_to_sizes():
    selector, count = by_size(1, sizes=SIZES), 20_000
    share = np.bincount([chosen(selector, number)[0] for number in range(count)], minlength=10) / count
    law = SIZES / SIZES.sum()
    assert (abs(share - law) <= 4 * np.sqrt(law * (1 - law) / count)).all()


def test_somebody_elses_absence_does_not_reshuffle_the_rest():
    full = chosen(by_size(3, sizes=SIZES))
    available = ALL.copy()
    available[next(c for c in np.flatnonzero(SIZES) if c not in full)] = False
    assert chosen(by_size(3, sizes=SIZES), available=available) == full


# Power of choice.


def told(selector, state, losses, delivered=None):
    """The state after all clients have sent these losses."""
    total = len(losses)
    plan = make_plan(np.arange(total)[:, None], np.ones(total, bool) if delivered is None else delivered)
    return selector.update(state, plan, {LOSS: np.array(losses, np.float32)[:, None]})


def test_power_of_choice_takes_the_highest_losses_of_its_candidates():
    losses = np.random.default_rng(0).permutation(10) / 10
    selector = power_of_choice(2, 5, sizes=SIZES)
    state = told(selector, selector.init(0, 10), losses)
    for number in range(30):
        candidates = chosen(by_size(5, sizes=SIZES), number)
        expected = sorted(candidates, key=lambda client: -losses[client])[:2]
        assert chosen(selector, number, state=state) == expected


def test_clients_never_heard_of_come_first_in_the_order_drawn():
    selector = power_of_choice(3, 8, sizes=SIZES)
    start = selector.init(0, 10)
    assert chosen(selector, 3, state=start) == chosen(by_size(3, sizes=SIZES), 3)
    state = told(selector, start, np.full(10, 9.0), delivered=np.isin(np.arange(10), [0, 5, 8, 9, 4]))
    assert sorted(chosen(selector, 3, state=state)) == [2, 3, 6]


def test_lost_and_broken_losses_change_nothing():
    selector = power_of_choice(1, 4, sizes=np.ones(4))
    before = told(selector, selector.init(0, 4), [1.0, 2.0, 3.0, 4.0])
    after = told(selector, before, [7.0, np.nan, np.inf, 8.0], delivered=np.arange(4) != 0)
    assert after.tolist() == [1.0, 2.0, 3.0, 8.0]
    assert before.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_power_of_choice_needs_losses():
    selector = power_of_choice(1, 2, sizes=SIZES)
    with pytest.raises(ValueError, match="learns from 'loss'"):
        selector.update(selector.init(0, 10), make_plan(np.array([[0]]), ALL), {})


# All of them.

BUILT = {
    "uniform": {},
    "round_robin": {},
    "by_size": {"sizes": SIZES},
    "power_of_choice": {"sizes": SIZES, "candidates": 6},
    "mediated": {"class_counts": np.eye(10), "size": 2},
    "buffered": {},
    "cucb": {"num_classes": 3},
    "greedy": {"num_classes": 3},
}


@pytest.mark.parametrize("name", SELECTORS)
def test_every_selector_is_pure_and_keeps_the_shape_of_what_it_saves(name, tmp_path):
    selector = SELECTORS[name](4, **BUILT[name])
    state = selector.init(0, 10)
    seconds = () if selector.asynchrony is None else (np.arange(1.0, 11.0),)
    once, after = selector.select(state, 0, 2, ALL, *seconds)
    again, _ = selector.select(state, 0, 2, ALL, *seconds)
    np.testing.assert_array_equal(once, again)
    assert (once.shape, once.dtype) == ((selector.chains, selector.chain_length), np.int32)
    plan = make_plan(once, ALL)
    probes = {"composition": np.full((*once.shape, 3), 1 / 3), "loss": np.ones(once.shape)}
    after = selector.update(after, plan, probes)
    load(save(tmp_path, 1, (after, np.int64(1))), (selector.init(0, 10), np.int64(0)))


@pytest.mark.parametrize("name", ["uniform", "by_size", "power_of_choice", "mediated"])
def test_draws_differ_by_seed_and_round(name):
    selector = SELECTORS[name](4, **BUILT[name])
    pick = lambda seed, number: selector.select(selector.init(seed, 10), seed, number, ALL)[0].tolist()
    assert len({str(pick(0, number)) for number in range(8)}) > 1
    assert len({str(pick(seed, 0)) for seed in range(8)}) > 1


@pytest.mark.parametrize("factory", [by_size, lambda m, sizes: power_of_choice(m, 5, sizes=sizes)])
@pytest.mark.parametrize("sizes", [[-1, 2], [0, 0], [[1]], "sizes", [math.nan, 1]])
def test_wrong_sizes_are_named(factory, sizes):
    with pytest.raises(ValueError, match="sizes: received"):
        factory(1, sizes=sizes)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: round_robin(0), "clients_per_round: received 0"),
        (lambda: by_size(True, sizes=SIZES), "clients_per_round: received True"),
        (lambda: power_of_choice(3, 2, sizes=SIZES), "candidates: received 2 for 3 clients a round"),
        (lambda: power_of_choice(3, 3.5, sizes=SIZES), "candidates: received 3.5"),
        (lambda: by_size(1, sizes=SIZES).init(0, 9), "sizes: received 10 clients, but the federation has 9"),
        (lambda: power_of_choice(1, 1, sizes=SIZES).init(0, 11), "sizes: received 10 clients"),
    ],
)
def test_wrong_parameters_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
