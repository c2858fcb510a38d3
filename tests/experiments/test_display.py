"""The displays: what they say, how often, within the width of the screen, and the time that is left."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedjax_bal.experiments.display import LiveProgress, PlainProgress, RunProgress, choose

FOLDER = Path("runs/quickstart")


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def plain(clock, width=200):
    file = io.StringIO()
    return PlainProgress(Console(file=file, width=width), clock), file


def live(clock, width=60, height=20, file=None, **options):
    console = Console(file=file or Terminal(), width=width, height=height, force_terminal=True, **options)
    return LiveProgress(console, clock)


def shown(snapshot, width=60, height=20):
    """The display as plain lines."""
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, legacy_windows=False)
    console.print(snapshot.render())
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


# The tally.


def test_the_pace_leaves_compilation_out():
    clock = Clock()
    tally = RunProgress(["fedavg"], [0], {"fedavg": 40}, clock)
    tally.compiling("fedavg")
    clock.now += 30
    tally.advance("fedavg", 0, 5, 0.1, 80.0)
    assert tally.seconds_left is None
    clock.now += 2
    tally.advance("fedavg", 0, 10, 0.2, 80.0)
    assert tally.seconds_left == pytest.approx(30 * 2 / 5)
    assert tally.elapsed == 32


def test_the_time_left_counts_compilations_to_come():
    clock = Clock()
    tally = RunProgress(["a", "b", "c"], [0], {"a": 20, "b": 20, "c": 20}, clock)

    def compile(method, seconds):
        tally.compiling(method)
        clock.now += seconds
        tally.advance(method, 0, 0, None, 0.0)

    compile("a", 10)
    assert tally.seconds_left is None
    clock.now += 2
    tally.advance("a", 0, 20, 0.5, 80.0)
    assert tally.seconds_left == pytest.approx(2 * (10 + 2))
    tally.compiling("b")
    clock.now += 7
    assert tally.seconds_left == pytest.approx(2 * (10 + 2) - 7)
    clock.now += 13
    assert tally.seconds_left is None  # it takes longer than the one before
    tally.advance("b", 0, 0, None, 0.0)
    assert tally.seconds_left == pytest.approx(2 + 15 + 2)
    clock.now += 6
    tally.advance("b", 0, 20, 0.5, 80.0)
    assert tally.seconds_left == pytest.approx(15 + 20 * (2 + 6) / 40)
    compile("c", 1)
    assert tally.seconds_left == pytest.approx(20 * (2 + 6) / 40)


def test_what_is_compiled_but_finished_or_found_on_disk_needs_no_compilation():
    clock = Clock()
    tally = RunProgress(["a", "b"], [0, 1], {"a": 20, "b": 20}, clock)
    for seed in (0, 1):
        tally.advance("b", seed, 20, 0.5, 0.0)
    tally.advance("a", 0, 10, 0.4, 0.0)
    tally.compiling("a")
    clock.now += 9
    tally.advance("a", 0, 10, 0.4, 0.0)
    clock.now += 5
    tally.advance("a", 0, 20, 0.5, 80.0)  # the only dispatch of a run that was resumed has a pace too
    assert tally.seconds_left == pytest.approx(20 * 5 / 10)


def test_the_pace_leaves_out_what_was_found_on_disk():
    clock = Clock()
    tally = RunProgress(["fedavg"], [0, 1], {"fedavg": 40}, clock)
    tally.advance("fedavg", 0, 40, 0.5, 0.0)
    tally.advance("fedavg", 1, 20, 0.4, 0.0)
    assert tally.share == pytest.approx(60 / 80)
    assert tally.seconds_left is None
    tally.compiling("fedavg")
    clock.now += 10
    tally.advance("fedavg", 1, 25, 0.4, 50.0)
    clock.now += 1
    tally.advance("fedavg", 1, 30, 0.4, 50.0)
    assert tally.seconds_left == pytest.approx(10 * 1 / 5)


def test_seeds_that_advance_together_share_the_time():
    clock = Clock()
    tally = RunProgress(["fedavg"], [0, 1], {"fedavg": 20}, clock)
    for round in (5, 10):
        clock.now += 4
        tally.advance("fedavg", 0, round, None, 9.0)
        tally.advance("fedavg", 1, round, None, 9.0)
    assert tally.seconds_left == pytest.approx(2 * 4)


def test_each_method_has_its_own_pace_and_the_others_take_the_mean():
    clock = Clock()
    tally = RunProgress(["a", "b", "c"], [0], {"a": 20, "b": 20, "c": 10}, clock)
    for method, seconds in (("a", 1), ("b", 3)):
        for round in (5, 10):
            clock.now += seconds
            tally.advance(method, 0, round, None, 9.0)
    assert tally.seconds_left == pytest.approx(10 * 1 / 5 + 10 * 3 / 5 + 10 * 4 / 10)


def test_accuracies_of_finished_seeds_are_averaged():
    tally = RunProgress(["a"], [3, 4, 5], {"a": 10}, Clock())
    assert tally.mean("a") is None
    tally.advance("a", 3, 10, 0.2, 1.0)
    tally.advance("a", 4, 10, 0.4, 1.0)
    tally.advance("a", 5, 5, 0.9, 1.0)
    assert tally.mean("a") == pytest.approx(0.3)
    assert tally.runs_finished == (2, 3)
    tally.advance("a", 5, 10, None, 1.0)
    assert tally.mean("a") == pytest.approx(0.5)
    assert tally.seconds_left == 0


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 12), st.floats(0, 9)), max_size=30))
def test_the_share_and_the_time_left_stay_sensible(events):
    clock = Clock()
    tally = RunProgress(["a", "b"], [0, 1, 2], {"a": 10, "b": 7}, clock)
    for method, seed, round, pace in events:
        clock.now += 0.5
        tally.advance("ab"[method], seed, round, None, pace)
        assert 0 <= tally.share <= 1
        assert tally.seconds_left is None or tally.seconds_left >= 0


def test_a_run_that_ends_early_leaves_nothing_to_do():
    tally = RunProgress(["a"], [3, 4], {"a": 10}, Clock())
    tally.advance("a", 3, 4, 0.25, 1.0)
    tally.ended("a", 3)
    assert (tally.runs_finished, tally.mean("a"), tally.share) == ((1, 2), 0.25, 0.5)
    tally.advance("a", 4, 10, 0.75, 1.0)
    assert (tally.runs_finished, tally.seconds_left, tally.share) == ((2, 2), 0, 1)


# Lines.


def test_plain_lines_come_at_once_then_every_two_seconds_and_for_each_finished_run():
    clock = Clock()
    snapshot, file = plain(clock)
    snapshot.start(["fedavg", "rebafl"], [0, 1], {"fedavg": 40, "rebafl": 40}, FOLDER)
    assert file.getvalue() == "2 methods x 2 seeds, 160 rounds in all, into runs/quickstart\n"
    snapshot.compiling("fedavg")
    for round in range(1, 41):
        clock.now += 0.25
        snapshot.advance("fedavg", 0, round, 0.5, 812.0)
    lines = file.getvalue().splitlines()[1:]
    assert len(lines) == 5
    assert lines[0].startswith("fedavg, seed 0: round 8/40, accuracy 50.0%, 812 clients/s; 0/4 runs, 5%, 0:38 left")
    assert lines[-1].startswith(
        "fedavg, seed 0: finished after 40 rounds, accuracy 50.0%, 812 clients/s; 1/4 runs, 25%"
    )


def test_plain_lines_tell_where_a_run_ended_early():
    snapshot, file = plain(Clock())
    snapshot.start(["a"], [0], {"a": 9}, FOLDER)
    snapshot.advance("a", 0, 4, 0.5, 7.0)
    snapshot.ended("a", 0)
    wanted = "a, seed 0: stopped early after round 4, accuracy 50.0%; 1/1 runs, 100%, 0:00 left"
    assert file.getvalue().splitlines()[1:] == [wanted]


def test_plain_lines_tell_a_finished_run_once_and_compilation_after_a_silence():
    clock = Clock()
    snapshot, file = plain(clock)
    snapshot.start(["[red]a"], [0], {"[red]a": 5}, FOLDER)
    clock.now += 3
    snapshot.compiling("[red]a")
    snapshot.advance("[red]a", 0, 5, None, 0.0)
    snapshot.advance("[red]a", 0, 5, None, 0.0)
    snapshot.note("half of the clients hold one class [of 10]")
    snapshot.stop()
    assert file.getvalue().splitlines()[1:] == [
        "[red]a: compiling",
        "[red]a, seed 0: finished after 5 rounds, accuracy -; 1/1 runs, 100%, 0:00 left",
        "half of the clients hold one class [of 10]",
        "1 of 1 runs finished in 0:03",
    ]


def test_plain_lines_are_not_wrapped():
    snapshot, file = plain(Clock(), width=20)
    snapshot.note("a long remark that has more characters than the screen has columns")
    assert len(file.getvalue().splitlines()) == 1


# The live table.


def test_the_table_has_a_line_for_each_method():
    clock = Clock()
    snapshot = live(clock)
    snapshot.start(["fedavg", "rebafl"], [0, 1, 2], {"fedavg": 40, "rebafl": 40}, FOLDER)
    snapshot.advance("fedavg", 0, 40, 0.51, 0.0)
    snapshot.compiling("fedavg")
    clock.now += 5
    snapshot.advance("fedavg", 1, 5, 0.2, 812.3)
    clock.now += 5
    snapshot.advance("fedavg", 1, 10, 0.25, 812.3)
    snapshot.compiling("rebafl")
    lines = shown(snapshot)
    snapshot.stop()
    assert lines[0] == "runs/quickstart"
    assert lines[1].endswith("21%  0:10 so far  3:10 left")
    assert lines[2].split() == ["method", "seeds", "round", "accuracy", "mean", "clients/s"]
    assert lines[3].split() == ["fedavg", "1/3", "10/40", "25.0%", "51.0%", "812"]
    assert lines[4].split() == ["rebafl", "0/3", "0/40", "-", "-", "compiling"]


def test_a_resumed_run_stands_where_it_stood():
    clock = Clock()
    snapshot = live(clock)
    snapshot.start(["fedavg", "rebafl"], [0], {"fedavg": 20, "rebafl": 20}, FOLDER)
    snapshot.advance("fedavg", 0, 10, 0.51, 0.0)
    snapshot.compiling("fedavg")
    clock.now += 30
    lines = shown(snapshot)
    assert lines[1].endswith("25%  0:30 so far  -:-- left")
    assert lines[3].split() == ["fedavg", "0/1", "10/20", "51.0%", "-", "compiling"]
    snapshot.advance("fedavg", 0, 10, 0.51, 0.0)
    clock.now += 5
    snapshot.advance("fedavg", 0, 20, 0.6, 80.0)
    lines = shown(snapshot)
    snapshot.stop()
    assert lines[1].endswith("50%  0:35 so far  0:40 left")


def test_plain_lines_say_nothing_of_a_run_that_is_about_to_train():
    clock = Clock()
    snapshot, file = plain(clock)
    snapshot.start(["a"], [0], {"a": 9}, FOLDER)
    clock.now += 3
    snapshot.compiling("a")
    clock.now += 3
    snapshot.advance("a", 0, 0, None, 0.0)
    assert file.getvalue().splitlines()[1:] == ["a: compiling"]


@pytest.mark.parametrize("width", [60, 80])
def test_the_table_fits_the_screen(width):
    names = [f"scaffold+balanced_softmax_with_a_long_name_{i}" for i in range(30)]
    snapshot = live(Clock(), width=width)
    snapshot.start(names, [0, 1, 2], dict.fromkeys(names, 1000), Path("/very/long" * 20) / "name")
    for i in range(30):
        snapshot.advance(names[i], 2, 1000, 0.123, 1234567.0)
        lines = shown(snapshot, width)
        assert max(map(len, lines)) <= width
        assert len(lines) < 20
        assert "1000/1000" in "".join(lines)
        assert "1,234,567" in lines[-1] or i < 29
    snapshot.stop()
    assert lines[0] == "name"
    assert "accuracy" in lines[2]


def test_notes_stay_above_the_table():
    file = Terminal()
    snapshot = live(Clock(), file=file)
    snapshot.start(["a"], [0], {"a": 5}, FOLDER)
    snapshot.note("half of the clients hold one class [of 10]")
    snapshot.stop()
    assert "half of the clients hold one class [of 10]" in file.getvalue()


def test_no_color_means_no_color(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    file = Terminal()
    snapshot = live(Clock(), file=file, color_system="truecolor")
    snapshot.start(["a"], [0], {"a": 5}, FOLDER)
    snapshot.advance("a", 0, 3, 0.5, 1.0)
    snapshot.stop()
    assert "\x1b[3" not in file.getvalue().replace("\x1b[39m", "")
    assert "60%" in file.getvalue()


def test_stopping_what_never_started_is_fine():
    live(Clock()).stop()


# The choice.


def test_a_terminal_gets_the_table_and_anything_else_lines(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(choose(Console(file=Terminal())), LiveProgress)
    assert isinstance(choose(Console(file=io.StringIO())), PlainProgress)
    assert isinstance(choose(Console(file=io.StringIO(), force_terminal=True)), PlainProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose(Console(file=Terminal())), PlainProgress)
