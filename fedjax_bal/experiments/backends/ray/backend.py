"""The backend that trains batches of runs on a Ray cluster, each in a worker process of its own."""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.engine.host import Snapshot
from fedjax_bal.experiments.backends.backend import BatchRefused, BatchTask, Stopped, WorkerLost
from fedjax_bal.experiments.backends.ray.messages import (
    Failure,
    WorkerInfo,
    differing_versions,
    installed_versions,
    worker_job,
)
from fedjax_bal.experiments.backends.ray.worker import Worker
from fedjax_bal.experiments.grouping import SweepBatch
from fedjax_bal.experiments.runner import Runner
from fedjax_bal.plugins import loaded_plugins

_PATIENCE_S = 0.5  # between two checks whether the user wants to stop
_SILENCE_S = 300.0  # without an answer, after which a worker is named; again after twice as long, and so on
_STOP_S = 60.0  # that a worker may take for its rounds once the user wants to stop
_LONGER = 2  # times the longest answer so far are allowed, too


class Pending(NamedTuple):
    """A request that a worker is working on."""

    ref: Any  # Ray's reference to the result
    keep: bool  # whether to wait for it when the user wants to stop
    who: str  # works on it, in words
    asked: str  # of it, in words


class Resources(NamedTuple):
    """Resources of a machine that each worker needs."""

    cpus: int
    gpus: int

    def fit(self, machine: Mapping[str, float]) -> int:
        """Number of such workers that a machine has room for at a time."""
        room = int(machine.get("CPU", 0)) // self.cpus
        return min(room, int(machine.get("GPU", 0)) // self.gpus) if self.gpus else room


class RayBackend:
    """Trains each batch in a worker, on any machine that has room for one.

    Workers receive configurations and snapshots, and return their runs' results; only this process writes. A worker
    that is killed loses the rounds since the last checkpoint. `ray` is the module, connected; `devices` those of a
    batch; `data_dir` the folder with the data sets' files, on every machine; `warn` is told of workers that don't
    answer.
    """

    def __init__(
        self,
        ray: Any,
        devices: int,
        data_dir: str | None,
        warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        self.ray, self.devices, self.data_dir, self.warn = ray, devices, data_dir, warn
        self.needs = _needs(self._machines(), devices)
        self.workers: list[WorkerInfo] = []  # that train at the moment
        if not self.places:
            raise ValueError(_too_small(self._machines(), devices, self.needs))

    @property
    def places(self) -> int:
        """Number of workers that the cluster has room for, without other jobs."""
        return sum(self.needs.fit(machine) for machine in self._machines())

    def about(self) -> str:
        """The cluster, in words."""
        kind = "GPU" if self.needs.gpus else "CPU"
        machines = len(self._machines())
        return (
            f"Ray: {machines} machine{'s' * (machines != 1)} with room for {self.places} group(s) at a time, "
            f"{self.devices} {kind}{'s' * (self.devices > 1)} each"
        )

    def open(
        self, runners: Mapping[int, Runner], batch: SweepBatch, snapshots: Sequence[Snapshot | None]
    ) -> "RemoteHandle":
        """Asks for a worker for a batch."""
        return RemoteHandle(self, runners, batch, snapshots)

    def run_tasks(
        self, tasks: Iterable[BatchTask], batches: Iterable[SweepBatch], should_stop: Callable[[], bool]
    ) -> None:
        """Runs tasks to their ends, as many at a time as there are places, and one more that waits for the next."""
        del batches
        waiting, under_way, asked = deque(tasks), _UnderWay(self.ray, self.warn), False
        left = 0
        with contextlib.closing(under_way):
            while waiting or under_way.tasks:
                while waiting and not asked and len(under_way.tasks) <= self.places:
                    under_way.begin(waiting.popleft())
                under_way.go_on()
                asked = asked or under_way.stopped > 0 or should_stop()
                if asked:
                    left += len(waiting) + under_way.drop_idle() + under_way.drop_silent()
                    waiting.clear()
        if left or under_way.stopped:
            raise Stopped

    def _machines(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]


class _UnderWay:
    """Tasks in progress, each of which waits for one result."""

    def __init__(self, ray: Any, warn: Callable[[str], None]) -> None:
        self.ray, self.warn = ray, warn
        self.tasks: dict[Pending, BatchTask] = {}  # by the request that they wait for
        self.began: dict[Pending, float] = {}  # when each request was made
        self.named: dict[Pending, float] = {}  # how long it had taken when the user was told
        self.longest_s = 0.0  # of the requests that are answered
        self.stop_asked: float | None = None  # when the user's wish to stop arrived here
        self.stopped = 0  # tasks that ended early because the user wants to stop

    def begin(self, task: BatchTask) -> None:
        """Starts a task."""
        self._step(task, lambda: next(task))

    def go_on(self) -> None:
        """Waits a little, and resumes the tasks whose results have arrived."""
        refs = {pending.ref: pending for pending in self.tasks}
        ready, _ = self.ray.wait(list(refs), timeout=_PATIENCE_S) if refs else ([], [])
        self._name_silent()
        for ref in ready:
            task = self.tasks.pop(refs[ref])
            self.longest_s = max(self.longest_s, time.monotonic() - self.began.pop(refs[ref]))
            try:
                value = self._received(ref)
            except Exception as error:  # the task knows after which errors it can go on
                self._step(task, lambda task=task, error=error: task.throw(error))
            else:
                self._step(task, lambda task=task, value=value: task.send(value))

    def drop_idle(self) -> int:
        """Ends the tasks that don't train yet; returns their number."""
        return self._drop([pending for pending in self.tasks if not pending.keep])

    def drop_silent(self) -> int:
        """Ends the tasks whose workers have had long enough since the user wanted to stop; returns their number."""
        now = time.monotonic()
        self.stop_asked = self.stop_asked or now
        enough = max(_STOP_S, _LONGER * self.longest_s)
        silent = [own for own in self.tasks if now - max(self.began[own], self.stop_asked) > enough]
        for pending in silent:
            self.warn(
                f"{pending.who} hasn't answered for {enough:.0f} s ({pending.asked}) and is ended; its rounds since "
                "the last checkpoint are lost"
            )
        return self._drop(silent)

    def _name_silent(self) -> None:
        """Names the workers that haven't answered for long."""
        now = time.monotonic()
        for pending in self.tasks:
            waited = now - self.began[pending]
            if waited > max(_SILENCE_S, 2 * self.named.get(pending, 0.0), _LONGER * self.longest_s):
                self.named[pending] = waited
                self.warn(
                    f"{pending.who} hasn't answered for {waited / 60:.0f} minutes ({pending.asked}); Ctrl-C ends the "
                    "sweep, and the same command goes on from the last checkpoints"
                )

    def _drop(self, dropped: Sequence[Pending]) -> int:
        for pending in dropped:
            self.tasks.pop(pending).close()
        return len(dropped)

    def close(self) -> None:
        """Ends all tasks at once."""
        while self.tasks:
            self.tasks.popitem()[1].close()

    def _step(self, task: BatchTask, step: Callable[[], Callable[[], Pending]]) -> None:
        try:
            call = step()
        except StopIteration:
            return
        except Stopped:
            self.stopped += 1
            return
        pending = call()
        self.tasks[pending], self.began[pending] = task, time.monotonic()

    def _received(self, ref: Any) -> Any:
        errors = self.ray.exceptions
        try:
            value = self.ray.get(ref)
        except errors.RayTaskError as error:
            cause = getattr(error, "cause", None) or error
            raise BatchRefused(f"the worker failed: {type(cause).__name__}: {_line(cause)}") from error
        except errors.RayError as error:
            raise _lost(error) from error
        if isinstance(value, Failure):
            raise {"memory": MemoryError, "size": ValueError, "refused": BatchRefused}[value.kind](value.text)
        return value


class RemoteHandle:
    """A batch of runs in a worker of a cluster."""

    def __init__(
        self,
        cluster: RayBackend,
        runners: Mapping[int, Runner],
        batch: SweepBatch,
        snapshots: Sequence[Snapshot | None],
    ) -> None:
        self._cluster, self._about = cluster, None
        self._jobs = [
            worker_job(runners[task.point], task.run, snapshot)
            for task, snapshot in zip(batch.tasks, snapshots, strict=True)
        ]
        needs = cluster.needs
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_restarts": 0, "max_task_retries": 0}
        worker = cluster.ray.remote(Worker).options(**options)
        self._worker = worker.remote(cluster.devices, needs.gpus > 0, os.getcwd(), loaded_plugins())

    def enter(self) -> BatchTask:
        """Waits for a worker, and makes it load the data."""
        about: WorkerInfo = yield lambda: self._pending(self._worker.about.remote(), "to start", keep=False)
        other = differing_versions(installed_versions(), about.versions)
        if other:
            raise BatchRefused(
                f"{about.node} has {other}; install the same versions on all machines, and set the same JAX_* "
                "variables where its workers start"
            )
        self._about = about
        self._cluster.workers.append(about)
        try:
            request = lambda: self._worker.load.remote(self._jobs, self._cluster.data_dir)
            yield lambda: self._pending(request(), "to load the data", keep=False)
        except BatchRefused as error:
            raise BatchRefused(f"on {about.node}: {error}") from error
        self._jobs = []

    def compile(self) -> Pending:
        """Compiles the program."""
        return self._pending(self._worker.compile.remote(), "to compile", keep=False)

    def advance(self, resting: Sequence[bool]) -> Pending:
        """Runs the next rounds."""
        return self._pending(self._worker.advance.remote(resting), "to train", keep=True)

    def snapshots(self, places: Sequence[int]) -> Pending:
        """Snapshots of some of the runs, with their states."""
        return self._pending(self._worker.snapshots.remote(places), "to send its state", keep=True)

    def _pending(self, ref: Any, asked: str, *, keep: bool) -> Pending:
        about = self._about
        who = (
            "a worker that the cluster may have no room for" if about is None else f"worker {about.pid} on {about.node}"
        )
        return Pending(ref, keep, who, f"asked {asked}")

    def close(self) -> None:
        """Ends the worker, or the wait for one."""
        if self._about is not None:
            self._cluster.workers.remove(self._about)
            self._about = None
        self._cluster.ray.kill(self._worker)


def _needs(machines: Sequence[Mapping[str, float]], devices: int) -> Resources:
    """GPUs if the cluster has any, else cores."""
    return Resources(1, devices) if any(machine.get("GPU", 0) >= 1 for machine in machines) else Resources(devices, 0)


def _too_small(machines: Sequence[Mapping[str, float]], devices: int, needs: Resources) -> str:
    kind = "GPU" if needs.gpus else "CPU"
    most = max((int(machine.get(kind, 0)) for machine in machines), default=0)
    return (
        f"--engine ray: a group of runs asks for {devices} {kind}(s) of one machine, but the largest of the cluster's "
        f"{len(machines)} has {most}: ask for fewer with --devices"
    )


def _lost(error: Exception) -> Exception:
    text = str(error)
    if "No module named 'fedjax_bal" in text:
        return BatchRefused("a machine of the cluster doesn't have fedjax_bal; install the same version on all of them")
    if "creation task" in text:
        return BatchRefused(f"a worker can't be started: {_line(text.strip().rpartition(chr(10))[2])}")
    if "killed due to the node running low on memory" in text or "OutOfMemory" in type(error).__name__:
        return MemoryError(text)
    return WorkerLost("its worker was killed, or its machine is gone")


def _line(text: object) -> str:
    return " ".join(str(text).split())[:300]
