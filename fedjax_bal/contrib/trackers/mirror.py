"""Keeps trackers level with the metrics of a run folder."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_bal.contrib.trackers.protocol import Tracker
from fedjax_bal.contrib.trackers.runs import TrackedRun
from fedjax_bal.runs import RunFolder

Lines = Sequence[Mapping[str, Any]]


class Mirror:
    """Shows what `metrics.jsonl` holds in every tracker.

    The first time that a session says something of a run, trackers get all of its lines, those of earlier sessions
    included; from then on, new ones. So no step is there twice or missing, whatever happened in between: a kill, rounds
    that were done again, a session without trackers. A finished run that a tracker has whole is left alone.

    A tracker that fails is noted and left out for the rest of the session; `metrics.jsonl` has everything, and the next
    session makes up for it.

    Args:
        trackers: who shows it.
        runs: the runs by the method's position and the seed, from `tracked_runs`.
        folder: the run folder; `tracking.json` in it says which finished runs which tracker has.
        note: told of a tracker that fails, and at the end how to look.

    Example:
        >>> class Printed:
        ...     name = "printed"
        ...     def holds(self, run): return False
        ...     def begin(self, run): print("begin", run.place)
        ...     def log(self, run, lines): print([line["round"] for line in lines])
        ...     def finish(self, run): print("finish")
        ...     def hint(self): return "look above"
        >>> import tempfile
        >>> from fedjax_bal.config import load_config
        >>> from fedjax_bal.contrib.trackers import tracked_runs
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mirror = Mirror([Printed()], tracked_runs(load_config(None)), Path(folder), print)
        ...     mirror.follow(0, 1, [{"round": 1}, {"round": 2}], finished=False)
        ...     mirror.follow(0, 1, [{"round": 1}, {"round": 2}, {"round": 3}], finished=True)
        ...     mirror.close()
        begin fedavg/seed1
        [1, 2]
        [3]
        finish
        printed: look above
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        runs: Mapping[tuple[int, int], TrackedRun],
        folder: Path,
        note: Callable[[str], None],
    ) -> None:
        self._trackers, self._runs, self._note = list(trackers), runs, note
        self._folder = RunFolder(folder)
        self._open: dict[tuple[str, str], int] = {}  # how many lines a tracker has of an open run
        self._told = False

    def follow(self, method: int, seed: int, lines: Lines, *, finished: bool) -> None:
        """Brings all trackers level with one run.

        Args:
            method: the method's position.
            seed: the seed.
            lines: all of the run's lines so far.
            finished: whether there are no more to come.
        """
        self._told = True
        for tracker in tuple(self._trackers):
            with self._going_on_without(tracker):
                self._level(tracker, self._runs[method, seed], lines, finished)

    def close(self) -> None:
        """Closes the runs that are open, and says how to look if there is anything to see."""
        for tracker in tuple(self._trackers):
            with self._going_on_without(tracker):
                for run in self._left_open(tracker):
                    tracker.finish(run)
                if self._told:
                    self._note(f"{tracker.name}: {tracker.hint()}")
        self._trackers, self._open = [], {}

    def _level(self, tracker: Tracker, run: TrackedRun, lines: Lines, finished: bool) -> None:
        here = tracker.name, run.key
        if here not in self._open:
            if finished and self._marks().get(tracker.name, {}).get(run.key) == _digest(lines) and tracker.holds(run):
                return
            self._mark(tracker, run, None)
            tracker.begin(run)
            self._open[here] = 0
        tracker.log(run, lines[self._open[here] :])
        self._open[here] = len(lines)
        if finished:
            del self._open[here]
            tracker.finish(run)
            self._mark(tracker, run, _digest(lines))

    @contextlib.contextmanager
    def _going_on_without(self, tracker: Tracker) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._trackers.remove(tracker)
            cause = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._note(
                f"warning: {tracker.name} failed and is left out from here on ({cause}); metrics.jsonl has everything, "
                "and the same command again shows what is missing"
            )
            for run in self._left_open(tracker):
                with contextlib.suppress(Exception):
                    tracker.finish(run)

    def _left_open(self, tracker: Tracker) -> list[TrackedRun]:
        return [run for run in self._runs.values() if (tracker.name, run.key) in self._open]

    def _marks(self) -> dict[str, dict[str, str]]:
        found = self._folder.read_tracking()
        return found if all(isinstance(below, dict) for below in found.values()) else {}

    def _mark(self, tracker: Tracker, run: TrackedRun, digest: str | None) -> None:
        """Notes that a tracker has a run whole, or that it hasn't."""
        marks = self._marks()
        own = {key: value for key, value in marks.get(tracker.name, {}).items() if key != run.key}
        after = {**marks, tracker.name: own if digest is None else {**own, run.key: digest}}
        if after != marks:
            self._folder.write_tracking(after)


def _digest(lines: Lines) -> str:
    return hashlib.sha256(json.dumps(list(lines)).encode()).hexdigest()
