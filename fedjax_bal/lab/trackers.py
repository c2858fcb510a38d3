"""Experiment trackers, which plug-ins register by name and `--track` asks for: they show the metrics of each run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedjax_bal.config import to_plain
from fedjax_bal.lab.folder import run_name
from fedjax_bal.lab.loop import Callback
from fedjax_bal.lab.run import Run
from fedjax_bal.registry import Registry
from fedjax_bal.validate import is_number, one_of

_IDENTITY = ("method", "seed", "round")


class TrackedRun(NamedTuple):
    """One method with one seed, in a comparison or at a point of a sweep.

    Attributes:
        project: the name of the comparison or sweep.
        group: what to group runs by: the method in a comparison, the sweep's name in a sweep.
        name: the run's name, such as `fedavg, seed 7`, in a sweep after that of its point.
        id: letters, digits and `-`. A resumed run keeps its id, and no run in another folder has it.
        place: a relative path that is unique in the folder, such as `fedavg-seed-7`.
        config: the method's configuration, as in a YAML file, and the seed.
    """

    project: str
    group: str
    name: str
    id: str
    place: str
    config: Mapping[str, Any]


class Tracker(Protocol):
    """Shows the metrics of runs in another tool.

    Several runs may be open at the same time. A tracker that can't continue may raise any exception: `Trackers` reports
    it and continues without that tracker.
    """

    def begin(self, run: TrackedRun) -> Any:
        """Opens a run, perhaps one of an earlier session; all of its lines follow again.

        Returns:
            What `log` and `finish` receive for this run.
        """
        ...

    def log(self, opened: Any, lines: Sequence[Mapping[str, Any]]) -> None:
        """Shows lines of `metrics.jsonl`, each once and in order."""
        ...

    def finish(self, opened: Any) -> None:
        """Closes a run, finished or not."""
        ...

    def hint(self) -> str:
        """Returns one line on how to view the metrics."""
        ...


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a line of `metrics.jsonl` by name; numbers in a list by name and position.

    The line's method, seed and round, and values that are not numbers, are left out.
    """
    named = ((name, value) for name, value in line.items() if name not in _IDENTITY)
    return {name: float(value) for name, value in leaves(named, "/") if is_number(value)}


def leaves(items: Iterable[tuple[Any, Any]], separator: str) -> Iterator[tuple[str, Any]]:
    """Flattens nested mappings and lists; joins the keys and positions that lead to a value."""
    for name, value in items:
        is_list = isinstance(value, list | tuple)
        below = value.items() if isinstance(value, Mapping) else enumerate(value) if is_list else None
        if below is None:
            yield str(name), value
        else:
            yield from leaves(((f"{name}{separator}{key}", item) for key, item in below), separator)


class Trackers(Callback):
    """Shows the lines of `metrics.jsonl` in every tracker.

    When a session first follows a run, trackers begin the run again and get all of its lines, those of earlier sessions
    included; after that, only new ones. So no step is missing, even after a kill, repeated rounds or a session without
    trackers.

    A tracker that fails is reported and left out for the rest of the session. `metrics.jsonl` has all lines, and the
    next session shows the missing ones.

    Args:
        trackers: the trackers by name, as `open_trackers` returns them.
        project: the name of the comparison or sweep.
        note: called with messages about failures, and at the end about where to view the metrics.
        sweep: whether the runs are those of a sweep.
    """

    def __init__(
        self, trackers: Mapping[str, Tracker], project: str, note: Callable[[str], None], *, sweep: bool = False
    ) -> None:
        self._trackers = dict(trackers)
        self._project = project
        self._note = note
        self._sweep = sweep
        self._open: dict[tuple[str, Run], tuple[Any, int]] = {}  # what `begin` returned, and the number of lines sent
        self._followed = False

    def recorded(self, run: Run, clients_per_s: float) -> None:
        """Sends the run's new lines."""
        self._followed = True
        for name in tuple(self._trackers):
            self._guarded(name, self._send, name, run)

    def close(self) -> None:
        """Closes the open runs, and notes where to view the metrics if there are any."""
        for name, run in tuple(self._open):
            self._guarded(name, self._finish, name, run)
        for name, tracker in self._trackers.items() if self._followed else ():
            self._note(f"{name}: {tracker.hint()}")

    def _send(self, name: str, run: Run) -> None:
        tracker = self._trackers[name]
        if (name, run) not in self._open:
            self._open[name, run] = tracker.begin(self._tracked(run)), 0
        opened, sent = self._open[name, run]
        tracker.log(opened, run.lines[sent:])
        self._open[name, run] = opened, len(run.lines)
        if run.is_over:
            self._finish(name, run)

    def _finish(self, name: str, run: Run) -> None:
        opened, _ = self._open.pop((name, run))
        self._trackers[name].finish(opened)

    def _tracked(self, run: Run) -> TrackedRun:
        point = run.folder.path.name
        name = run_name(*run.id)
        return TrackedRun(
            project=self._project,
            group=self._project if self._sweep else run.id.method,
            name=f"{point}, {run.title}" if self._sweep else run.title,
            id=f"{run.folder.tracking_id()}-{run.identity.tobytes().hex()[:8]}",
            place=f"{point}/{name}" if self._sweep else name,
            config={**to_plain(run.settings), "seed": run.id.seed},
        )

    def _guarded(self, name: str, act: Callable[..., None], *arguments: Any) -> None:
        """Leaves out a tracker that fails; its open runs stay as they are, since closing them would fail, too."""
        if name not in self._trackers:
            return
        try:
            act(*arguments)
        except Exception as error:
            del self._trackers[name]
            cause = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._note(
                f"warning: {name} failed and is left out of this session ({cause}); metrics.jsonl has everything, and "
                "the next session adds what is missing"
            )


TRACKERS: Registry[Callable[[Path], Tracker]] = Registry({})
"""The trackers of the plug-ins that are loaded, by name: functions of the folder of the comparison or sweep."""


def open_trackers(names: Iterable[str], folder: Path) -> dict[str, Tracker]:
    """Opens trackers for a folder, by name; writes nothing yet.

    Example:
        >>> from fedjax_bal.plugins import load_plugins
        >>> load_plugins(["fedjax_bal.contrib.trackers"])
        >>> open_trackers(["wand"], Path("runs/mine"))
        Traceback (most recent call last):
        ValueError: --track: received 'wand'; did you mean 'wandb'? allowed: mlflow, tensorboard, trackio, wandb
    """
    return {name: _open(one_of("--track", name, TRACKERS), folder) for name in names}


def _open(name: str, folder: Path) -> Tracker:
    try:
        return TRACKERS[name](folder)
    except Exception as error:  # the import of an incompatible package may raise anything
        raise ValueError(
            f"--track: {name} can't be imported ({error}); install it with pip install {name}, or leave out "
            f"--track {name}"
        ) from error
