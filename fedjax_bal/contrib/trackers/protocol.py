"""The interface of trackers."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fedjax_bal.contrib.trackers.runs import TrackedRun


class Tracker(Protocol):
    """Shows the metrics of runs in another tool.

    A tracker that can't continue raises any exception: `Mirror` reports it and goes on without that tracker.

    Attributes:
        name: one word, as `--track` takes it.
    """

    name: str

    def holds(self, run: TrackedRun) -> bool:
        """Tells whether an earlier session left something of a run here."""
        ...

    def begin(self, run: TrackedRun) -> None:
        """Opens a run and removes what an earlier session left of it; all of its lines follow again."""
        ...

    def log(self, run: TrackedRun, lines: Sequence[Mapping[str, Any]]) -> None:
        """Shows lines of `metrics.jsonl`, each once and in order."""
        ...

    def finish(self, run: TrackedRun) -> None:
        """Closes a run, finished or not."""
        ...

    def hint(self) -> str:
        """Tells in one line how to look at the metrics."""
        ...
