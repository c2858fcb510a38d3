"""The loop that trains batches of runs and records their results; a run is a sweep of one point.

What else happens to results is the callbacks' matter: the loop knows nothing of displays, trackers, tables or analyses.
"""

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedjax_bal.engine.host import Simulation, Snapshot, free_bytes, stacking_key
from fedjax_bal.lab.recorder import Recorder
from fedjax_bal.lab.training import (
    BuiltBatch,
    Event,
    RunStart,
    Started,
    StepResult,
    Stopped,
    compiled_ahead,
    train_batch,
)
from fedjax_bal.types import size_in_bytes

_COPIES = 4  # of a stack's states: before, after, in the chains, and in their sums


class SweepRun(NamedTuple):
    """A run with rounds left to do."""

    point: int  # its point's number
    run: tuple[int, int]  # its method's number and its seed
    simulation: Simulation
    round: int  # rounds done
    recorder: Any = None  # its point's; None in a plan that isn't carried out


@dataclasses.dataclass(frozen=True, eq=False)
class SweepBatch:
    """Runs that one program trains together.

    Attributes:
        program: its number; batches with the same one differ at most in their number of runs.
        tasks: the runs.
        number: the batch's, under which it is announced; also that of its parts, if it has to be divided.
        tries: losses of a worker in a row without progress, and one.
    """

    program: int
    tasks: tuple[SweepRun, ...]
    number: int = 0
    tries: int = 1

    @property
    def state_bytes(self) -> int:
        """Bytes that the states of all its runs take on the devices."""
        return len(self.tasks) * size_in_bytes(self.tasks[0].simulation.state_shapes().state)

    def starts(self) -> list[RunStart]:
        """The runs as their training starts. To be called once, as it gives their models away."""
        return [task.recorder.start(task.run) for task in self.tasks]


def batch_runs(tasks: Sequence[SweepRun], most: int | None = None, places: int = 1) -> list[SweepBatch]:
    """Groups runs with equal stacking keys into batches of at most `most`, in the order of their first runs.

    None for `most` stands for as many as fit into memory and leave none of the `places`, where batches are trained at a
    time, without a batch.
    """
    groups: dict[Any, list[SweepRun]] = {}
    for task in tasks:
        # Clients' memory on the host is gathered for each dispatch of a run by itself.
        alone = task.simulation.keeps_memory_on_host
        key = (task.point, task.run) if alone else (stacking_key(task.simulation), task.round)
        groups.setdefault(key, []).append(task)
    sizes = [min(_most_in_memory(group[0].simulation), most or len(group)) for group in groups.values()]
    if most is None:
        sizes = _for_all(places, [len(group) for group in groups.values()], sizes)
    batches: list[SweepBatch] = []
    for program, (group, size) in enumerate(zip(groups.values(), sizes, strict=True)):
        # Batches of about equal sizes, so that the last one isn't left with a single run.
        for piece in np.array_split(np.arange(len(group)), -(-len(group) // size)):
            batches.append(SweepBatch(program, tuple(group[index] for index in piece), len(batches)))
    return batches


def _for_all(places: int, runs: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The largest sizes of batches with which no place is left without one, or else single runs."""
    for largest in range(max(sizes, default=1), 1, -1):
        capped = [min(size, largest) for size in sizes]
        if sum(-(-count // size) for count, size in zip(runs, capped, strict=True)) >= places:
            return capped
    return [1 for _ in sizes]


def _most_in_memory(simulation: Simulation) -> int:
    """Number of runs like this one that fit into half of the free memory, at least 1."""
    free = free_bytes(simulation.setting.layout)
    state = max(size_in_bytes(simulation.state_shapes().state), 1)
    return max(1, free // (2 * _COPIES * state)) if free is not None else 10_000


class Callback:
    """Told how training goes on; a subclass overrides what it wants to know."""

    def started(self, batch: SweepBatch) -> None:
        """A process has taken a batch, and compiles its program."""

    def built(self, batch: SweepBatch, built: BuiltBatch) -> None:
        """A batch's program is ready."""

    def recorded(self, recorder: Recorder, run: tuple[int, int], clients_per_s: float) -> None:
        """A run's results are on disk: of a dispatch, or with a pace of 0 of earlier sessions."""

    def saving(self, recorder: Recorder, run: tuple[int, int], snapshot: Snapshot) -> None:
        """A checkpoint is about to be written."""

    def ended(self, recorder: Recorder, run: tuple[int, int], snapshot: Snapshot) -> None:
        """A run's last round is saved. A session that was killed meanwhile is followed by one that tells it again."""

    def stepped(self, batch: SweepBatch, step: StepResult) -> None:
        """All results of a step are on disk."""

    def failed(self, batch: SweepBatch, error: Exception) -> None:
        """The training of a batch has ended with an error that the others survive."""


class Backend(Protocol):
    """Trains batches of runs in other processes."""

    @property
    def places(self) -> int:
        """Number of batches that it trains at a time."""
        ...

    def about(self) -> str:
        """The machines, in words."""
        ...

    def train(
        self, waiting: deque[SweepBatch], should_stop: Callable[[], bool]
    ) -> Generator[tuple[SweepBatch, Event], None, None]:
        """Trains the batches in the queue, which the caller may extend, and yields their events.

        Raises `Stopped`, with all that matters yielded, once `should_stop` returns True and something is left.
        """
        ...


def runs_left(recorder: Recorder, callbacks: Sequence[Callback], point: int = 0) -> list[SweepRun]:
    """The runs of a resumed recorder with rounds left; the others are ended, unless they have failed."""
    left = []
    for run, state in recorder.states.items():
        if state.failure is not None:
            continue
        if state.round:
            for callback in callbacks:
                callback.recorded(recorder, run, 0.0)
        if recorder.is_over(run):
            _end(recorder, run, recorder.start(run).snapshot, callbacks)  # in case the session was killed before it
        else:
            left.append(SweepRun(point, run, recorder.comparison.simulation(run), state.round, recorder))
    return left


def train(
    batches: Iterable[SweepBatch],
    callbacks: Sequence[Callback],
    should_stop: Callable[[], bool],
    *,
    backend: Backend | None = None,
    retry: Callable[[SweepBatch, Exception], Iterable[SweepBatch]] | None = None,
) -> None:
    """Trains batches one after the other, or in the processes of a `backend`, and records each step's results.

    `retry` returns the batches to be trained in place of one that ended with an error, or raises it; without it, every
    error is raised. Raises `Stopped` once `should_stop` returns True and something is left.
    """
    waiting = deque(batches)

    def take(batch: SweepBatch, event: Event) -> None:
        if isinstance(event, StepResult):
            _record(batch, event, callbacks)
        elif isinstance(event, BuiltBatch):
            for task in batch.tasks:
                task.recorder.add_built(event, len(batch.tasks))
        elif isinstance(event, Exception):
            if retry is None:
                raise event
            waiting.extend(retry(batch, event))
        for callback in callbacks:
            if isinstance(event, StepResult):
                callback.stepped(batch, event)
            elif isinstance(event, BuiltBatch):
                callback.built(batch, event)
            elif isinstance(event, Started):
                callback.started(batch)
            else:
                callback.failed(batch, event)

    if backend is not None:
        with contextlib.closing(backend.train(waiting, should_stop)) as events:
            for batch, event in events:
                take(batch, event)
        return
    with compiled_ahead(tuple(task.simulation for task in batch.tasks) for batch in waiting):
        while waiting:
            batch = waiting.popleft()
            for callback in callbacks:
                callback.started(batch)
            stopped = False
            for event in train_batch(batch.starts(), should_stop):
                take(batch, event)
                stopped = isinstance(event, StepResult) and event.stopped
            if stopped:
                raise Stopped


def _record(batch: SweepBatch, step: StepResult, callbacks: Sequence[Callback]) -> None:
    """Records a step's results, saves what is due, and ends runs whose last round it was."""
    for place, result in step.results.items():
        recorder = batch.tasks[place].recorder
        run = batch.tasks[place].run
        seconds = step.seconds / len(step.results)
        recorder.record(run, result, seconds)
        for callback in callbacks:
            callback.recorded(recorder, run, result.client_updates / seconds)
    for place, reason in step.failures.items():
        batch.tasks[place].recorder.fail(batch.tasks[place].run, reason)
    for place in list(step.snapshots):
        recorder = batch.tasks[place].recorder
        run = batch.tasks[place].run
        snapshot = step.snapshots.pop(place)  # so that its memory is free before the next dispatch
        for callback in callbacks:
            callback.saving(recorder, run, snapshot)  # first: a round with a checkpoint is never repeated
        recorder.save(run, snapshot)
        # What follows a run's last round may take long, and waits for the next session if the user wants to stop.
        if place in step.ended and not step.stopped:
            _end(recorder, run, snapshot, callbacks)


def _end(recorder: Recorder, run: tuple[int, int], snapshot: Any, callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback.ended(recorder, run, snapshot)
    recorder.states[run].concluded = True
