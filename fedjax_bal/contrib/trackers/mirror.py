"""Keeps trackers in step with the metrics of a run folder."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedjax_bal.contrib.trackers.protocol import TrackedRun, Tracker

Lines = Sequence[Mapping[str, Any]]


class Mirror:
    """Shows the lines of `metrics.jsonl` in every tracker.

    When a session first follows a run, trackers begin the run again and get all of its lines, those of earlier sessions
    included; after that, only new ones. So no step is duplicated or missing, even after a kill, repeated rounds or a
    session without trackers.

    A tracker that fails is reported and left out for the rest of the session. `metrics.jsonl` has all lines, and the
    next session shows the missing ones.

    `note` is called with messages about failures, and at the end about where to view the metrics.

    Example:
        >>> class Printed:
        ...     name = "printed"
        ...     def begin(self, run): print("begin", run.place)
        ...     def log(self, run, lines): print([line["round"] for line in lines])
        ...     def finish(self, run): print("finish")
        ...     def hint(self): return "look above"
        >>> from fedjax_bal.config import load_config
        >>> from fedjax_bal.contrib.trackers import tracked_runs
        >>> mirror = Mirror([Printed()], tracked_runs(load_config(None)), print)
        >>> mirror.follow(0, 1, [{"round": 1}, {"round": 2}], finished=False)
        begin fedavg/seed1
        [1, 2]
        >>> mirror.follow(0, 1, [{"round": 1}, {"round": 2}, {"round": 3}], finished=True)
        [3]
        finish
        >>> mirror.close()
        printed: look above
    """

    def __init__(
        self, trackers: Sequence[Tracker], runs: Mapping[tuple[int, int], TrackedRun], note: Callable[[str], None]
    ) -> None:
        self._trackers = list(trackers)
        self._runs = runs
        self._note = note
        self._open: dict[tuple[str, str], int] = {}  # number of lines of each open run that a tracker has received
        self._followed = False

    def follow(self, method: int, seed: int, lines: Lines, *, finished: bool) -> None:
        """Updates all trackers with all lines so far of a run, given by the method's position and the seed."""
        self._followed = True
        run = self._runs[method, seed]
        for tracker in tuple(self._trackers):
            here = tracker.name, run.key
            with self._leave_out_if_failing(tracker):
                if here not in self._open:
                    tracker.begin(run)
                    self._open[here] = 0
                tracker.log(run, lines[self._open[here] :])
                self._open[here] = len(lines)
                if finished:
                    del self._open[here]
                    tracker.finish(run)

    def close(self) -> None:
        """Closes the open runs, and notes where to view the metrics if there are any."""
        for tracker in tuple(self._trackers):
            with self._leave_out_if_failing(tracker):
                for run in self._open_runs(tracker):
                    tracker.finish(run)
                if self._followed:
                    self._note(f"{tracker.name}: {tracker.hint()}")
        self._trackers = []
        self._open = {}

    @contextlib.contextmanager
    def _leave_out_if_failing(self, tracker: Tracker) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._trackers.remove(tracker)
            cause = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._note(
                f"warning: {tracker.name} failed and is left out from here on ({cause}); metrics.jsonl has everything, "
                "and the same command again shows what is missing"
            )
            for run in self._open_runs(tracker):
                with contextlib.suppress(Exception):
                    tracker.finish(run)

    def _open_runs(self, tracker: Tracker) -> list[TrackedRun]:
        return [run for run in self._runs.values() if (tracker.name, run.key) in self._open]
