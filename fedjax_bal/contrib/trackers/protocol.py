"""What a tracker does."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fedjax_bal.contrib.trackers.runs import TrackedRun


class Tracker(Protocol):
    """Shows the metrics of runs in a tool of the user's.

    Any exception is a tracker's way of saying that it can't go on: `Mirror` notes it and goes on without that tracker.

    Attributes:
        name: one word, as `--track` takes it.
    """

    name: str

    def holds(self, run: TrackedRun) -> bool:
        """Whether an earlier session left something of a run here."""
        ...

    def begin(self, run: TrackedRun) -> None:
        """Opens a run and removes what an earlier session left of it; all of its lines come again."""
        ...

    def log(self, run: TrackedRun, lines: Sequence[Mapping[str, Any]]) -> None:
        """Shows lines of `metrics.jsonl`, each once and in order."""
        ...

    def finish(self, run: TrackedRun) -> None:
        """Closes a run, finished or not."""
        ...

    def hint(self) -> str:
        """How to look at what was shown, in one line."""
        ...
