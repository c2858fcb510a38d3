"""Sweeps on a cluster through Ray: the connection, the backend, and the workers, which train and write nothing."""

import contextlib
import dataclasses
import importlib
import logging
import os
import pickle
import platform
import socket
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.caches import keep_compiled_programs
from fedjax_bal.config import build_config, parse_yaml, resolved_yaml
from fedjax_bal.engine.host import Snapshot
from fedjax_bal.jax_setup import settle_process, split_cpu
from fedjax_bal.lab import training
from fedjax_bal.lab.environment import numeric_settings, versions
from fedjax_bal.lab.loop import Events, RunBatch
from fedjax_bal.lab.schema import RunId
from fedjax_bal.lab.setup import SharedInputs, set_up
from fedjax_bal.plugins import load_plugins, loaded_plugins
from fedjax_bal.registry import PluginError, format_error, plugin_errors
from fedjax_bal.target import target_platform

_CONNECT_S = 5.0
_STORE_BYTES = 512 * 2**20  # for states, one batch's at a time; the rest spills to disk
_SAME = ("fedjax_bal", "jax", "jaxlib", "numpy")
_PATIENCE_S = 0.5  # between checks for the user's wish to stop
_SILENCE_S = 300.0  # of silence before a warning about a worker; doubles with each warning
_STOP_S = 60.0  # that a worker may take to finish its rounds after the user stops
_LONGER = 2  # multiple of the longest wait so far that is also allowed


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connects to a Ray cluster; yields the module `ray`.

    `address` is HOST:PORT of the cluster's head, or "auto" for the cluster of this machine. None means RAY_ADDRESS if
    it is set, otherwise a local cluster that ends with the sweep.

    Raises:
        ValueError: Ray isn't installed, or the address has no cluster, or a cluster of another version.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # by default workers have the lowest priority on their machine
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray = importlib.import_module("ray")
    except Exception as error:  # importing a package with incompatible dependencies can raise anything
        raise ValueError(
            f"--engine ray: ray can't be imported ({error}); install it with pip install 'fedjax_bal[cluster]', "
            "or leave out --engine ray"
        ) from error

    # An address that doesn't answer is rejected here: Ray would wait for minutes and then end the process.
    option = "--address" if address is not None else "RAY_ADDRESS"
    wanted = address if address is not None else os.environ.get("RAY_ADDRESS") or "local"
    if wanted not in ("auto", "local"):
        host, _, port = wanted.rpartition(":")
        if "://" in wanted or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ValueError(
                f"{option}: received {wanted!r}, must be HOST:PORT of a Ray cluster's head, for instance "
                "10.0.0.1:6379, or auto for the one that this machine belongs to"
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ValueError(
                f"{option}: nothing answers at {wanted} ({reason}); give the address that ray start --head printed, "
                "with the port open to this machine"
            ) from error

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if wanted == "local":
        options |= {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
    try:
        try:
            with warnings.catch_warnings():
                # Ray forks only to start its own programs, which don't inherit jax's locks.
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                ray.init(address=wanted, **options)
        except ConnectionError as error:
            first = str(error).strip().partition("\n")[0].rstrip(".")
            raise ValueError(
                f"{option}: {wanted}: no Ray cluster is there that lets this machine in ({first}); start one with ray "
                "start --head, set RAY_AUTH_MODE and RAY_AUTH_TOKEN where it asks for a token, or leave the address "
                "out for a cluster on this machine alone"
            ) from error
        except SystemExit as error:  # raised by Ray if another kind of server answers
            raise ValueError(
                f"{option}: {wanted}: the answer isn't from a Ray cluster; give HOST:PORT of its head"
            ) from error
        except RuntimeError as error:
            raise ValueError(
                f"{option}: {wanted}: Ray can't be used ({' '.join(str(error).split())}); here are Ray "
                f"{ray.__version__} and Python {sys.version.split()[0]}: use the cluster's versions of both"
            ) from error
        yield ray
    finally:
        ray.shutdown()


@dataclasses.dataclass
class RemoteBatch:
    """A batch that was sent to a worker."""

    batch: RunBatch
    worker: Any  # Ray's handle
    stream: Any  # Ray's generator of event references
    last_event_at: float  # time of the last event, or of sending the batch
    process: training.Started | None = None  # None until the cluster has room for it
    built: bool = False
    named_s: float = 0.0  # length of the silence at the last warning

    def __str__(self) -> str:
        """Describes the worker."""
        if self.process is None:
            return "a worker that the cluster may have no room for"
        return f"worker {self.process.pid} on {self.process.node}"


class RayBackend:
    """Trains each batch in a worker on any machine that has room.

    Workers receive configurations and snapshots and return results; only this process writes files. If a worker is
    killed, the rounds since the last checkpoint are lost. `ray` is the connected module, `devices` the number of
    devices per batch, `data_dir` the data sets' folder on every machine; `warn` is called about workers that don't
    answer.
    """

    def __init__(
        self,
        ray: Any,
        devices: int,
        data_dir: str | None,
        warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        self.ray = ray
        self.devices = devices
        self.data_dir = data_dir
        self.warn = warn
        machines = self._machines()
        self.on_gpus = any(machine.get("GPU", 0) >= 1 for machine in machines)
        self.at_work: dict[Any, RemoteBatch] = {}  # by stream
        if not self.concurrent_batches:
            kind = "GPU" if self.on_gpus else "CPU"
            most = max((int(machine.get(kind, 0)) for machine in machines), default=0)
            raise ValueError(
                f"--engine ray: a group of runs asks for {devices} {kind}(s) of one machine, but the largest of the "
                f"cluster's {len(machines)} has {most}: ask for fewer with --devices"
            )

    @property
    def concurrent_batches(self) -> int:
        """Number of workers that the cluster has room for, ignoring other jobs."""
        rooms = [(int(machine.get("CPU", 0)), int(machine.get("GPU", 0))) for machine in self._machines()]
        # On GPUs, a worker needs a CPU, too.
        return sum(min(cpus, gpus // self.devices) if self.on_gpus else cpus // self.devices for cpus, gpus in rooms)

    def about(self) -> str:
        """Describes the cluster."""
        kind = "GPU" if self.on_gpus else "CPU"
        machines = len(self._machines())
        return (
            f"Ray: {machines} machine{'s' * (machines != 1)} with room for {self.concurrent_batches} group(s) at a "
            f"time, {self.devices} {kind}{'s' * (self.devices > 1)} each"
        )

    def train(self, waiting: deque[RunBatch], should_stop: Callable[[], bool]) -> Events:
        """Trains the batches in the queue, to which the caller may add, and yields their events.

        One batch per place trains concurrently; one more waits in Ray's queue. Raises `Stopped` after yielding all
        results if `should_stop` returned True before the work was complete.
        """
        asked_at: float | None = None  # time of the user's request
        longest_s = 0.0
        unfinished = False
        try:
            while waiting or self.at_work:
                while waiting and asked_at is None and len(self.at_work) <= self.concurrent_batches:
                    remote = self._send(waiting.popleft())
                    self.at_work[remote.stream] = remote
                ready = self.ray.wait(list(self.at_work), timeout=_PATIENCE_S)[0] if self.at_work else []
                for stream in ready:
                    remote = self.at_work[stream]
                    event = self._next(stream)
                    now = time.monotonic()
                    if isinstance(event, training.Started):
                        remote.process = event
                    else:  # waiting for a free place says nothing about other workers' speed
                        longest_s = max(longest_s, now - remote.last_event_at)
                    remote.last_event_at = now
                    remote.built = remote.built or isinstance(event, training.BuiltBatch)
                    unfinished = unfinished or (isinstance(event, training.StepResult) and event.stopped)
                    if event is None or isinstance(event, Exception):
                        self._end(remote)
                    if event is not None:
                        yield remote.batch, event

                if asked_at is None and should_stop():
                    asked_at = time.monotonic()
                    for remote in list(self.at_work.values()):
                        remote.worker.stop.remote()
                for remote in list(self.at_work.values()):
                    silent_s = time.monotonic() - remote.last_event_at
                    if silent_s > max(_SILENCE_S, 2 * remote.named_s, _LONGER * longest_s):
                        remote.named_s = silent_s
                        self.warn(
                            f"{remote} hasn't answered for {silent_s / 60:.0f} minutes; Ctrl-C ends the sweep, and the "
                            "same command resumes from the last checkpoints"
                        )
                    if asked_at is None:
                        continue
                    # The user wants to stop: a worker that isn't training yet has nothing to save.
                    enough = max(_STOP_S, _LONGER * longest_s)
                    hangs = min(silent_s, time.monotonic() - asked_at) > enough
                    if hangs:
                        self.warn(
                            f"{remote} hasn't answered for {enough:.0f} s and is ended; its rounds since the last "
                            "checkpoint are lost"
                        )
                    if hangs or not remote.built:
                        self._end(remote)
                        unfinished = True
                if asked_at is not None and waiting:
                    waiting.clear()
                    unfinished = True
        finally:
            for remote in list(self.at_work.values()):
                self._end(remote)
        if unfinished:
            raise training.Stopped

    def _send(self, batch: RunBatch) -> RemoteBatch:
        """Requests a worker and sends it a batch."""
        jobs = [
            WorkerJob(
                resolved_yaml(start.comparison.config),
                start.run,
                start.comparison.fingerprint(start.run),
                jax.device_get(start.snapshot),
                list(start.lines),
            )
            for start in batch.starts()
        ]
        # Two concurrent calls: `stop` must be handled while `train` runs.
        cpus, gpus = (1, self.devices) if self.on_gpus else (self.devices, 0)
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_concurrency": 2}
        worker = self.ray.remote(Worker).options(max_task_retries=0, **options)
        worker = worker.remote(self.devices, self.on_gpus, os.getcwd(), loaded_plugins())
        train = worker.train.options(num_returns="streaming")
        stream = train.remote(installed_versions(), pickle.dumps(jobs), self.data_dir)
        return RemoteBatch(batch, worker, stream, time.monotonic())

    def _next(self, stream: Any) -> training.Event | None:
        """Returns the next event of a ready stream; None at its end."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(next(stream))
        except StopIteration:
            return None
        except errors.RayTaskError as error:
            cause = getattr(error, "cause", None) or error
            if isinstance(cause, training.BatchRefused | ValueError | MemoryError):
                return cause
            return training.BatchRefused(f"the worker failed: {type(cause).__name__}: {_line(cause)}")
        except errors.RayError as error:
            text = str(error)
            if "No module named 'fedjax_bal" in text:
                missing = "a machine of the cluster doesn't have fedjax_bal"
                return training.BatchRefused(f"{missing}; install the same version on all of them")
            if "creation task" in text:
                return training.BatchRefused(f"a worker can't be started: {_line(text.strip().rpartition(chr(10))[2])}")
            if "killed due to the node running low on memory" in text or "OutOfMemory" in type(error).__name__:
                return MemoryError(text)
            return training.WorkerLost("its worker was killed, or its machine is gone")

    def _end(self, remote: RemoteBatch) -> None:
        """Ends a worker, or the request for one."""
        del self.at_work[remote.stream]
        self.ray.kill(remote.worker)

    def _machines(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]


def _line(text: object) -> str:
    return " ".join(str(text).split())[:300]


class WorkerJob(NamedTuple):
    """A run to be trained by a worker."""

    config: str  # YAML: configuration classes are created at import and can't be pickled
    run: RunId
    fingerprint: np.ndarray  # of the training data
    snapshot: Snapshot | None  # on the host; None for a run that hasn't started
    lines: list[Mapping[str, Any]]  # metrics of earlier evaluated rounds


class Worker:
    """Trains a batch of runs on GPUs or on parts of the CPU."""

    def __init__(self, devices: int, gpus: bool, place: str, plugins: Sequence[str] = ()) -> None:
        self.devices = devices
        self.gpus = gpus
        self.plugins = plugins
        self.asked = threading.Event()
        with contextlib.suppress(OSError):
            os.chdir(place)  # relative paths are relative to the sweep's working directory
        _start_jax(devices, gpus)

    def stop(self) -> None:
        """Asks training to end after the current dispatch; called while `train` runs."""
        self.asked.set()

    def train(self, needed: Mapping[str, str], jobs: bytes, data_dir: str | None) -> Iterator[training.Event]:
        """Trains a batch and yields its events, with arrays on the host.

        `jobs` is a pickled list of `WorkerJob`s. It is unpickled after loading the plug-ins and comparing versions with
        `needed`, because it may refer to plug-ins or to another version of NumPy.

        Raises:
            training.BatchRefused: the batch can't be trained on this machine.
            ValueError: the batch doesn't fit onto the devices.
            MemoryError: there isn't enough memory.
        """
        node = socket.gethostname()
        yield training.Started(node, os.getpid())
        try:
            events = training.train_batch(self._load(needed, jobs, data_dir), self.asked.is_set)
        except (ValueError, OSError, RuntimeError) as error:
            raise training.BatchRefused(f"on {node}: {format_error(error)}") from error
        del jobs
        try:
            for event in events:
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, training.StepResult):
                    event = event._replace(snapshots=jax.device_get(event.snapshots))
                yield event
        except (PluginError, OSError, RuntimeError) as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                raise MemoryError(str(error)) from error
            raise training.BatchRefused(format_error(error)) from error

    def _load(self, needed: Mapping[str, str], jobs: bytes, data_dir: str | None) -> list[training.RunStart]:
        """Loads the data and builds the runs of a batch; raises ValueError if versions, devices or data differ here."""
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
            made = {text: set_up(build_config(parse_yaml(text, "job"), [], "job"), inputs) for text in texts}
            starts = []
            for job in opened:
                known = made[job.config]
                if (known.fingerprint(job.run) != job.fingerprint).any():
                    raise ValueError(
                        "images, labels, partition or traces are others there than here: put the same files into the "
                        "same folder on all machines"
                    )
                starts.append(training.RunStart(known, job.run, job.snapshot, job.lines))
            return starts


def installed_versions() -> dict[str, str]:
    """The versions and jax settings that must be equal on all machines, for equal results and readable messages."""
    return {"Python": platform.python_version(), **{name: versions()[name] for name in _SAME}, **numeric_settings()}


def _start_jax(devices: int, gpus: bool) -> None:
    settle_process()
    if not gpus:
        jax.config.update("jax_platforms", "cpu")
        split_cpu(devices)
    keep_compiled_programs()
