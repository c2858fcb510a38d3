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
