"""Speeds: their laws, who is late for a deadline, and how long a round takes."""

import zlib

import numpy as np
import pytest

from fedjax_bal.selection import make_plan, speed
from fedjax_bal.types import Plan

N = 6
SLOW = np.array([1.0, 2.0, 4.0, 8.0, 0.1, 2.0])  # steps a second


def plan(*chains, away=()):
    """Chains of clients, N for an empty place; some don't deliver."""
    arriving = ~np.isin(np.arange(N), away)
    return make_plan(np.array(chains), arriving)


def timed(tmp_path, deadline=None, late="partial"):
    file = tmp_path / "speeds.csv"
    file.write_text("client,steps_per_s\n" + "".join(f"{c},{s}\n" for c, s in enumerate(SLOW)))
    return speed.table(file, deadline, late)


def test_laws_draw_once_for_each_client_and_seed():
    rng = np.random.default_rng([3, zlib.crc32(b"speed"), 0])
    wanted = 5.0 * np.exp(0.7 * rng.standard_normal(9))
    drawn = [speed.lognormal(5.0, 0.7).drawn(3, number, 9) for number in (0, 4)]
    np.testing.assert_array_equal(drawn, [wanted, wanted])
    assert (speed.lognormal(5.0, 0.7).drawn(4, 0, 9) != wanted).all()
    uniform = speed.uniform(2.0, 3.0).drawn(0, 0, 4000)
    assert 2.0 <= uniform.min() < 2.01 < 2.99 < uniform.max() <= 3.0
    assert abs(uniform.mean() - 2.5) < 4 / np.sqrt(12 * 4000)


def test_a_deadline_that_nobody_can_meet_is_refused(tmp_path):
    steps = np.array([30, 30, 12, 30, 30, 0])  # client 2 needs 3 seconds a visit, client 3 an eighth for one step
    for late, shortest in (("drop", 6.0), ("partial", 0.25)):
        timed(tmp_path, shortest, late).check_deadline(steps, 2)
        with pytest.raises(ValueError, match=rf"received {0.99 * shortest:g}, .* the fastest needs {shortest:.3g} sec"):
            timed(tmp_path, 0.99 * shortest, late).check_deadline(steps, 2)
    with pytest.raises(ValueError, match="a single step"):
        speed.uniform(1.0, 2.0, deadline=0.4).check_deadline(steps, 1)
    speed.lognormal(1.0, 1.0, deadline=1e-9).check_deadline(steps, 1)
    speed.uniform(1.0, 2.0).check_deadline(steps, 1)
    speed.latency(10.0, 1.0, deadline=2.0).check_deadline(steps, 1)
    with pytest.raises(ValueError, match="deadline: received 1.9, .* 10 seconds on average, with a deviation of 1"):
        speed.latency(10.0, 1.0, deadline=1.9).check_deadline(steps, 1)


def test_speeds_can_be_drawn_for_each_round():
    anew = speed.uniform(1.0, 2.0, per_round=True)
    first, second = (anew.drawn(0, number, 5) for number in (0, 1))
    assert (first != second).all()
    np.testing.assert_array_equal(first, anew.drawn(0, 0, 5))


def test_who_is_late_does_what_fits(tmp_path):
    chosen, steps = plan([0], [1], [2], [4], [N]), np.array([[4], [4], [4], [4], [4]])
    limited = timed(tmp_path, deadline=1.5).limited(0, 0, chosen, steps, 1, N)
    assert limited.clients[:, 0].tolist() == [0, 1, 2, 4, N]
    assert limited.limits[:4, 0].tolist() == [1, 3, 6, 0]
    assert limited.delivered[:, 0].tolist() == [True, True, True, False, False]  # 4 can't do a single step
    # Each of two passes has half of the time.
    assert timed(tmp_path, deadline=3.0).limited(0, 0, chosen, steps, 2, N).limits[:4, 0].tolist() == [1, 3, 6, 0]


def test_who_is_late_is_dropped(tmp_path):
    chosen, steps = plan([0], [1], [2], [3]), np.array([[4], [4], [4], [12]])
    limited = timed(tmp_path, deadline=2.0, late="drop").limited(0, 0, chosen, steps, 1, N)
    assert limited.limits is None
    assert limited.delivered[:, 0].tolist() == [False, True, True, True]


def test_steps_that_end_on_the_deadline_are_in_time():
    late = speed.constant(10.0, deadline=0.3).limited(0, 0, plan([0]), np.array([[9]]), 1, N)
    assert late.limits.tolist() == [[3]]


def test_no_deadline_limits_nobody(tmp_path):
    chosen, steps = plan([0], [4]), np.array([[50], [50]])
    assert timed(tmp_path).limited(0, 0, chosen, steps, 1, N) is chosen
    far = timed(tmp_path, deadline=1e9).limited(0, 0, chosen, steps, 1, N)
    assert (far.limits >= steps).all() and far.delivered.all()


def test_a_round_takes_as_long_as_its_slowest_chain(tmp_path):
    open_end, until = timed(tmp_path), timed(tmp_path, deadline=1.5)
    chosen, steps = plan([0], [1], [2], [N]), np.array([[2], [6], [6], [9]])
    assert open_end.seconds(0, 0, chosen, steps, 1, N) == 3.0  # client 1, 6 steps at 2
    assert open_end.seconds(0, 0, chosen, steps, 2, N) == 6.0
    assert open_end.seconds(0, 0, plan([0], [1], [2], away=[1]), steps[:3], 1, N) == 2.0  # nobody waits for client 1
    assert until.seconds(0, 0, until.limited(0, 0, chosen, steps, 1, N), steps, 1, N) == 1.5
    assert until.seconds(0, 0, plan([2], [3], away=[3]), np.array([[2], [1]]), 1, N) == 1.5  # waited for in vain
    assert until.seconds(0, 0, plan([2], [3]), np.array([[2], [1]]), 1, N) == 0.5
    # Along a chain one waits for the other: 2 at 1 and 6 at 2, beside 6 at 4 and an empty place.
    assert open_end.seconds(0, 0, plan([0, 1], [2, N]), np.array([[2, 6], [6, 9]]), 1, N) == 5.0
    assert open_end.seconds(0, 0, plan([N]), np.array([[3]]), 1, N) == 0.0


def test_an_npz_says_the_same_as_a_csv(tmp_path):
    np.savez(tmp_path / "speeds.npz", SLOW)
    from_npz, from_csv = speed.table(tmp_path / "speeds.npz"), timed(tmp_path)
    np.testing.assert_array_equal(from_npz.drawn(0, 0, N), from_csv.drawn(7, 3, N))
    assert from_npz.digest == from_csv.digest
    np.savez(tmp_path / "speeds.npz", SLOW[::-1])
    assert speed.table(tmp_path / "speeds.npz").digest != from_csv.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,steps_per_s\n0,1\n2,1\n", "must have one line for each client, numbered from 0, here to 1"),
        ("client,steps_per_s\n0,0\n", "line 2: steps_per_s: received '0'"),
        ("client,steps_per_s\n0,inf\n", "line 2: steps_per_s: received 'inf'"),
        ("client,steps_per_s\n0.5,1\n", "line 2: client: received '0.5'"),
        ("client,speed\n0,1\n", "its first line is 'client,speed'"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    file = tmp_path / "speeds.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"speeds.csv: {message}"):
        speed.table(file)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: speed.constant(0.0), "steps_per_s: received 0.0"),
        (lambda: speed.uniform(2.0, 1.0), "high: received 1"),
        (lambda: speed.lognormal(1.0, 11.0), "sigma: received 11.0"),
        (lambda: speed.constant(1.0, deadline=0.0), "deadline: received 0.0"),
        (lambda: speed.constant(1.0, deadline=1.0, late="slow"), "late: received 'slow'"),
    ],
)
def test_wrong_numbers_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_latencies_are_those_of_three_normal_parts():
    seconds = np.concatenate([speed.latency().drawn(3, number, 2000) for number in range(5)])
    parts = [(10.0, 3.0), (30.0, 1.0), (15.0, 3.0)]
    mean, deviation = sum(m for m, _ in parts), np.sqrt(sum(d**2 for _, d in parts))
    assert abs(seconds.mean() - mean) < 4 * deviation / np.sqrt(len(seconds))
    assert abs(seconds.std() - deviation) < 4 * deviation / np.sqrt(2 * len(seconds))
    once = speed.latency(per_round=False)
    assert (once.drawn(3, 0, 9) == once.drawn(3, 4, 9)).all()
    assert (speed.latency(1.0, 50.0).drawn(0, 0, 99) >= 0).all()


@pytest.mark.parametrize(("share", "arrive"), [(0.8, 4), (1.0, 5), (0.5, 2), (0.01, 1)])
def test_the_server_waits_for_a_share_of_the_cohort(share, arrive):
    given = speed.latency(on_time=share)
    clients = np.array([[4], [0], [7], [2], [9], [10]])  # the last place is empty
    cohort = Plan(clients, clients < 10)
    steps = np.where(clients < 10, 3, 0)
    seconds = given.drawn(1, 6, 10)[clients[:5, 0]]
    limited = given.limited(1, 6, cohort, steps, 1, 10)
    np.testing.assert_array_equal(limited.delivered[:5, 0], seconds <= np.sort(seconds)[arrive - 1])
    assert limited.delivered.sum() == arrive
    assert not limited.delivered[5, 0]
    assert given.seconds(1, 6, limited, steps, 1, 10) == np.sort(seconds)[arrive - 1]


def test_latencies_have_a_deadline_or_a_share():
    clients = np.arange(6)[:, None]
    cohort, steps = Plan(clients, clients < 6), np.ones_like(clients)
    seconds = speed.latency().drawn(2, 0, 6)
    bound = float(np.median(seconds))
    limited = speed.latency(deadline=bound).limited(2, 0, cohort, steps, 1, 6)
    np.testing.assert_array_equal(limited.delivered[:, 0], seconds <= bound)
    assert speed.latency(deadline=bound).seconds(2, 0, limited, steps, 1, 6) == bound
    assert speed.latency().limited(2, 0, cohort, steps, 1, 6) is cohort
    assert speed.latency().seconds(2, 0, cohort, steps, 1, 6) == seconds.max()
    with pytest.raises(ValueError, match="on_time: received 0.8 and deadline=50; leave one"):
        speed.latency(deadline=50.0, on_time=0.8)
