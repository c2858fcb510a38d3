"""The line that `simulate` shows while it works."""

import io
import threading
import time
from types import SimpleNamespace

import pytest
import toys

from fedjax_bal import Evaluation, Execution, LocalTraining, recipes, simulate
from fedjax_bal.status import StatusLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def replaced(monkeypatch):
    """Replaces standard error by a stream."""

    def replace(stream):
        monkeypatch.setattr("fedjax_bal.status.sys", SimpleNamespace(stderr=stream))
        return stream

    return replace


@pytest.fixture
def terminal(replaced):
    return replaced(Terminal())


def screen(terminal):
    """The texts that have been on the line, one after another."""
    return [text.rstrip() for text in terminal.getvalue().split("\r")]


def test_a_text_replaces_the_one_before_and_none_is_left(terminal):
    with StatusLine("fedavg", None) as status:
        status.show("round 1 of 2")
        status.show("x" * 200)
        status.clear()
        status.clear()
    assert screen(terminal) == ["", "fedavg: round 1 of 2", "fedavg: " + "x" * 71, "", ""]


def test_seconds_are_counted_until_the_block_ends(terminal):
    with StatusLine("fedavg", None) as status, status.counting("compiling"):
        while "0 s" not in terminal.getvalue():
            time.sleep(0.01)
    assert screen(terminal) == ["", "fedavg: compiling, 0 s", "", ""]
    assert not [thread for thread in threading.enumerate() if "count" in thread.name]


@pytest.mark.parametrize("shown", [None, False, True])
def test_without_a_terminal_the_line_is_shown_if_asked_for(shown, replaced):
    stream = replaced(io.StringIO())
    with StatusLine("fedavg", shown) as status:
        status.show("round 1 of 2")
    assert bool(stream.getvalue()) == bool(shown)


@pytest.mark.slow
def test_a_simulation_shows_its_rounds_and_makes_way_for_the_users_lines(terminal):
    before = []
    result = simulate(
        recipes.fedavg(), toys.network(), toys.federation(), toys.test_set(), rounds=4, seed=0,
        local=LocalTraining(batch_size=4), evaluation=Evaluation(every=2), execution=Execution(rounds_per_dispatch=1),
        on_round=lambda metrics: before.append(terminal.getvalue()[-1]),
    )  # fmt: skip
    shown = [text for text in screen(terminal) if "round" in text]
    first, second = (f"{record['test_accuracy']:.1%}" for record in result.history)
    assert [text.rpartition(", ")[0] for text in shown] == [
        "fedavg: round 1 of 4",
        *(f"fedavg: round {round} of 4, test accuracy {first}" for round in (2, 3)),
        f"fedavg: round 4 of 4, test accuracy {second}",
    ]
    assert shown[-1].endswith(", 0 s left") and before == ["\r", "\r"] and screen(terminal)[-1] == ""
    accuracy = result.history[-1]["test_accuracy"]
    assert repr(result).startswith(f"Result(round=4, test_accuracy={accuracy:.4g}, parameters=")
