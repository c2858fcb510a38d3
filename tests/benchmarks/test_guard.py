"""What the guard makes of the figures of two commits."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import guard
from guard import Measured

pytestmark = pytest.mark.slow


def of(name, old, new):
    pairs = [("old", old), ("new", new)]
    return [Measured(side, "W1", name, value) for side, values in pairs for value in values]


@pytest.mark.parametrize(
    ("name", "old", "new", "ratio", "worse"),
    [
        ("client_updates_per_s", [100, 1, 102], [90, 94, 1000], 0.94, True),  # medians: a stray run decides nothing
        ("client_updates_per_s", [100], [95], 0.95, False),
        ("compile_s", [4.0], [5.0], 0.8, True),  # of seconds and launches fewer are better
        ("compile_s", [4.0], [2.0], 2.0, False),
        ("launches", [45], [72], 0.625, True),
    ],
)
def test_what_got_worse_by_more_than_a_twentieth_is_named(name, old, new, ratio, worse):
    (change,) = guard.compare(of(name, old, new))
    assert change.ratio == pytest.approx(ratio)
    assert change.worse == worse
    assert ("**worse**" in guard.table([change])[-1]) == worse


def test_figures_keep_their_order_and_their_workload():
    figures = [*of("client_updates_per_s", [1], [2]), *of("compile_s", [3], [3])]
    figures += [one._replace(workload="W3") for one in figures]
    changes = guard.compare(figures)
    assert [(one.workload, one.name, one.ratio) for one in changes] == [
        ("W1", "client_updates_per_s", 2), ("W1", "compile_s", 1),
        ("W3", "client_updates_per_s", 2), ("W3", "compile_s", 1),
    ]  # fmt: skip


def test_launches_that_can_not_be_counted_are_skipped_and_said(tmp_path, capsys):
    asked = type("Asked", (), {"target": "h200", "limit": 5.0})
    trees = {"old": tmp_path, "new": tmp_path}
    assert list(guard.launches(asked, trees, "W1", tmp_path / "answer.json")) == []
    assert "W1 launches: skipped, old: it has no benchmarks/aot.py" in capsys.readouterr().out
