"""FedBuff's event queue: against a queue of single events, and what it amounts to if all clients are equally fast."""

import numpy as np
import pytest
from arrivals import events

from fedjax_bal.lab.checkpoint import load, save
from fedjax_bal.selection import Choice, buffered, uniform
from fedjax_bal.testing import toy

N = 12
ALL = np.ones(N, bool)


def walk(selector, seconds_by_round, available_by_round=None, *, state=None, first=0, seed=0):
    """The cohorts of some rounds with their staleness and the clock at their end, and the last state."""
    state = selector.init(seed, N) if state is None else state
    rounds = []
    for number, seconds in enumerate(seconds_by_round, first):
        available = ALL if available_by_round is None else available_by_round[number]
        clients, state = selector.select(state, seed, number, available, seconds)
        cohort = clients[clients < N].tolist()
        versions = selector.asynchrony.versions(state)
        rounds.append((cohort, [number - versions[c] for c in cohort], selector.asynchrony.clock(state)))
    return rounds, state


CASES = {
    "more in training than in a round": (3, 8, 1.0),
    "as many": (4, 4, 1.0),
    "fewer": (5, 2, 1.0),
    "one by one": (1, 12, 1.0),
    "some are away": (3, 6, 0.6),
    "hardly one is there": (3, 6, 0.1),
}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_cohorts_staleness_and_time_are_those_of_single_events(name, ties):
    places, limit, share = CASES[name]
    rng = np.random.default_rng(5)
    speeds = rng.integers(1, 4, N) if ties else np.exp(rng.normal(size=N))
    seconds = [speeds * rng.choice([1.0, 2.0]) for _ in range(40)]
    available = [rng.random(N) < share for _ in range(40)]
    got, state = walk(buffered(places, limit), seconds, available)
    assert got == events(places, limit, seconds, available)
    assert np.isfinite(state.arrival).sum() <= limit
    assert any(max(staleness, default=0) > 0 for _, staleness, _ in got)


def test_clients_are_replaced_while_others_train():
    slow = np.where(np.arange(N) < 2, 20.0, 1.0 + np.arange(N) / 100)
    rounds, state = walk(buffered(3, 6), [slow] * 60)
    late = [s for cohort, stale, _ in rounds for c, s in zip(cohort, stale, strict=True) if c < 2]
    assert late and min(late) > 5
    # A replacement starts within a round, on the round's own model, and may arrive in it or later.
    assert any(0 in stale and max(stale) > 0 for _, stale, _ in rounds)
    assert all(len(set(cohort)) == 3 for cohort, _, _ in rounds)
    clocks = [clock for _, _, clock in rounds]
    assert clocks == sorted(clocks)
    assert np.isfinite(state.arrival).sum() == 6 - 1  # the last that arrived is replaced when the next round begins


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_equally_fast_clients_train_in_the_rounds_of_uniform(share):
    available = [np.random.default_rng(number).random(N) < share for number in range(9)]
    got, _ = walk(buffered(4, 4), [np.full(N, 2.5)] * 9, available)
    for number, (cohort, stale, clock) in enumerate(got):
        wanted = uniform(4).select((), 0, number, available[number])[0]
        assert sorted(cohort) == sorted(wanted[wanted < N])
        assert set(stale) == {0}
        assert clock == 2.5 * (number + 1)


def test_rounds_of_all_clients_are_synchronous_whatever_their_speeds():
    seconds = np.exp(np.random.default_rng(0).normal(size=N))
    got, _ = walk(buffered(N, N), [seconds] * 4)
    assert all(sorted(cohort) == list(range(N)) and set(stale) == {0} for cohort, stale, _ in got)
    np.testing.assert_allclose([clock for _, _, clock in got], seconds.max() * np.arange(1, 5))


def test_a_round_without_clients_takes_no_time():
    got, _ = walk(buffered(2), [np.ones(N)] * 2, [~ALL, ALL])
    assert [(len(cohort), clock) for cohort, _, clock in got] == [(0, 0.0), (2, 1.0)]


def test_twice_the_round_trains_by_default():
    _, state = walk(buffered(3), [1.0 + np.arange(N)])
    assert np.isfinite(state.arrival).sum() == 5


def test_a_queue_goes_on_after_a_checkpoint(tmp_path):
    seconds = list(np.exp(np.random.default_rng(2).normal(size=(20, N))))
    selector = buffered(3, 7)
    whole, _ = walk(selector, seconds)
    begin, state = walk(selector, seconds[:8])
    loaded = load(save(tmp_path, 8, state), selector.init(0, N))
    rest, _ = walk(selector, seconds[8:], state=loaded, first=8)
    assert begin + rest == whole


def test_selection_changes_nothing_but_its_result():
    selector = buffered(2, 5)
    state = selector.init(0, N)
    before = [np.array(leaf) for leaf in state]
    walk(selector, [np.ones(N)] * 3, state=state)
    assert all(np.array_equal(old, new) for old, new in zip(before, state, strict=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"concurrency": 0}, "concurrency: received 0"),
        ({"max_staleness": 0}, "max_staleness: received 0"),
        ({"clients_per_round": 0}, "clients_per_round: received 0"),
    ],
)
def test_numbers_out_of_range_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        buffered(**{"clients_per_round": 2} | given)


def test_it_is_chosen_by_name():
    selector = Choice("buffered", (("concurrency", 4), ("max_staleness", 7))).build(2, toy.federation())
    assert (selector.chains, selector.asynchrony.max_staleness, selector.closed_loop) == (2, 7, False)
