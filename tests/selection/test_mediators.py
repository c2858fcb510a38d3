"""Mediators: the greedy search against an explicit one, its ties and edges, and the selector around it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_bal.selection import mediated, mediators, uniform

ALL = np.ones(40, bool)


def divergence(counts):
    """KL(P || U) of one collection of samples, added up without rounding."""
    total = math.fsum(counts)
    return math.fsum(n / total * math.log(n / total) for n in counts if n > 0) + math.log(len(counts))


def by_hand(class_counts, size, pool="counts"):
    """Algorithm 3 with explicit loops; scores within 1e-12 go to the lowest id."""
    held = {i: [float(n) for n in row] for i, row in enumerate(class_counts) if sum(row) > 0}
    shares = lambda row: [n / math.fsum(row) for n in row] if any(row) else row
    rows = dict(held) if pool == "counts" else {i: shares(row) for i, row in held.items()}
    groups = []
    while rows:
        total, members = [0.0] * len(class_counts[0]), []
        while rows and len(members) < size:
            group = shares(total) if pool == "halves" else total
            scores = {i: divergence([a + b for a, b in zip(group, row, strict=True)]) for i, row in rows.items()}
            best = min(i for i, score in scores.items() if score <= min(scores.values()) + 1e-12)
            added = rows.pop(best)
            total = [a + b for a, b in zip(total, held[best] if pool == "halves" else added, strict=True)]
            members.append(best)
        groups.append(members)
    return groups


def lists(groups):
    return [group.tolist() for group in groups]


tables = st.integers(1, 5).flatmap(
    lambda classes: st.lists(st.lists(st.integers(0, 6), min_size=classes, max_size=classes), min_size=1, max_size=14)
)


@given(tables, st.integers(1, 5), st.sampled_from(["counts", "distributions", "halves"]))
def test_agrees_with_explicit_loops(table, size, pool):
    assert lists(mediators(np.array(table), size, pool=pool)) == by_hand(table, size, pool)


@pytest.mark.parametrize("pool", ["counts", "distributions", "halves"])
@pytest.mark.parametrize("scale", [1, 1000, 10**6])
def test_agrees_with_explicit_loops_on_many_unlike_clients(pool, scale):
    rng = np.random.default_rng(scale)
    sizes = 1 + rng.lognormal(3, 1.5, 80).astype(int) * scale
    table = rng.multinomial(sizes, rng.dirichlet(np.full(12, 0.4), 80))
    found = lists(mediators(table, 7, pool=pool))
    assert found == by_hand(table.tolist(), 7, pool)
    others = [lists(mediators(table, 7, pool=other)) for other in ("counts", "distributions", "halves")]
    assert others.count(found) == 1


def test_the_table_survives_being_written_anew_in_several_pieces():
    table = np.random.default_rng(1).integers(0, 9, (120, 300))
    assert lists(mediators(table, 4)) == by_hand(table.tolist(), 4)


def test_near_ties_below_32_bits_go_to_the_smaller_divergence():
    rows = np.full((9, 4), 10_000_000)
    rows[:, 0] += np.array([9, 8, 7, 6, 5, 4, 3, 2, 1]) * 1000
    scores = [divergence(row) for row in rows]
    assert min(np.diff(sorted(scores))) > 1e-12
    assert lists(mediators(rows, 1)) == [[8], [7], [6], [5], [4], [3], [2], [1], [0]]


def test_scaled_and_permuted_counts_tie_and_the_lowest_id_wins():
    base = np.array([1, 3, 7, 0, 11])
    rows = np.stack([scale * np.roll(base, shift) for scale, shift in [(9, 2), (1, 0), (3, 4), (7, 1), (100_003, 3)]])
    assert lists(mediators(rows, 1)) == [[0], [1], [2], [3], [4]]
    even = np.array([[1, 1, 1], [3, 3, 3], [7, 7, 7], [2, 2, 2], [10**9, 10**9, 10**9]])
    assert lists(mediators(even, 5)) == [[0, 1, 2, 3, 4]]


def test_pools_differ_where_sizes_do():
    rows = np.array([[50, 50], [90, 10], [1, 9], [100, 900]])
    assert lists(mediators(rows, 3))[0] == [0, 2, 1] == by_hand(rows.tolist(), 3)[0]
    assert lists(mediators(rows, 3, pool="distributions"))[0] == [0, 1, 2]


def test_nobody_makes_no_group():
    assert mediators(np.zeros((3, 2)), 2) == []
    assert mediators(np.zeros((0, 2)), 2) == []


def test_many_clients_that_tie_or_are_alike_agree_with_explicit_loops():
    rng = np.random.default_rng(0)
    pairs = np.stack([np.isin(np.arange(8), rng.choice(8, 2, replace=False)) * 5 for _ in range(90)])
    assert len(np.unique(pairs, axis=0)) < 30
    assert lists(mediators(pairs, 5)) == by_hand(pairs.tolist(), 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], 2), "class_counts: received shape"),
        (([[1, -1]], 2), "received -1.0 for client 0, class 1"),
        (([[1, 2], [float("nan"), 0]], 2), "received nan for client 1, class 0"),
        (("counts", 2), "class_counts: received 'counts'"),
        (([[1, 2]], 0), "size: received 0"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        mediators(*arguments)


def test_a_wrong_pool_is_named():
    with pytest.raises(ValueError, match="did you mean 'counts'"):
        mediators(np.eye(2), 1, pool="count")  # type: ignore[arg-type]


# The selector.

COUNTS = np.random.default_rng(5).integers(0, 9, (40, 6))


def rounds(selector, count=20, available=ALL, seed=0):
    state = selector.init(seed, len(available))
    return np.stack([selector.select(state, seed, r, available)[0] for r in range(count)])


def test_the_clients_of_a_round_are_those_of_uniform_and_grouped_greedily():
    selector, plain = mediated(12, 5, class_counts=COUNTS), uniform(12)
    for number, clients in enumerate(rounds(selector)):
        drawn = np.sort(plain.select((), 0, number, ALL)[0][:, 0])
        expected = [drawn[group].tolist() for group in by_hand(COUNTS[drawn].tolist(), 5)]
        assert [[c for c in chain if c < 40] for chain in clients.tolist()] == expected
    assert (selector.chains, selector.chain_length, selector.passes, selector.closed_loop) == (3, 5, 2, False)


def test_too_few_available_leave_places_empty():
    available = np.isin(np.arange(40), [3, 8, 20])
    clients = rounds(mediated(8, 2, class_counts=COUNTS), 1, available)[0]
    assert clients.shape == (4, 2)
    assert sorted(clients.ravel())[:3] == [3, 8, 20]
    assert (np.sort(clients.ravel())[3:] == 40).all()


@pytest.mark.parametrize("resched", ["per_round", "once"])
def test_only_available_clients_train_and_each_once(resched):
    rng = np.random.default_rng(0)
    selector = mediated(12, 4, resched=resched, order="shuffled", class_counts=COUNTS)
    for number in range(30):
        available = rng.random(40) < 0.4
        clients = selector.select(selector.init(1, 40), 1, number, available)[0]
        chosen = clients[clients < 40]
        assert available[chosen].all()
        assert len(set(chosen)) == len(chosen)


def test_once_draws_from_fixed_groups_evenly():
    selector = mediated(10, 5, resched="once", class_counts=COUNTS)
    fixed = lists(mediators(COUNTS, 5))
    found = rounds(selector, 2000)
    seen = np.array([[fixed.index(chain) for chain in clients.tolist()] for clients in found])
    assert (seen[:, 0] != seen[:, 1]).all()
    share = np.bincount(seen.ravel(), minlength=8) / 2000
    assert (abs(share - 2 / 8) < 4 * np.sqrt(0.25 * 0.75 / 2000)).all()


def test_once_draws_only_groups_with_somebody_and_keeps_their_order():
    fixed = lists(mediators(COUNTS, 5))
    available = np.isin(np.arange(40), fixed[2][1:4] + fixed[6][4:])
    clients = rounds(mediated(20, 5, resched="once", class_counts=COUNTS), 1, available)[0]
    chains = sorted([c for c in chain if c < 40] for chain in clients.tolist())
    assert chains == sorted([[], [], fixed[2][1:4], fixed[6][4:]])


def test_shuffling_changes_the_order_only_and_by_seed_and_round():
    fixed, shuffled = (mediated(20, 10, order=order, class_counts=COUNTS) for order in ("fixed", "shuffled"))
    plain, mixed = rounds(fixed), rounds(shuffled)
    np.testing.assert_array_equal(np.sort(plain, axis=2), np.sort(mixed, axis=2))
    assert (plain != mixed).any(axis=(1, 2)).all()
    np.testing.assert_array_equal(mixed, rounds(shuffled))
    assert (mixed != rounds(shuffled, seed=1)).any(axis=(1, 2)).all()


def test_clients_without_samples_are_in_no_chain():
    counts = COUNTS.copy()
    counts[::2] = 0
    for resched in ("per_round", "once"):
        found = rounds(mediated(40, 5, resched=resched, class_counts=counts))
        assert (found[found < 40] % 2 == 1).all()


WRONG = {"clients_per_round": 0, "size": 1.5, "passes": 0, "resched": "twice", "order": "shufled", "pool": None}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parameters_are_named(name):
    with pytest.raises(ValueError, match=f"{name}: received {WRONG[name]!r}"):
        mediated(**{"clients_per_round": 4, "size": 2, "class_counts": COUNTS, name: WRONG[name]})


def test_counts_of_another_federation_are_refused():
    with pytest.raises(ValueError, match="class_counts: received 40 clients, but the federation has 39"):
        mediated(4, 2, class_counts=COUNTS).init(0, 39)
