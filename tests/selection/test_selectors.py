"""Uniform selection and plans."""

import numpy as np
import pytest

from fedjax_bal.selection import make_plan, uniform


def chosen(available, size=4, round=0, seed=0):
    clients, _ = uniform(size).select((), seed, round, available)
    return clients[:, 0]


def test_takes_all_and_leaves_places_empty_where_too_few_are_there():
    available = np.zeros(9, bool)
    available[[2, 7]] = True
    assert sorted(chosen(available)) == [2, 7, 9, 9]


def test_few_of_many_are_drawn_as_evenly_and_in_any_order():
    available = np.arange(40) % 2 == 0
    ids = np.stack([chosen(available, round=r) for r in range(5000)])
    assert all(len(set(row)) == 4 for row in ids)
    assert available[ids].all()
    counts = np.stack([np.bincount(place, minlength=40) for place in ids.T])[:, ::2]
    assert (abs(counts / 5000 - 1 / 20) < 4.5 * np.sqrt(0.05 * 0.95 / 5000)).all()


def test_every_client_is_as_likely():
    counts = np.bincount(np.concatenate([chosen(np.ones(10, bool), round=r) for r in range(5000)]), minlength=10)
    assert (abs(counts / 5000 - 0.4) < 4 * np.sqrt(0.4 * 0.6 / 5000)).all()


def test_somebody_elses_absence_does_not_reshuffle_the_rest():
    everybody = np.ones(12, bool)
    full = set(chosen(everybody))
    absent = everybody.copy()
    absent[next(c for c in range(12) if c not in full)] = False
    assert set(chosen(absent)) == full


def test_plan_orders_chains_by_their_smallest_client():
    arriving = np.ones(6, bool)
    plan = make_plan(np.array([[5, 1], [4, 0], [6, 6]]), arriving)
    assert plan.clients.tolist() == [[4, 0], [5, 1], [6, 6]]
    assert plan.delivered.tolist() == [[True, True], [True, True], [False, False]]


def test_plan_refuses_a_client_in_two_places():
    with pytest.raises(ValueError, match="stands in two places"):
        make_plan(np.array([[1], [1]]), np.ones(3, bool))


def test_plan_refuses_a_negative_number_which_would_wrap_to_another_client():
    with pytest.raises(ValueError, match="received client -1"):
        make_plan(np.array([[1], [-1]]), np.ones(3, bool))


@pytest.mark.parametrize("size", [0, -3, 1.5, True])
def test_a_wrong_cohort_size_is_named(size):
    with pytest.raises(ValueError, match="clients_per_round: received"):
        uniform(size)
