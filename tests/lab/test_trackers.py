"""Trackers have every line once, whatever happens in between, and never cost a run."""

import pytest
from remembering import Remembering, run

from fedjax_bal.lab.trackers import Trackers, scalars

FIRST, SECOND = "fedavg-seed-0", "rebafl-seed-7"


def lines(*rounds):
    return [{"method": "fedavg", "seed": 0, "round": round, "test_accuracy": round / 10} for round in rounds]


class Session:
    """One session, its notes kept."""

    def __init__(self, **trackers):
        self.notes = []
        self.trackers = Trackers(trackers, "mine", self.notes.append)
        self.runs = {}

    def follow(self, rounds, finished=False, of=("fedavg", 0)):
        followed = self.runs.setdefault(of, run(*of))
        followed.lines, followed.is_over = lines(*rounds), finished
        self.trackers.recorded(followed, 0.0)


def test_within_a_session_every_line_comes_once():
    tracker = Remembering()
    session = Session(mine=tracker)
    for last in (1, 1, 3, 4):
        session.follow(range(1, last + 1), finished=last == 4)
    assert tracker.shown == {FIRST: lines(1, 2, 3, 4)}
    assert [what for what, _ in tracker.calls] == ["begin", "log", "log", "log", "log", "finish"]


def test_runs_that_advance_in_turn_are_kept_apart():
    tracker = Remembering()
    session = Session(mine=tracker)
    session.follow([1])
    session.follow([2], of=("rebafl", 7))
    session.follow([1, 3], finished=True)
    session.follow([2, 4], of=("rebafl", 7))
    session.trackers.close()
    assert tracker.shown == {FIRST: lines(1, 3), SECOND: lines(2, 4)}
    assert tracker.calls[-1] == ("finish", SECOND)
    assert tracker.calls.count(("finish", FIRST)) == 1
    assert session.notes == ["mine: nowhere to look"]


@pytest.mark.parametrize("resumed_from", [0, 2, 3])
def test_after_a_kill_no_line_is_missing_or_there_twice(resumed_from):
    tracker = Remembering()
    Session(mine=tracker).follow([1, 2, 3])  # killed: nothing is closed
    known = list(range(1, resumed_from + 1))
    second = Session(mine=tracker)
    second.follow([*known, resumed_from + 1])
    second.follow([*known, resumed_from + 1, resumed_from + 2], finished=True)
    assert tracker.shown == {FIRST: lines(*range(1, resumed_from + 3))}


def test_a_finished_run_is_shown_again_to_a_tracker_that_comes_later():
    first, second = Remembering(), Remembering()
    Session(first=first).follow([1, 2], finished=True)
    Session(first=first, second=second).follow([1, 2], finished=True)
    assert first.shown == second.shown == {FIRST: lines(1, 2)}
    assert first.calls.count(("finish", FIRST)) == 2


@pytest.mark.parametrize("failing", ["begin", "log", "finish"])
def test_a_failing_tracker_is_named_once_and_left_out_and_the_others_go_on(failing):
    bad, good = Remembering({failing}), Remembering()
    session = Session(bad=bad, good=good)
    session.follow([1], finished=True)
    asked = len(bad.calls)
    session.follow([1], of=("rebafl", 7))
    session.trackers.close()
    warning, hint = session.notes
    assert f"warning: bad failed and is left out of this session (no {failing} today);" in warning
    assert hint == "good: nowhere to look"
    assert len(bad.calls) == asked
    assert good.shown == {FIRST: lines(1), SECOND: lines(1)}
    mended = Remembering()
    mended.shown = bad.shown
    Session(bad=mended).follow([1], finished=True)
    assert mended.shown[FIRST] == lines(1)


def test_a_tracker_that_fails_while_runs_are_closed_is_named_once():
    tracker = Remembering({"finish"})
    session = Session(mine=tracker)
    session.follow([1])
    session.follow([1], of=("rebafl", 7))
    session.trackers.close()
    assert len(session.notes) == 1 and "mine failed" in session.notes[0]


def test_nothing_is_said_where_nothing_was_shown():
    session = Session(mine=Remembering())
    session.trackers.close()
    assert session.notes == []


def test_runs_of_a_sweep_have_its_name_as_group_and_their_point_in_their_names():
    tracker = Remembering()
    trackers = Trackers({"mine": tracker}, "rates", print, sweep=True)
    for rate in ("lr=0.1", "lr=0.2"):
        trackers.recorded(run("fedavg", 7, lines(1), token=rate, path=f"rates/points/{rate}"), 0.0)
    assert [*tracker.runs] == ["lr=0.1/fedavg-seed-7", "lr=0.2/fedavg-seed-7"]
    tracked = tracker.runs["lr=0.1/fedavg-seed-7"]
    assert (tracked.project, tracked.group, tracked.name) == ("rates", "rates", "lr=0.1, fedavg, seed 7")
    assert tracked.config == {"training": {"rounds": 50}, "seed": 7}
    assert tracked.id == "lr=0.1-07070707"


def test_scalars_are_the_numbers_of_a_line():
    line = {"method": "a", "seed": 3, "round": 5, "bytes_up": 7, "done": True, "text": "x", "nothing": None}
    line |= {"per_class": [0.5, None, 1], "nested": {"x": [2.0]}}
    assert scalars(line) == {"bytes_up": 7.0, "per_class/0": 0.5, "per_class/2": 1.0, "nested/x/0": 2.0}
