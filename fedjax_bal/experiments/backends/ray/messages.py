"""Messages between a sweep and its workers: configurations, NumPy arrays, and failures as data."""

import platform
from typing import NamedTuple

import jax
import numpy as np

from fedjax_bal.config import resolved_yaml
from fedjax_bal.engine.host import Snapshot
from fedjax_bal.experiments.environment import numeric_settings, versions
from fedjax_bal.experiments.runner import Runner

_SAME = ("fedjax_bal", "jax", "jaxlib", "numpy")


class WorkerJob(NamedTuple):
    """A run that a worker is to train."""

    config: str  # as YAML: a configuration's classes are made when the package is imported, and can't be sent
    method: int
    seed: int
    fingerprint: np.ndarray  # of the data that it is to be trained on
    snapshot: Snapshot | None  # on the host; None for a run that hasn't started


class WorkerInfo(NamedTuple):
    """Machine, process and versions of a worker."""

    node: str
    pid: int
    versions: dict[str, str]


class Failure(NamedTuple):
    """An error in a worker, and its message."""

    kind: str  # "memory" ran out, "size" of the batch doesn't fit, or "refused": fewer runs would not help
    text: str


def installed_versions() -> dict[str, str]:
    """The versions and jax's settings that a worker's results, and messages to it, depend on."""
    return {"Python": platform.python_version(), **{name: versions()[name] for name in _SAME}, **numeric_settings()}


def differing_versions(here: dict[str, str], there: dict[str, str]) -> str:
    """The differences between two machines' versions, in words; empty if they agree."""
    return ", ".join(
        f"{name} {there.get(name, 'missing')} in place of {version}"
        for name, version in here.items()
        if there.get(name) != version
    )


def worker_job(runner: Runner, run: tuple[int, int], snapshot: Snapshot | None) -> WorkerJob:
    """The job for a run."""
    fingerprint = runner.comparison.fingerprint(run)
    return WorkerJob(resolved_yaml(runner.config), *run, fingerprint, jax.device_get(snapshot))


def writable(snapshot: Snapshot | None) -> Snapshot | None:
    """A received snapshot with arrays of its own, as received ones may be shared and read-only."""
    own = lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf
    return None if snapshot is None else jax.tree.map(own, snapshot)
