"""What goes to a worker and comes back: configurations, NumPy arrays, and failures as data."""

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
        fingerprint: of the data that it is to be trained on.
        snapshot: where it stands, on the host; None for a run that hasn't begun.
    """

    config: str
    method: int
    seed: int
    fingerprint: np.ndarray
    snapshot: Snapshot | None


class WorkerInfo(NamedTuple):
    """Who a worker is.

    Attributes:
        node: its machine's name.
        pid: its process.
        versions: of what its results may depend on.
    """

    node: str
    pid: int
    versions: dict[str, str]


class Failure(NamedTuple):
    """What went wrong with a worker's work.

    Attributes:
        kind: "memory" where it ran out, "size" for what doesn't fit in the first place, or "refused" for what fewer
            runs would not help.
        text: what to tell.
    """

    kind: str
    text: str


def installed_versions() -> dict[str, str]:
    """The versions of what a worker's results, and what is sent to it, depend on."""
    return {"Python": platform.python_version(), **{name: versions()[name] for name in _SAME}}


def differing_versions(here: dict[str, str], there: dict[str, str]) -> str:
    """In words, what two machines have different versions of; empty where they agree.

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
    """What to send for a run."""
    fingerprint = runner.comparison.fingerprints[run[0]]
    return WorkerJob(resolved_yaml(runner.config), *run, fingerprint, None if snapshot is None else on_host(snapshot))


def configuration(text: str) -> Config:
    """The configuration of an errand."""
    return build_config(parse_yaml(text, "errand"), [], "errand")


def on_host(tree: Any) -> Any:
    """A tree with its arrays on the host, to be sent."""
    return jax.device_get(tree)


def writable(snapshot: Snapshot | None) -> Snapshot | None:
    """A snapshot that was sent: what arrives may be shared with others, and can't be written to."""
    own = lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf
    return None if snapshot is None else jax.tree.map(own, snapshot)
