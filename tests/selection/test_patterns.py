"""Patterns of presence: against tables of DPFL, against loops over rounds, and their frequencies."""

import numpy as np
import pytest

from fedjax_bal.selection import arrival, cyclic, departure, markov, rotation
from fedjax_bal.selection.selectors import generator


def table(pattern, rounds, clients, seed=0, purpose="availability"):
    """Who is present, `Bool[rounds, clients]`."""
    return np.array([pattern.mask(seed, purpose, t, np.ones(clients, bool)) for t in range(rounds)])


def arriving(rounds, clients, initial, start, interval, number):
    """DPFL's loop: rows are set from a round on."""
    state = np.zeros((clients, rounds), bool)
    state[:initial] = True
    arrived = initial
    for begin in range(start, rounds, interval):
        state[arrived : arrived + number, begin:] = True
        arrived += number
    return state.T


def departing(rounds, clients, start, interval, number):
    """DPFL's loop: rows are cleared from a round on, the last client first."""
    state = np.ones((clients, rounds), bool)
    last = clients
    for begin in range(start, rounds, interval):
        state[max(last - number, 0) : max(last, 0), begin:] = False
        last -= number
    return state.T


def taking_turns(rounds, clients, interval, number, overlap):
    """DPFL's loop: the first client of an interval moves on."""
    state = np.zeros((clients, rounds), bool)
    first = 0
    for begin in range(0, rounds, interval):
        for offset in range(number):
            state[(first + offset) % clients, begin : begin + interval] = True
        first += number - overlap
    return state.T


@pytest.mark.parametrize("shape", [(5, 3, 4, 2), (0, 0, 1, 1), (9, 2, 3, 4), (2, 50, 7, 1)])
def test_clients_arrive_as_in_dpfls_table(shape):
    np.testing.assert_array_equal(table(arrival(*shape), 40, 10), arriving(40, 10, *shape))


@pytest.mark.parametrize("shape", [(3, 4, 2), (0, 1, 1), (2, 3, 4), (50, 7, 1)])
def test_clients_leave_as_in_dpfls_table(shape):
    np.testing.assert_array_equal(table(departure(*shape), 40, 10), departing(40, 10, *shape))


@pytest.mark.parametrize("shape", [(2, 2, 1), (1, 3, 0), (7, 4, 2), (5, 12, 3), (10, 1, 0)])
def test_clients_take_turns_as_in_dpfls_table(shape):
    np.testing.assert_array_equal(table(rotation(*shape), 60, 10), taking_turns(60, 10, *shape))


def test_who_overlaps_with_all_takes_no_turns():
    with pytest.raises(ValueError, match="overlap_clients: received 1, must be below clients_per_interval=1"):
        rotation(clients_per_interval=1, overlap_clients=1)


@pytest.mark.parametrize("arrives", [0.02, 0.2, 0.9])
def test_a_chain_read_backwards_is_the_chain_played_forwards(arrives):
    shares = [0.1, 0.5, 0.8, 1.0]
    found = table(markov(shares, arrives), 60, 20, seed=4)
    share = np.tile(shares, 5)
    comes = np.array([min(arrives, p / (1 - p)) if p < 1 else arrives for p in share])
    leaves = comes * (1 / share - 1)
    present = generator(4, "availability", 0).random(20) < share
    for number in range(60):
        if number:
            draws = generator(4, "availability", number).random(20)
            present = np.where(present, draws < 1 - leaves, draws < comes)
        np.testing.assert_array_equal(found[number], present)


def test_clients_of_a_chain_are_present_and_stay_as_often_as_asked():
    clients, rounds = 4000, 40
    seen = table(markov([0.5]), rounds, clients)
    before, after = seen[:-1], seen[1:]
    # Clients are independent of one another; rounds aren't, so that a client counts once for the error.
    error = 4 * 0.5 / np.sqrt(clients)
    assert abs(seen.mean() - 0.5) < error
    assert abs(after[before].mean() - 0.8) < error
    assert abs(after[~before].mean() - 0.2) < error
    rare = table(markov([0.1, 0.9], arrival=0.9), rounds, clients)
    assert abs(rare[:, ::2].mean() - 0.1) < error
    assert abs(rare[:, 1::2].mean() - 0.9) < error
    assert (seen != table(markov([0.5]), rounds, clients, purpose="delivery")).any()


def test_a_cycle_has_its_rounds_in_a_row_and_repeats():
    shares, cycle = [0.3, 0.01, 1.0, 0.5], 10
    seen = table(cyclic(shares, cycle), 4 * cycle, 400)
    np.testing.assert_array_equal(seen[:cycle], seen[cycle : 2 * cycle])
    np.testing.assert_array_equal(seen[:cycle].sum(0), np.tile([3, 1, 9, 5], 100))
    begins = (~seen[:-1] & seen[1:])[: 2 * cycle].sum(0)
    assert (begins == 2).all()
    # A client's first presence begins in one of the rounds of its absence, each as likely as the others.
    first = seen.argmax(0)[::4]
    counts = np.bincount(first, minlength=7)
    assert len(counts) == 7
    assert (np.abs(counts - 100 / 7) < 4 * np.sqrt(100 / 7)).all()


@pytest.mark.parametrize("pattern", [markov([0.5]), cyclic([0.5], 4), arrival(6, 0), departure(4), rotation(2, 6)])
def test_a_client_without_rows_is_never_present(pattern):
    eligible = np.arange(8) % 2 == 0
    for number in range(12):
        everyone = pattern.mask(1, "delivery", number, np.ones(8, bool))
        np.testing.assert_array_equal(pattern.mask(1, "delivery", number, eligible), everyone & eligible)
