"""Experiment trackers, which plug-ins register by name and `--track` asks for: they show the metrics of each run."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedjax_bal.config import Config, to_plain
from fedjax_bal.lab.loop import Callback
from fedjax_bal.lab.records import RunId
from fedjax_bal.lab.run import Run
from fedjax_bal.registry import Registry
from fedjax_bal.validate import is_number, one_of

Lines = Sequence[Mapping[str, Any]]
_IDENTITY = ("method", "seed", "round")


class TrackedRun(NamedTuple):
    """One method with one seed.

    Attributes:
        project: the name of the comparison.
        method: the method's name.
        seed: the seed.
        key: the method's position and the seed, as `0-7`; unique in the folder.
        place: a relative path unique to this run, such as `fedavg/seed7`.
        config: the method's configuration, as in a YAML file.
    """

    project: str
    method: str
    seed: int
    key: str
    place: str
    config: Mapping[str, Any]


class Tracker(Protocol):
    """Shows the metrics of runs in another tool.

    A tracker that can't continue may raise any exception: `Trackers` reports it and continues without that tracker.

    Attributes:
        name: one word, as `--track` takes it.
    """

    name: str

    def begin(self, run: TrackedRun) -> None:
        """Opens a run and removes an earlier session's data of it; all of its lines follow again."""
        ...

    def log(self, run: TrackedRun, lines: Sequence[Mapping[str, Any]]) -> None:
        """Shows lines of `metrics.jsonl`, each once and in order."""
        ...

    def finish(self, run: TrackedRun) -> None:
        """Closes a run, finished or not."""
        ...

    def hint(self) -> str:
        """Returns one line on how to view the metrics."""
        ...


def tracked_runs(config: Config) -> dict[RunId, TrackedRun]:
    """Lists all runs of a comparison.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> run = tracked_runs(load_config(None))["fedavg", 2]
        >>> run.method, run.key, run.place, run.config["training"]["rounds"]
        ('fedavg', '0-2', 'fedavg/seed2', 50)
    """
    runs = {}
    folders = folder_names([method.name for method in config.methods])
    for index, (method, folder) in enumerate(zip(config.methods, folders, strict=True)):
        for seed in config.seeds:
            settings = to_plain(config.with_partition_of(seed, method))
            key = f"{index}-{seed}"
            runs[RunId(method.name, seed)] = TrackedRun(
                config.name, method.name, seed, key, f"{folder}/seed{seed}", settings
            )
    return runs


def folder_names(names: Sequence[str]) -> list[str]:
    """Returns names of folders that are as close to the given ones as all file systems allow.

    They are distinct even if case is ignored, and none is hidden or leads to another folder.
    """
    folders: list[str] = []
    taken: set[str] = set()
    for name in names:
        safe = re.sub(r"[^\w .,=+()-]", "_", name)
        safe = re.sub(r"^\.+|\.+$", lambda dots: "_" * len(dots[0]), safe)
        unique = safe
        count = 1
        while unique.casefold() in taken:
            count += 1
            unique = f"{safe} ({count})"
        taken.add(unique.casefold())
        folders.append(unique)
    return folders


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a line of `metrics.jsonl` by name, those of a list by name and position.

    The line's method, seed and round, and values that are not numbers, are left out.
    """
    named = ((name, value) for name, value in line.items() if name not in _IDENTITY)
    return {name: float(value) for name, value in _leaves(named) if is_number(value)}


def _leaves(items: Any) -> Iterator[tuple[str, Any]]:
    for name, value in items:
        if isinstance(value, Mapping):
            yield from _leaves((f"{name}/{key}", below) for key, below in value.items())
        elif isinstance(value, list | tuple):
            yield from _leaves((f"{name}/{position}", below) for position, below in enumerate(value))
        else:
            yield name, value


class Trackers(Callback):
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
        >>> trackers = Trackers([Printed()], load_config(None), print)
        >>> trackers.follow("fedavg", 1, [{"round": 1}, {"round": 2}], finished=False)
        begin fedavg/seed1
        [1, 2]
        >>> trackers.follow("fedavg", 1, [{"round": 1}, {"round": 2}, {"round": 3}], finished=True)
        [3]
        finish
        >>> trackers.close()
        printed: look above
    """

    def __init__(self, trackers: Sequence[Tracker], config: Config, note: Callable[[str], None]) -> None:
        self._trackers = list(trackers)
        self._runs = tracked_runs(config)
        self._note = note
        self._open: dict[tuple[str, str], int] = {}  # number of lines of each open run that a tracker has received
        self._followed = False

    def recorded(self, run: Run, clients_per_s: float) -> None:
        """Sends the run's new lines."""
        self.follow(*run.id, run.lines, finished=run.is_over)

    def follow(self, method: str, seed: int, lines: Lines, *, finished: bool) -> None:
        """Updates all trackers with all lines so far of a run."""
        self._followed = True
        run = self._runs[RunId(method, seed)]
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
                f"warning: {tracker.name} failed and is left out of this session ({cause}); metrics.jsonl has "
                "everything, and the next session adds what is missing"
            )
            for run in self._open_runs(tracker):
                with contextlib.suppress(Exception):
                    tracker.finish(run)

    def _open_runs(self, tracker: Tracker) -> list[TrackedRun]:
        return [run for run in self._runs.values() if (tracker.name, run.key) in self._open]


TRACKERS: Registry[Callable[[Path], Tracker]] = Registry({})
"""The trackers of the plug-ins that are loaded, by name: functions of the run folder."""


def open_trackers(names: Iterable[str], folder: Path) -> tuple[Tracker, ...]:
    """Opens trackers for a run folder; writes nothing yet.

    Example:
        >>> from fedjax_bal.plugins import load_plugins
        >>> load_plugins(["fedjax_bal.contrib.trackers"])
        >>> open_trackers(["tensorbord"], Path("runs/mine"))
        Traceback (most recent call last):
        ValueError: --track: received 'tensorbord'; did you mean 'tensorboard'? allowed: tensorboard, wandb
    """
    return tuple(_open(one_of("--track", name, TRACKERS), folder) for name in dict.fromkeys(names))


def _open(name: str, folder: Path) -> Tracker:
    try:
        return TRACKERS[name](folder)
    except Exception as error:  # the import of an incompatible package may raise anything
        raise ValueError(
            f"--track: {name} can't be imported ({error}); install it with pip install 'fedjax_bal[{name}]', "
            f"or leave out --track {name}"
        ) from error
