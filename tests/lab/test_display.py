"""The display: what it says, how often, within the width of the screen, and the time that is left."""

import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedjax_bal.lab.display import Progress, WorkUnit
from fedjax_bal.lab.loop import steps_per_round


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def shown(clock, units, width=200, file=None, **options):
    """A display that shows units, or those with these rounds, and its file."""
    file = file or io.StringIO()
    display = Progress(Console(file=file, width=width, **options), clock=clock)
    made = {name: unit if isinstance(unit, WorkUnit) else WorkUnit(name, unit) for name, unit in units.items()}
    display.start(made, headline="starts")
    return display, file


def lines(file):
    return file.getvalue().splitlines()[1:]


def test_lines_come_every_two_seconds_and_for_each_unit_that_ends():
    clock = Clock()
    display, file = shown(clock, {"a": 40, "b": 40})
    display.compiling("a")
    display.advance("a", 0, 0.0)
    for round in range(1, 41):
        clock.now += 0.25
        display.advance("a", round, 812.0, 0.5)
    assert len(lines(file)) == 5
    assert lines(file)[0] == "a: round 8/40, accuracy 50.0%, 812 clients/s; 0/2 runs, 10%, 18 s left"
    assert lines(file)[-1] == "a: finished after 40 rounds, accuracy 50.0%, 812 clients/s; 1/2 runs, 50%, 10 s left"


def test_the_time_left_counts_rounds_of_this_session_without_compilation():
    clock = Clock()
    display, file = shown(clock, {"a": 40, "b": 40})
    display.advance("a", 40, 0.0, 0.5)  # found on disk
    display.compiling("b")
    clock.now += 30
    display.advance("b", 0, 0.0)
    assert lines(file)[1:] == []
    clock.now += 5
    display.advance("b", 10, 9.0)
    display.compiling("b")
    clock.now += 30
    display.advance("b", 20, 9.0)  # by a backend that says nothing between compilation and this
    assert lines(file) == [
        "a: finished after 40 rounds, accuracy 50.0%; 1/2 runs, 50%",
        "b: round 10/40, 9 clients/s; 1/2 runs, 62%, 15 s left",
        "b: round 20/40, 9 clients/s; 1/2 runs, 75%, 10 s left",
    ]


def test_the_time_left_follows_from_local_steps_of_the_same_program():
    clock = Clock()
    units = {
        "slow": WorkUnit("slow", 10, "a", 20.0),
        "short": WorkUnit("short", 10, "a", 10.0),
        "fast": WorkUnit("fast", 10, "b", 20.0),
    }
    display, file = shown(clock, units)
    display.advance("slow", 0, 0.0)
    for name, done, seconds in (("slow", 5, 10), ("slow", 10, 10), ("fast", 5, 5), ("short", 5, 5)):
        clock.now += seconds
        display.advance(name, done, 9.0)
    assert [line.rpartition(", ")[2] for line in lines(file)] == [
        "40 s left",  # 100 steps of slow, 100 of short, 200 of fast; 0.1 s each
        "30 s left",
        "15 s left",  # 100 steps of fast at 0.05 s, 100 of short at 0.1 s
        "10 s left",
    ]


def test_a_unit_that_ends_early_leaves_nothing_to_do():
    clock = Clock()
    display, file = shown(clock, {"[red]a": 9})
    display.advance("[red]a", 4, 7.0, 0.5)
    display.stopped_early("[red]a")
    clock.now += 3
    display.note("half of the clients hold one class [of 10]")
    display.stop()
    display.stop()
    assert lines(file) == [
        "[red]a: stopped early after round 4; 1/1 runs, 100%",
        "half of the clients hold one class [of 10]",
        "1 of 1 runs finished in 3 s",
    ]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.floats(0, 9)), max_size=30))
def test_the_share_and_the_time_left_stay_sensible(events):
    clock = Clock()
    display, file = shown(clock, {"a": 10, "b": 7})
    for name, round, pace in events:
        clock.now += 2.5
        display.advance(name, round, pace)
    for line in lines(file):
        share, left = re.fullmatch(r".* runs, (-?\d+)%(?:, (.*) left)?", line).groups()
        assert 0 <= int(share) <= 100 and "-" not in (left or "")


@pytest.mark.parametrize("width", [60, 80])
def test_a_terminal_shows_bars_that_fit_and_lines_above_them(width, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    name = "scaffold+balanced_softmax_with_a_long_name"
    options = {"width": width, "file": Terminal(), "color_system": None, "force_terminal": True}
    display, file = shown(Clock(), {name: 20, "other": 20}, **options)
    display.compiling(name)
    display.advance(name, 10, 1_234_567.0, 0.123)
    table = io.StringIO()
    Console(file=table, width=width).print(display._bars.get_renderable())
    bars = table.getvalue().splitlines()
    assert max(map(len, bars)) <= width and len(bars) == 2
    assert bars[0].startswith("all") and "0/2 runs" in bars[0] and "round 10/20" in bars[1]
    display.advance(name, 20, 1.0, 0.5)
    display.stop()
    assert "finished after 20 rounds" in " ".join(file.getvalue().split()) and len(display._bars.tasks) == 1


def test_other_files_and_dumb_terminals_get_lines(monkeypatch):
    for options in ({}, {"force_terminal": True}):
        assert Progress(Console(file=io.StringIO(), **options))._bars is None
    assert Progress(Console(file=Terminal(), force_terminal=True), plain=True)._bars is None
    monkeypatch.setenv("TERM", "dumb")
    assert Progress(Console(file=Terminal()))._bars is None


def test_a_round_has_the_steps_of_a_cohort_of_mean_clients():
    setting = SimpleNamespace(local_steps=lambda sizes: np.ceil(sizes / 10))
    federation = SimpleNamespace(offsets=np.array([0, 10, 10, 45, 65]))  # 1, 0, 4 and 2 steps
    made = SimpleNamespace(setting=setting, federation=federation, selector=SimpleNamespace(most=6, passes=2))
    assert steps_per_round(made) == 6 * 2 * (1 + 4 + 2) / 3
