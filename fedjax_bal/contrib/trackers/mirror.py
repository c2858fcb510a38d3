"""Keeps trackers in step with the metrics of a run folder."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_bal.contrib.trackers.protocol import TrackedRun, Tracker
from fedjax_bal.runs import RunFolder

Lines = Sequence[Mapping[str, Any]]


class Mirror:
    """Shows the lines of `metrics.jsonl` in every tracker.

    The first time that a session follows a run, trackers get all of its lines, those of earlier sessions included; from
    then on, new ones. So no step is doubled or missing, also after a kill, repeated rounds or a session without
    trackers. A finished run that a tracker already shows completely is skipped.

    A tracker that fails is reported and left out for the rest of the session; `metrics.jsonl` has everything, and the
    next session shows what is missing.

    The folder's `tracking.json` says which finished runs each tracker has; `note` is called about failures, and at the
    end about where to look.

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
        self._open: dict[tuple[str, str], int] = {}  # lines of each open run that a tracker has
        self._followed = False

    def follow(self, method: int, seed: int, lines: Lines, *, finished: bool) -> None:
        """Brings all trackers up to date with all lines so far of the run of a method's position and a seed."""
        self._followed = True
        for tracker in tuple(self._trackers):
            with self._leave_out_if_failing(tracker):
                self._update(tracker, self._runs[method, seed], lines, finished)

    def close(self) -> None:
        """Closes the open runs, and notes where to look if there is anything to see."""
        for tracker in tuple(self._trackers):
            with self._leave_out_if_failing(tracker):
                for run in self._open_runs(tracker):
                    tracker.finish(run)
                if self._followed:
                    self._note(f"{tracker.name}: {tracker.hint()}")
        self._trackers, self._open = [], {}

    def _update(self, tracker: Tracker, run: TrackedRun, lines: Lines, finished: bool) -> None:
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

    def _marks(self) -> dict[str, dict[str, str]]:
        found = self._folder.read_tracking()
        return found if all(isinstance(below, dict) for below in found.values()) else {}

    def _mark(self, tracker: Tracker, run: TrackedRun, digest: str | None) -> None:
        """Notes that a tracker shows a finished run completely, or, without a digest, that it doesn't."""
        marks = self._marks()
        own = {key: value for key, value in marks.get(tracker.name, {}).items() if key != run.key}
        after = {**marks, tracker.name: own if digest is None else {**own, run.key: digest}}
        if after != marks:
            self._folder.write_tracking(after)


def _digest(lines: Lines) -> str:
    return hashlib.sha256(json.dumps(list(lines)).encode()).hexdigest()
