"""Messages between a sweep and its workers: configurations, NumPy arrays, and failures as data."""

import platform
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.config import Config, build_config, parse_yaml, resolved_yaml
from fedjax_bal.engine.host import Snapshot
from fedjax_bal.experiments.environment import versions
from fedjax_bal.experiments.runner import Runner

_SAME = ("fedjax_bal", "jax", "jaxlib", "numpy")


class WorkerJob(NamedTuple):
    """A run that a worker is to train.

    Attributes:
        config: its point's configuration, as YAML: its classes are made when the package is imported.
        method: its method's number.
        seed: its seed.
        fingerprint: fingerprint of the data that it is to be trained on.
        snapshot: its snapshot, on the host; None for a run that hasn't started.
    """

    config: str
    method: int
    seed: int
    fingerprint: np.ndarray
    snapshot: Snapshot | None


class WorkerInfo(NamedTuple):
    """Machine and versions of a worker.

    Attributes:
        node: its machine's name.
        pid: its process.
        versions: versions of the packages that its results may depend on.
    """

    node: str
    pid: int
    versions: dict[str, str]


class Failure(NamedTuple):
    """An error in a worker.

    Attributes:
        kind: "memory" if it ran out of memory, "size" if the batch doesn't fit in the first place, or "refused" if
            fewer runs would not help.
        text: the message.
    """

    kind: str
    text: str


def installed_versions() -> dict[str, str]:
    """The versions of the packages that a worker's results, and messages to it, depend on."""
    return {"Python": platform.python_version(), **{name: versions()[name] for name in _SAME}}


def differing_versions(here: dict[str, str], there: dict[str, str]) -> str:
    """The differences between two machines' versions, in words; empty if they agree.

    Example:
        >>> differing_versions({"jax": "0.10.2", "numpy": "2.3"}, {"jax": "0.10.1", "numpy": "2.3"})
        'jax 0.10.1 in place of 0.10.2'
    """
    return ", ".join(
        f"{name} {there.get(name, 'missing')} in place of {version}"
        for name, version in here.items()
        if there.get(name) != version
    )


def worker_job(runner: Runner, run: tuple[int, int], snapshot: Snapshot | None) -> WorkerJob:
    """The job for a run."""
    fingerprint = runner.comparison.fingerprints[run[0]]
    return WorkerJob(resolved_yaml(runner.config), *run, fingerprint, None if snapshot is None else on_host(snapshot))


def configuration(text: str) -> Config:
    """The configuration of a job."""
    return build_config(parse_yaml(text, "errand"), [], "errand")


def on_host(tree: Any) -> Any:
    """A tree with its arrays on the host, to be sent."""
    return jax.device_get(tree)


def writable(snapshot: Snapshot | None) -> Snapshot | None:
    """A received snapshot with arrays of its own, as received ones may be shared and read-only."""
    own = lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf
    return None if snapshot is None else jax.tree.map(own, snapshot)
