"""The process that trains a batch of runs on a machine of a cluster; it writes nothing."""

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import jax

from fedjax_bal.caches import keep_compiled_programs
from fedjax_bal.config import build_config, parse_yaml
from fedjax_bal.engine.host import Member
from fedjax_bal.experiments.backends.local import LocalBatch
from fedjax_bal.experiments.backends.ray.messages import (
    Failure,
    WorkerInfo,
    WorkerJob,
    installed_versions,
    writable,
)
from fedjax_bal.experiments.setup import SharedInputs, set_up
from fedjax_bal.jax_setup import settle_process, split_cpu
from fedjax_bal.plugins import load_plugins
from fedjax_bal.registry import PluginError, described, plugin_errors
from fedjax_bal.target import target_platform


def _explained(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose errors are returned as data."""

    @functools.wraps(method)
    def tried(self: "Worker", *arguments: Any) -> Any:
        try:
            with plugin_errors():
                return method(self, *arguments)
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            return _failure(error, loading=self.batch is None)

    return tried


class Worker:
    """Trains a batch of runs on some devices: GPUs, or parts of the CPU."""

    def __init__(self, devices: int, gpus: bool, place: str, plugins: Sequence[str] = ()) -> None:
        self.devices, self.gpus, self.plugins = devices, gpus, plugins
        self.batch: LocalBatch | None = None
        with contextlib.suppress(OSError):
            os.chdir(place)  # where the sweep was started, for relative paths
        _start_jax(devices, gpus)

    @_explained
    def about(self) -> WorkerInfo:
        """Loads the plug-ins, to which messages may refer; returns machine and versions of this worker."""
        load_plugins(self.plugins)
        return WorkerInfo(socket.gethostname(), os.getpid(), installed_versions())

    @_explained
    def load(self, jobs: Sequence[WorkerJob], data_dir: str | None) -> Failure | None:
        """Reads the data and builds the runs of a batch; returns a failure, if any."""
        missing = _missing_gpus(self.devices) if self.gpus else None
        if missing:
            return Failure("refused", missing)
        inputs = SharedInputs(data_dir, self.devices)
        configs = {own.config: build_config(parse_yaml(own.config, "job"), [], "job") for own in jobs}
        made = {text: set_up(config, inputs=inputs) for text, config in configs.items()}
        pairs = [(made[own.config], own) for own in jobs]
        if any((known.fingerprint((own.method, own.seed)) != own.fingerprint).any() for known, own in pairs):
            return Failure(
                "refused",
                "images, labels, partition or traces are others there than here: put the same files into the same "
                "folder on all machines",
            )
        members = [Member(known.simulation((own.method, own.seed)), own.seed) for known, own in pairs]
        if len(members) > 1 and any(member.simulation.keeps_memory_on_host for member in members):
            return Failure("size", "what clients remember doesn't fit onto the devices")
        self.batch = LocalBatch(members, [writable(own.snapshot) for own in jobs])
        return None

    @_explained
    def compile(self) -> Any:
        """Compiles the program."""
        return self._loaded.compile()

    @_explained
    def advance(self, resting: Sequence[bool]) -> Any:
        """Runs the next rounds."""
        return self._loaded.advance(resting)

    @_explained
    def snapshots(self, places: Sequence[int]) -> Any:
        """Snapshots of some of the runs, with their states."""
        return jax.device_get(self._loaded.snapshots(places))

    @property
    def _loaded(self) -> LocalBatch:
        if self.batch is None:
            raise ValueError("nothing is loaded; call load first")
        return self.batch


def _start_jax(devices: int, gpus: bool) -> None:
    settle_process()
    if not gpus:
        jax.config.update("jax_platforms", "cpu")
        split_cpu(devices)
    keep_compiled_programs(lambda text: None)


def _missing_gpus(devices: int) -> str | None:
    if target_platform() == "cpu":
        return "the machine has a GPU, but jax can't use it: install jax for its GPUs there, as in jax[cuda13]"
    if jax.device_count() < devices:
        return f"jax sees {jax.device_count()} of the {devices} devices that were asked for"
    return None


def _failure(error: Exception, *, loading: bool) -> Failure:
    text = str(error) or type(error).__name__
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        return Failure("memory", text)
    if isinstance(error, ValueError) and not isinstance(
        error, PluginError
    ):  # once all is loaded, only a program that doesn't fit into memory raises one
        return Failure("refused" if loading else "size", text)
    return Failure("refused", described(error))
