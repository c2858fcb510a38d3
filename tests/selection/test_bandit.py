"""FL-CIR's selection: scores, the balancing set against explicit loops, what is learned, and the sweep."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounding import DOUBLE

from fedjax_bal.lab.checkpoint import load, save
from fedjax_bal.selection import class_balancing_set, cucb, greedy, make_plan, ucb_scores
from fedjax_bal.selection.bandit import COMPOSITION, BanditState, rewards


def divergence(mean, direction):
    """One divergence by its definition, 1e-15 added to each class."""
    padded = [value + 1e-15 for value in mean]
    shares = [value / math.fsum(padded) for value in padded]
    uniform = 1 / len(mean)
    if direction == "from_uniform":
        return math.fsum(uniform * math.log(uniform / share) for share in shares)
    return math.fsum(share * math.log(share / uniform) for share in shares)


def by_hand(compositions, scores, size, direction, first="counted"):
    """Algorithm 2 with explicit loops; divergences within 1e-12 go to the lowest index.

    While nothing is known of the members, whoever something is known of comes first.
    """
    begin = {"counted": 0, "left_out": 1}[first]
    left = set(range(len(compositions)))
    chosen = [max(left, key=lambda k: (scores[k], -k))]
    while len(chosen) < min(size, len(compositions)):
        left.discard(chosen[-1])
        found = {}
        known = {k for k in left if any(compositions[k])}
        blank = known and not any(any(compositions[i]) for i in chosen[begin:])
        for k in known if blank else left:
            members = [compositions[i] for i in (*chosen[begin:], k)]
            mean = [math.fsum(column) / len(members) for column in zip(*members, strict=True)]
            found[k] = divergence(mean, direction)
        chosen.append(min(k for k in found if found[k] <= min(found.values()) + 1e-12))
    return chosen


shares = st.integers(2, 5).flatmap(
    lambda classes: st.lists(st.lists(st.integers(0, 5), min_size=classes, max_size=classes), min_size=1, max_size=9)
)


@given(
    shares,
    st.data(),
    st.integers(1, 6),
    st.sampled_from(["from_uniform", "to_uniform"]),
    st.sampled_from(["counted", "left_out"]),
)
def test_the_set_agrees_with_explicit_loops(table, data, size, direction, first):
    rows = np.array(table, float)
    rows /= np.maximum(rows.sum(1, keepdims=True), 1)
    score = st.sampled_from([0.1, 0.2, 0.3, math.inf])
    scores = data.draw(st.lists(score, min_size=len(rows), max_size=len(rows)))
    found = class_balancing_set(rows, scores, size, direction=direction, first=first)
    assert found.tolist() == by_hand(rows.tolist(), scores, size, direction, first)


def test_several_pieces_of_the_table_give_the_same_set():
    rng = np.random.default_rng(1)
    rows, scores = rng.dirichlet(np.full(200, 0.3), 200), rng.random(200)
    assert class_balancing_set(rows, scores, 3).tolist() == by_hand(rows.tolist(), scores, 3, "from_uniform")


def test_the_first_composition_counts_unless_it_is_left_out_and_the_direction_matters():
    rows = np.array([[0.8, 0.1, 0.1], [0.5, 0.5, 0.0], [0.0, 0.3, 0.7], [0.1, 0.45, 0.45], [0.4, 0.3, 0.3]])
    assert class_balancing_set(rows, [9, 0, 0, 0, 0], 2).tolist() == [0, 3]
    assert class_balancing_set(rows, [9, 0, 0, 0, 0], 2, first="left_out").tolist() == [0, 4]
    rows = np.array([[0.6, 0.4, 0.0], [0.0, 0.0, 1.0], [0.599, 0.4, 0.001]])
    assert class_balancing_set(rows, [1, 0, 0], 2).tolist() == [0, 1]
    uneven = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.97, 0.01, 0.01, 0.01]])
    first, second = (class_balancing_set(uneven, [1, 0, 0], 2, direction=d) for d in ("from_uniform", "to_uniform"))
    assert (first.tolist(), second.tolist()) == ([0, 2], [0, 1])


def test_clients_nothing_is_known_of_are_neutral_and_come_last_next_to_one_of_them():
    rows = np.array([[0.9, 0.1], [0.0, 0.0], [0.2, 0.8], [0.0, 0.0]])
    assert class_balancing_set(rows, [0.4, math.inf, 0.3, math.inf], 4).tolist() == [1, 2, 0, 3]
    assert class_balancing_set(np.zeros((3, 2)), [0, 1, 0], 3).tolist() == [1, 0, 2]
    assert class_balancing_set(rows, [0.4, 0.3, 0.3, 0.3], 4).tolist() == [0, 2, 1, 3]
    worse = np.array([[0.9, 0.1], [1.0, 0.0], [0.0, 0.0]])
    assert class_balancing_set(worse, [1, 0, 0], 2).tolist() == [0, 2]


def test_a_trace_of_a_class_is_told_from_none():
    rows = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.98, 0.02, 1e-12]])
    assert class_balancing_set(rows, [1, 0, 0], 2).tolist() == [0, 2]


def test_fewer_clients_than_asked_for_are_all_taken():
    assert class_balancing_set(np.eye(3), [1, 3, 2], 9).tolist() == [1, 0, 2]
    assert class_balancing_set(np.zeros((0, 3)), [], 2).tolist() == []


@pytest.mark.parametrize(
    ("compositions", "scores", "size", "message"),
    [
        ([0.5, 0.5], [1], 1, "compositions: received shape"),
        ([[0.5, math.nan]], [1], 1, "received nan for client 0, class 1"),
        ([[1.0, 0.0]], [1, 2], 1, "scores: received shape"),
        ([[1.0, 0.0]], [math.nan], 1, "scores: received nan for client 0"),
        ([[1.0, 0.0]], [1], 0, "size: received 0"),
    ],
)
def test_wrong_arguments_are_named(compositions, scores, size, message):
    with pytest.raises(ValueError, match=message):
        class_balancing_set(compositions, scores, size)


@pytest.mark.parametrize(
    ("pulls", "alpha", "message"),
    [([1], 1, "pulls: received"), ([1, -1], 1, "pulls: received"), ([1, 1], -1, "alpha: received -1")],
)
def test_wrong_scores_are_named(pulls, alpha, message):
    with pytest.raises(ValueError, match=message):
        ucb_scores([0.1, 0.2], pulls, 5, alpha)


def test_scores_are_mean_plus_bonus():
    found = ucb_scores(np.array([0.4, 0.1]), np.array([1, 9]), 20, 0.2)
    bonus = 0.2 * np.sqrt([3 * math.log(20) / 2, math.log(20) / 6])
    np.testing.assert_allclose(found, np.array([0.4, 0.1]) + bonus)


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_scores_of_the_first_rounds_and_of_clients_never_asked(alpha):
    for number in (0, 1):
        assert ucb_scores([0.4, 0.0], [3, 0], number, alpha).tolist() == [0.4, math.inf]


def test_rewards_at_their_ends():
    even, one = np.full((1, 10), 0.1), np.eye(10)[:1]
    assert rewards(even)[0] == pytest.approx(1 / math.log(10), rel=DOUBLE)
    assert 1 / rewards(one)[0] == pytest.approx(0.9 * 15 * math.log(10), rel=DOUBLE)
    assert rewards(even, "literal")[0] == pytest.approx(1e6)
    assert rewards(one, "literal")[0] == pytest.approx(1 / math.log(10))
    mixed = np.array([0.5, 0.3, 0.2])
    cross = -np.log(mixed).mean()
    assert rewards(mixed[None])[0] == pytest.approx(1 / cross)
    assert rewards(mixed[None], "literal")[0] == pytest.approx(1 / (mixed @ np.log(mixed * 3)))


# The selector.


def everybody(clients):
    return np.ones(clients, bool)


def observe(selector, state, clients, compositions, arriving=None):
    """The state after a round in which these clients sent these compositions."""
    total = len(state.pulls)
    plan = make_plan(np.array(clients)[:, None], everybody(total) if arriving is None else arriving)
    order = [clients.index(client) for client in plan.clients[:, 0]]
    return selector.update(state, plan, {COMPOSITION: np.array(compositions, np.float32)[order][:, None]})


def test_the_sweep_goes_in_blocks_and_wraps_round_to_client_0():
    selector = cucb(4, num_classes=2)
    state, seen = selector.init(0, 10), []
    for number in range(3):
        clients, state = selector.select(state, 0, number, everybody(10))
        seen.append(clients[:, 0].tolist())
        state = observe(selector, state, seen[-1], [[0.5, 0.5]] * 4)
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    assert state.pulls.tolist() == [2, 2, 1, 1, 1, 1, 1, 1, 1, 1]


def test_after_the_sweep_the_highest_score_comes_with_its_balancing_set():
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(4, 0.4), 10)
    for direction, first in (("from_uniform", "counted"), ("to_uniform", "counted"), ("to_uniform", "left_out")):
        selector = cucb(3, 0.3, direction=direction, first=first, num_classes=4)
        state = BanditState(np.arange(1, 11), np.arange(1, 11), rng.random(10), rows, np.ones(10))
        available = np.arange(10) != 4
        found = selector.select(state, 0, 7, available)[0][:, 0]
        bonus = [0.3 * math.sqrt(3 * math.log(7) / (2 * pulls)) for pulls in range(1, 11)]
        ids = np.flatnonzero(available)
        scores = (state.mean_rewards + bonus)[ids]
        assert found.tolist() == ids[by_hand(rows[ids].tolist(), scores, 3, direction, first)].tolist()


def test_greedy_takes_the_best_mean_and_exploration_the_rarest():
    rows = np.full((3, 2), 0.5)
    state = BanditState(np.array([50, 50, 1]), np.array([50, 50, 1]), np.array([0.3, 0.4, 0.2]), rows, np.ones(3))
    assert greedy(1, num_classes=2).select(state, 0, 9, everybody(3))[0].tolist() == [[1]]
    assert cucb(1, 1.0, num_classes=2).select(state, 0, 9, everybody(3))[0].tolist() == [[2]]


def test_new_clients_come_first_when_they_turn_up():
    selector = cucb(3, num_classes=2)
    state = selector.init(0, 9)
    half = np.arange(9) % 2 == 1
    assert selector.select(state, 0, 0, half)[0][:, 0].tolist() == [1, 3, 5]
    state = observe(selector, state, [1, 3, 5], [[0.5, 0.5]] * 3)
    assert selector.select(state, 0, 1, half)[0][:, 0].tolist() == [7, 1, 3]
    state = observe(selector, state, [7, 1, 3], [[0.9, 0.1]] * 3)
    assert selector.select(state, 0, 12, half | (np.arange(9) == 4))[0][0, 0] == 4


def test_the_sweep_ends_after_as_many_rounds_as_it_has_blocks():
    rows = np.array([[0.6, 0.4], [1.0, 0.0], [0.6, 0.4], [0.0, 1.0], [0.0, 0.0]])
    asked, means = np.array([1, 1, 1, 1, 0]), np.array([0.5, 0.1, 0.1, 0.1, 0.0])
    state = BanditState(asked, np.array([1, 1, 2, 3, 0]), means, rows, np.ones(5))
    selector = cucb(2, num_classes=2)
    assert selector.select(state, 0, 2, everybody(5))[0][:, 0].tolist() == [4, 0]
    four = BanditState(*(leaf[[0, 1, 3, 4]] for leaf in state))
    four = four._replace(compositions=np.array([[0.6, 0.4], [0.5, 0.5], [0.0, 1.0], [0.0, 0.0]]))
    assert selector.select(four, 0, 1, everybody(4))[0][:, 0].tolist() == [3, 0]
    assert selector.select(four, 0, 2, everybody(4))[0][:, 0].tolist() == [3, 1]


def test_few_available_leave_places_empty():
    selector = cucb(3, num_classes=2)
    state = selector.init(0, 5)
    for number in (0, 9):
        assert selector.select(state, 0, number, np.arange(5) == 2)[0].tolist() == [[2], [5], [5]]
    assert selector.select(state, 0, 9, np.zeros(5, bool))[0].tolist() == [[5], [5], [5]]


def test_means_are_plain_for_rewards_and_discounted_for_compositions():
    rng = np.random.default_rng(3)
    values = rng.dirichlet(np.ones(3), 6).astype(np.float32)
    selector = cucb(1, rho=0.7, num_classes=3)
    state = selector.init(0, 2)
    for value in values:
        state = observe(selector, state, [1], [value])
    discounts = 0.7 ** np.arange(5, -1, -1)
    np.testing.assert_allclose(state.compositions[1], discounts @ values / discounts.sum(), rtol=DOUBLE)
    np.testing.assert_allclose(state.mean_rewards[1], rewards(values.astype(float)).mean(), rtol=DOUBLE)
    np.testing.assert_allclose(state.weights, [0, discounts.sum()])
    assert state.pulls.tolist() == [0, 6]
    assert not state.compositions[0].any()


def test_lost_and_broken_compositions_change_nothing_but_who_was_asked():
    selector = cucb(3, num_classes=2)
    before = observe(selector, selector.init(0, 4), [0, 1, 2], [[0.2, 0.8]] * 3)
    arriving = np.arange(4) != 0
    sent = [[0.6, 0.4], [math.nan, 0.5], [0.6, 0.4]]
    after = observe(selector, before, [0, 1, 2], sent, arriving)
    assert (after.asked.tolist(), before.asked.tolist()) == ([2, 2, 2, 0], [1, 1, 1, 0])
    for old, new in zip(before[1:], after[1:], strict=True):
        np.testing.assert_array_equal(old[[0, 1, 3]], new[[0, 1, 3]])
    assert (after.pulls.tolist(), before.pulls.tolist()) == ([1, 1, 2, 0], [1, 1, 1, 0])


def test_the_sweep_goes_on_when_updates_are_lost_and_later_one_of_them_a_round_is_asked_first():
    selector, arriving = cucb(2, num_classes=2), np.arange(5) > 1
    state, sent = selector.init(0, 5), {2: [0.9, 0.1], 3: [0.5, 0.5], 4: [0.2, 0.8]}
    for number, clients in enumerate([[0, 1], [2, 3], [4, 0], [0, 3], [0, 3]]):
        assert selector.select(state, 0, number, everybody(5))[0][:, 0].tolist() == clients
        state = observe(selector, state, clients, [sent.get(client, [0.5, 0.5]) for client in clients], arriving)
    assert (state.asked.tolist(), state.pulls.tolist()) == ([4, 1, 1, 3, 1], [0, 0, 1, 3, 1])
    away = np.array([False, True, True, True, True])
    assert selector.select(state, 0, 5, away)[0][:, 0].tolist() == [1, 3]


def test_it_depends_on_nothing_drawn_and_its_state_can_be_saved(tmp_path):
    selector = cucb(3, num_classes=4)
    states = [selector.init(seed, 8) for seed in (0, 1)]
    rng = np.random.default_rng(0)
    for number in range(6):
        sent = rng.dirichlet(np.ones(4), 3)
        chosen = [selector.select(state, seed, number, everybody(8))[0] for seed, state in enumerate(states)]
        np.testing.assert_array_equal(*chosen)
        states = [observe(selector, state, chosen[0][:, 0].tolist(), sent) for state in states]
    back = load(save(tmp_path, 6, states[0]), selector.init(0, 8))
    for saved, kept in zip(back, states[0], strict=True):
        np.testing.assert_array_equal(saved, kept)


@pytest.mark.parametrize(
    ("probes", "message"),
    [
        ({}, "probes: received none"),
        ({"loss": np.zeros((1, 1))}, "probes: received 'loss'"),
        ({COMPOSITION: np.zeros((1, 1, 3))}, r"must be \(1, 1, 2\)"),
    ],
)
def test_wrong_probes_are_named(probes, message):
    selector = cucb(1, num_classes=2)
    with pytest.raises(ValueError, match=message):
        selector.update(selector.init(0, 2), make_plan(np.array([[0]]), everybody(2)), probes)


WRONG = {"clients_per_round": 0, "alpha": -0.1, "rho": 0, "reward": "bound", "direction": "code", "num_classes": 0}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parameters_are_named(name):
    with pytest.raises(ValueError, match=f"{name}: received {WRONG[name]!r}"):
        cucb(**{"clients_per_round": 2, "num_classes": 2, name: WRONG[name]})
