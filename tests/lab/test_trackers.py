"""Trackers have every line once, whatever happens in between, and never cost a run."""

import pytest
from remembering import Remembering

from fedjax_bal.config import load_config
from fedjax_bal.lab.trackers import Trackers

CONFIG = load_config(None, ["methods=[{recipe: fedavg}, {recipe: rebafl}]", "seeds=[0, 7]"])


def lines(*rounds):
    return [{"method": "fedavg", "seed": 0, "round": round, "test_accuracy": round / 10} for round in rounds]


class Session:
    """One session, its notes kept."""

    def __init__(self, *trackers):
        self.notes = []
        self.trackers = Trackers(trackers, CONFIG, self.notes.append)

    def follow(self, rounds, finished=False, run=("fedavg", 0)):
        self.trackers.follow(*run, lines(*rounds), finished=finished)


def test_within_a_session_every_line_comes_once():
    tracker = Remembering()
    session = Session(tracker)
    for last in (1, 1, 3, 4):
        session.follow(range(1, last + 1), finished=last == 4)
    assert tracker.shown == {"0-0": lines(1, 2, 3, 4)}
    assert [what for what, _ in tracker.calls] == ["begin", "log", "log", "log", "log", "finish"]


def test_runs_that_advance_in_turn_are_kept_apart():
    tracker = Remembering()
    session = Session(tracker)
    session.follow([1], run=("fedavg", 0))
    session.follow([2], run=("rebafl", 7))
    session.follow([1, 3], run=("fedavg", 0), finished=True)
    session.follow([2, 4], run=("rebafl", 7))
    session.trackers.close()
    assert tracker.shown == {"0-0": lines(1, 3), "1-7": lines(2, 4)}
    assert tracker.calls[-1] == ("finish", "1-7")
    assert tracker.calls.count(("finish", "0-0")) == 1
    assert session.notes == ["remembering: nowhere to look"]


@pytest.mark.parametrize("resumed_from", [0, 2, 3])
def test_after_a_kill_no_line_is_missing_or_there_twice(resumed_from):
    tracker = Remembering()
    Session(tracker).follow([1, 2, 3])  # killed: nothing is closed
    known = list(range(1, resumed_from + 1))
    second = Session(tracker)
    second.follow([*known, resumed_from + 1])
    second.follow([*known, resumed_from + 1, resumed_from + 2], finished=True)
    assert tracker.shown == {"0-0": lines(*range(1, resumed_from + 3))}


def test_a_finished_run_is_shown_again_to_a_tracker_that_comes_later():
    first, second = Remembering("first"), Remembering("second")
    Session(first).follow([1, 2], finished=True)
    Session(first, second).follow([1, 2], finished=True)
    assert first.shown == second.shown == {"0-0": lines(1, 2)}
    assert first.calls.count(("finish", "0-0")) == 2


@pytest.mark.parametrize("failing", ["begin", "log", "finish"])
def test_a_failing_tracker_is_named_and_left_out_and_the_others_go_on(failing):
    bad, good = Remembering("bad", {failing}), Remembering("good")
    session = Session(bad, good)
    session.follow([1], finished=True)
    asked = len(bad.calls)
    session.follow([1], run=("rebafl", 7))
    session.trackers.close()
    warning, hint = session.notes
    assert f"warning: bad failed and is left out of this session (no {failing} today);" in warning
    assert hint == "good: nowhere to look"
    assert len(bad.calls) == asked
    assert good.shown == {"0-0": lines(1), "1-7": lines(1)}
    mended = Remembering("bad")
    mended.shown = bad.shown
    Session(mended).follow([1], finished=True)
    assert mended.shown["0-0"] == lines(1)


def test_a_tracker_that_fails_has_its_other_runs_closed():
    tracker = Remembering()
    session = Session(tracker)
    session.follow([1], run=("rebafl", 7))
    tracker.failing = {"begin"}
    session.follow([1], run=("fedavg", 0))
    assert tracker.calls == [("begin", "1-7"), ("log", "1-7"), ("begin", "0-0"), ("finish", "1-7")]


def test_nothing_is_said_where_nothing_was_shown():
    session = Session(Remembering())
    session.trackers.close()
    assert session.notes == []
