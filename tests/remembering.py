"""A tracker that keeps what it is told in memory, as if on disk; and runs to be tracked."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from fedjax_bal.lab.records import RunId


class Remembering:
    """Shows nothing; `shown` outlives the sessions that use it.

    Attributes:
        shown: the lines it has of each run, by the run's place.
        runs: the runs that were begun, by place.
        calls: what it was asked to do, in order.
    """

    def __init__(self, failing=()):
        self.failing = failing
        self.shown, self.runs, self.calls = {}, {}, []

    def begin(self, run):
        self._do("begin", run.place)
        self.shown[run.place], self.runs[run.place] = [], run
        return run.place

    def log(self, place, lines):
        self._do("log", place)
        self.shown[place] += [dict(line) for line in lines]

    def finish(self, place):
        self._do("finish", place)

    def hint(self):
        return "nowhere to look"

    def _do(self, what, place):
        self.calls.append((what, place))
        if what in self.failing:
            raise RuntimeError(f"no {what} today\nbecause of the weather")


class FakeRun(SimpleNamespace):
    """Compared by identity, as runs are."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def run(method="fedavg", seed=0, lines=(), *, is_over=False, token="0a1b2c3d", path="mine"):
    """A run, as trackers see it."""
    folder = SimpleNamespace(path=Path(path), tracking_id=lambda: token)
    return FakeRun(
        id=RunId(method, seed),
        title=f"{method}, seed {seed}",
        folder=folder,
        lines=list(lines),
        is_over=is_over,
        identity=np.full(32, seed, np.uint8),
        settings={"training": {"rounds": 50}},
    )
