"""The process that trains a batch of runs on a machine of a cluster; it writes nothing."""

import contextlib
import os
import pickle
import platform
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.caches import keep_compiled_programs
from fedjax_bal.config import build_config, parse_yaml
from fedjax_bal.engine.host import Snapshot
from fedjax_bal.jax_setup import settle_process, split_cpu
from fedjax_bal.lab.environment import numeric_settings, versions
from fedjax_bal.lab.setup import SharedInputs, set_up
from fedjax_bal.lab.training import BatchRefused, Event, RunStart, Started, StepResult, train_batch
from fedjax_bal.plugins import load_plugins
from fedjax_bal.registry import PluginError, described, plugin_errors
from fedjax_bal.target import target_platform

_SAME = ("fedjax_bal", "jax", "jaxlib", "numpy")


class WorkerJob(NamedTuple):
    """A run that a worker is to train."""

    config: str  # as YAML: a configuration's classes are made when the package is imported, and can't be sent
    method: int
    seed: int
    fingerprint: np.ndarray  # of the data that it is to be trained on
    snapshot: Snapshot | None  # on the host; None for a run that hasn't started
    lines: list[Mapping[str, Any]]  # metrics of the rounds that were evaluated before


class Worker:
    """Trains a batch of runs on some devices: GPUs, or parts of the CPU."""

    def __init__(self, devices: int, gpus: bool, place: str, plugins: Sequence[str] = ()) -> None:
        self.devices, self.gpus, self.plugins = devices, gpus, plugins
        self.asked = threading.Event()
        with contextlib.suppress(OSError):
            os.chdir(place)  # where the sweep was started, for relative paths
        _start_jax(devices, gpus)

    def stop(self) -> None:
        """Asks for the end of training after this dispatch; called while `train` works."""
        self.asked.set()

    def train(self, needed: Mapping[str, str], jobs: bytes, data_dir: str | None) -> Iterator[Event]:
        """Trains a batch, and yields its events, with arrays on the host.

        `jobs` is a pickled list of `WorkerJob`s: it may refer to plug-ins, and to another NumPy than that of this
        machine, and is opened once the plug-ins are loaded and the versions are those `needed`.

        Raises:
            BatchRefused: the batch can't be trained here.
            ValueError: it doesn't fit onto the devices.
            MemoryError: there isn't enough memory.
        """
        node = socket.gethostname()
        yield Started(node, os.getpid())
        try:
            training = train_batch(self._load(needed, jobs, data_dir), self.asked.is_set)
        except (ValueError, OSError, RuntimeError) as error:
            raise BatchRefused(f"on {node}: {described(error)}") from error
        del jobs
        try:
            for event in training:
                if isinstance(event, StepResult):
                    event = event._replace(snapshots=jax.device_get(event.snapshots))
                yield event
        except (PluginError, OSError, RuntimeError) as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                raise MemoryError(str(error)) from error
            raise BatchRefused(described(error)) from error

    def _load(self, needed: Mapping[str, str], jobs: bytes, data_dir: str | None) -> list[RunStart]:
        """Reads the data and builds the runs of a batch; raises ValueError for what is another here."""
        with plugin_errors():
            load_plugins(self.plugins)
            here = installed_versions()
            other = [
                f"{name} {here.get(name, 'missing')} in place of {version}"
                for name, version in needed.items()
                if here.get(name) != version
            ]
            if other:
                raise ValueError(
                    f"{', '.join(other)}; install the same versions on all machines, and set the same JAX_* variables "
                    "where workers start"
                )
            if self.gpus and target_platform() == "cpu":
                raise ValueError(
                    "the machine has a GPU, but jax can't use it: install jax for its GPUs there, as in jax[cuda13]"
                )
            if jax.device_count() < self.devices:
                raise ValueError(f"jax sees {jax.device_count()} of the {self.devices} devices that were asked for")
            opened: list[WorkerJob] = pickle.loads(jobs)
            inputs = SharedInputs(data_dir, self.devices)
            texts = dict.fromkeys(job.config for job in opened)
            made = {text: set_up(build_config(parse_yaml(text, "job"), [], "job"), inputs=inputs) for text in texts}
            starts = []
            for job in opened:
                known, run = made[job.config], (job.method, job.seed)
                if (known.fingerprint(run) != job.fingerprint).any():
                    raise ValueError(
                        "images, labels, partition or traces are others there than here: put the same files into the "
                        "same folder on all machines"
                    )
                config, simulation = known.methods[job.method], known.simulation(run)
                starts.append(RunStart(config, simulation, job.seed, job.snapshot, job.lines))
            return starts


def installed_versions() -> dict[str, str]:
    """The versions and jax's settings that a worker's results, and messages to it, depend on."""
    return {"Python": platform.python_version(), **{name: versions()[name] for name in _SAME}, **numeric_settings()}


def _start_jax(devices: int, gpus: bool) -> None:
    settle_process()
    if not gpus:
        jax.config.update("jax_platforms", "cpu")
        split_cpu(devices)
    keep_compiled_programs(lambda text: None)
