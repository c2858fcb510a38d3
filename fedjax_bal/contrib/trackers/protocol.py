"""The interface of trackers, the runs of a comparison, and the numbers of a line of metrics."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedjax_bal.validate import is_number

if TYPE_CHECKING:
    from fedjax_bal.config import Config

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

    A tracker that can't continue may raise any exception: `Mirror` reports it and continues without that tracker.

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


def tracked_runs(config: "Config") -> dict[tuple[int, int], TrackedRun]:
    """Lists all runs of a comparison, by the method's position and the seed.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> run = tracked_runs(load_config(None))[0, 2]
        >>> run.method, run.key, run.place, run.config["training"]["rounds"]
        ('fedavg', '0-2', 'fedavg/seed2', 50)
    """
    from fedjax_bal.config import to_plain

    runs = {}
    folders = folder_names([method.name for method in config.methods])
    for index, (method, folder) in enumerate(zip(config.methods, folders, strict=True)):
        for seed in config.seeds:
            settings = to_plain(config.with_partition_of(seed, method))
            key = f"{index}-{seed}"
            runs[index, seed] = TrackedRun(config.name, method.name, seed, key, f"{folder}/seed{seed}", settings)
    return runs


def folder_names(names: Sequence[str]) -> list[str]:
    """Returns names of folders that are as close to the given ones as all file systems allow.

    They are distinct even if case is ignored, and none is hidden or leads to another folder.
    """
    found: list[str] = []
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
        found.append(unique)
    return found


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
