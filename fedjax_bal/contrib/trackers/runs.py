"""Runs as trackers know them, each with a place of its own."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fedjax_bal.config import Config


class TrackedRun(NamedTuple):
    """One method with one seed.

    Attributes:
        project: the name of the comparison.
        method: the method's name.
        seed: the seed.
        key: the method's position and the seed, as `0-7`; unique in the folder.
        place: a relative path that only this run has, as `fedavg/seed7`.
        config: the method's configuration, as in a YAML file.
    """

    project: str
    method: str
    seed: int
    key: str
    place: str
    config: Mapping[str, Any]


def tracked_runs(config: "Config") -> dict[tuple[int, int], TrackedRun]:
    """All runs of a comparison, by the method's position and the seed.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> run = tracked_runs(load_config(None))[0, 2]
        >>> run.method, run.key, run.place, run.config["training"]["rounds"]
        ('fedavg', '0-2', 'fedavg/seed2', 40)
    """
    from fedjax_bal.config import to_plain

    names = [method.name for method in config.methods]
    runs = {}
    for index, folder in enumerate(folder_names(names)):
        settings = to_plain(config.for_method(index))
        for seed in config.seeds:
            place = f"{folder}/seed{seed}"
            runs[index, seed] = TrackedRun(config.name, names[index], seed, f"{index}-{seed}", place, settings)
    return runs


def folder_names(names: Sequence[str]) -> list[str]:
    """Names of folders, as close to the given ones as all file systems allow.

    They are distinct even if case is ignored, and none is hidden or leads to another folder.

    Example:
        >>> folder_names(["fedavg", "mu = 0.1", "a/b", "A_b", ".."])
        ['fedavg', 'mu = 0.1', 'a_b', 'A_b (2)', '__']
    """
    found: list[str] = []
    taken: set[str] = set()
    for name in names:
        safe = re.sub(r"[^\w .,=+()-]", "_", name)
        safe = re.sub(r"^\.+|\.+$", lambda dots: "_" * len(dots[0]), safe)
        unique, count = safe, 1
        while unique.casefold() in taken:
            count += 1
            unique = f"{safe} ({count})"
        taken.add(unique.casefold())
        found.append(unique)
    return found
