"""The display: a line for each method, what a terminal replaces, within its width, and the time that is left."""

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
from fedjax_bal.status import duration


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
    """A display that shows units, by their keys, and its file; (method, seed) with a number of rounds is a run."""
    file = file or io.StringIO()
    display = Progress(Console(file=file, width=width, **options), clock=clock)
    made = {
        key: unit if isinstance(unit, WorkUnit) else WorkUnit(key[0], f"seed {key[1]}", unit)
        for key, unit in units.items()
    }
    display.start(made, "seeds", "starts")
    return display, file


def lines(file):
    return file.getvalue().splitlines()[1:]


def train(display, key, rounds, accuracy):
    display.advance(key, 0, 0.0)
    display.advance(key, rounds, 9.0, accuracy)


RUNS = {("fedavg", 0): 4, ("rebafl", 0): 4, ("fedavg", 1): 4, ("rebafl", 1): 4}


def test_a_method_has_a_line_when_its_last_seed_ends():
    display, file = shown(Clock(), RUNS)
    train(display, ("fedavg", 0), 4, 0.5)
    train(display, ("rebafl", 0), 4, 0.4)
    assert lines(file) == []
    train(display, ("fedavg", 1), 4, 0.7)
    assert lines(file) == ["fedavg  2/2 seeds, accuracy 60.0 ± 14.1%"]
    train(display, ("rebafl", 1), 4, 0.58)
    display.stop()
    display.stop()
    assert lines(file)[1:] == [
        "rebafl  2/2 seeds, accuracy 49.0 ± 12.7%, \N{MINUS SIGN}11.0 vs fedavg",
        "4 of 4 runs finished in 0 s",
    ]


def test_the_difference_is_that_of_seeds_that_both_methods_have():
    display, file = shown(Clock(), RUNS)
    train(display, ("fedavg", 0), 4, 0.5)
    train(display, ("fedavg", 1), 4, 0.9)
    for _ in range(2):
        display.failed(("rebafl", 0))
    train(display, ("rebafl", 1), 4, 0.92)
    display.stop()
    assert lines(file)[1:] == [
        "rebafl  1/2 seeds, accuracy 92.0%, +2.0 vs fedavg, 1 failed",
        "3 of 4 runs finished in 0 s",
    ]


def test_runs_of_earlier_sessions_count_and_have_no_lines():
    display, file = shown(Clock(), RUNS)
    for key in RUNS:
        display.advance(key, 4, 0.0, 0.5)
    display.stop()
    assert lines(file) == ["4 of 4 runs were already finished"]

    display, file = shown(Clock(), RUNS)
    for key in list(RUNS)[:3]:
        display.advance(key, 4, 0.0, 0.5)
    train(display, ("rebafl", 1), 4, 0.7)
    display.stop()
    assert lines(file) == ["rebafl  2/2 seeds, accuracy 60.0 ± 14.1%, +10.0 vs fedavg", "4 of 4 runs finished in 0 s"]


def test_an_interrupted_session_shows_the_methods_that_it_has_begun():
    display, file = shown(Clock(), RUNS)
    train(display, ("fedavg", 0), 4, 0.5)
    train(display, ("rebafl", 0), 2, 0.3)
    display.stop()
    assert lines(file) == [
        "fedavg  1/2 seeds, accuracy 50.0%",
        "rebafl  0/2 seeds",
        "1 of 4 runs finished in 0 s",
    ]


def test_a_method_whose_runs_all_fail_has_a_line():
    display, file = shown(Clock(), {("fedavg", 0): 4})
    display.failed(("fedavg", 0))
    display.stop()
    assert lines(file) == ["fedavg  0/1 seeds, 1 failed", "0 of 1 runs finished in 0 s"]


def test_batches_count_their_runs():
    units = {0: WorkUnit("fedavg", "9 runs", 4, runs=9), 1: WorkUnit("fedavg", "lr=0.1", 4)}
    display, file = shown(Clock(), units)
    train(display, 0, 4, None)
    display.failed(0, 2)
    train(display, 1, 4, None)
    assert lines(file) == ["fedavg  8/10 seeds, 2 failed"]


def test_without_a_terminal_there_is_a_line_a_minute():
    clock = Clock()
    display, file = shown(clock, {("a", 0): 400, ("b", 0): 400})
    display.compiling(("a", 0))
    display.advance(("a", 0), 0, 0.0)
    for round in range(1, 401):
        clock.now += 0.25
        display.advance(("a", 0), round, 812.0, 0.5)
    assert lines(file) == [
        "a, seed 0: round 240/400, accuracy 50.0%, 812 clients/s; 30%, 2 min 20 s left",
        "a  1/1 seeds, accuracy 50.0%",
    ]


def test_the_time_left_counts_rounds_of_this_session_without_compilation():
    clock = Clock()
    display, file = shown(clock, {("a", 0): 400, ("b", 0): 400})
    display.advance(("a", 0), 400, 0.0, 0.5)  # found on disk
    display.compiling(("b", 0))
    clock.now += 300
    display.advance(("b", 0), 0, 0.0)
    clock.now += 60
    display.advance(("b", 0), 100, 9.0)
    display.compiling(("b", 0))
    clock.now += 300
    display.advance(("b", 0), 200, 0.25)  # by a backend that says nothing between compilation and this
    assert lines(file) == [
        "b, seed 0: round 0/400; 50%",
        "b, seed 0: round 100/400, 9 clients/s; 62%, 3 min left",
        "b, seed 0: round 200/400, 0.25 clients/s; 75%, 2 min left",
    ]


def test_the_time_left_follows_from_local_steps_of_the_same_program():
    clock = Clock()
    units = {
        "slow": WorkUnit("slow", "", 100, "a", 20.0),
        "short": WorkUnit("short", "", 100, "a", 10.0),
        "fast": WorkUnit("fast", "", 100, "b", 20.0),
    }
    display, file = shown(clock, units)
    display.advance("slow", 0, 0.0)
    for name, done, seconds in (("slow", 50, 100), ("slow", 90, 80), ("fast", 50, 60), ("short", 50, 60)):
        clock.now += seconds
        display.advance(name, done, 9.0)
    # Seconds for a step: 0.1 of program a, until it is known also of b; then 0.06 of b; at last 240 s / 2,300 of a.
    left = [400, 320, 20 + 100 + 60, round(700 * 240 / 2300) + 60]
    assert [line.rpartition(", ")[2] for line in lines(file)] == [f"{duration(seconds)} left" for seconds in left]


def test_a_unit_that_ends_early_leaves_nothing_to_do():
    display, file = shown(Clock(), {("[red]a", 0): 9})
    display.advance(("[red]a", 0), 4, 7.0, 0.5)
    display.stopped_early(("[red]a", 0))
    display.note("half of the clients hold one class [of 10]")
    display.stop()
    assert lines(file) == [
        "[red]a  1/1 seeds, accuracy 50.0%",
        "half of the clients hold one class [of 10]",
        "1 of 1 runs finished in 0 s",
    ]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.floats(0, 9)), max_size=30))
def test_the_share_and_the_time_left_stay_sensible(events):
    clock = Clock()
    display, file = shown(clock, {("a", 0): 10, ("b", 0): 7})
    for name, round, pace in events:
        clock.now += 60
        display.advance((name, 0), round, pace)
    for line in lines(file):
        if "seed 0" in line:
            share, left = re.fullmatch(r".*; (-?\d+)%(?:, (.*) left)?", line).groups()
            assert 0 <= int(share) <= 100 and "-" not in (left or "")


def picture(display, width):
    """The lines that a terminal replaces."""
    file = io.StringIO()
    Console(file=file, width=width).print(display._picture())
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [60, 80])
def test_a_terminal_shows_methods_and_the_run_in_training_within_its_width(width, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    name = "scaffold+balanced_softmax_with_a_long_name"
    options = {"width": width, "file": Terminal(), "color_system": None, "force_terminal": True}
    clock = Clock()
    display, file = shown(clock, {(name, 0): 20, (name, 1): 20, ("other", 0): 20}, **options)
    display.compiling((name, 0))
    clock.now += 12
    status, _ = picture(display, width)
    assert status.startswith("scaffold+") and status.endswith("…, seed 0: compiling, 12 s")
    display.advance((name, 0), 20, 1_234_567.0, 0.123)
    display.advance((name, 1), 10, 1_234_567.0, 0.123)
    line, status, whole = picture(display, width)
    assert max(map(len, (line, status, whole))) <= width
    assert "1/2" in line and "round 10/20" in status and whole.endswith("50%, 0 s left")
    display.advance((name, 1), 20, 1.0, 0.5)
    assert len(picture(display, width)) == 2
    display.stop()
    assert "2/2 seeds" in " ".join(file.getvalue().split())


def test_a_terminal_shows_as_many_methods_as_it_has_room_for(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    options = {"width": 80, "height": 12, "file": Terminal(), "force_terminal": True}
    display, _ = shown(Clock(), {(f"m{place}", seed): 2 for seed in (0, 1) for place in range(20)}, **options)
    for place in range(20):
        display.advance((f"m{place}", 0), 2, 1.0, 0.5)
    shown_lines = picture(display, 80)
    display.stop()
    assert len(shown_lines) == 6 and shown_lines[3].startswith("m19")


def test_other_files_and_dumb_terminals_get_lines(monkeypatch):
    for options in ({}, {"force_terminal": True}):
        assert Progress(Console(file=io.StringIO(), **options))._live is None
    assert Progress(Console(file=Terminal(), force_terminal=True), plain=True)._live is None
    monkeypatch.setenv("TERM", "dumb")
    assert Progress(Console(file=Terminal()))._live is None


def test_a_round_has_the_steps_of_a_cohort_of_mean_clients():
    setting = SimpleNamespace(local_steps=lambda sizes: np.ceil(sizes / 10))
    federation = SimpleNamespace(sizes=np.array([10, 0, 35, 20]))  # 1, 0, 4 and 2 steps
    made = SimpleNamespace(setting=setting, federation=federation, selector=SimpleNamespace(most=6, passes=2))
    assert steps_per_round(made) == 6 * 2 * (1 + 4 + 2) / 3
