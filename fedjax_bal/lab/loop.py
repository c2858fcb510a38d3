"""The loop that trains batches of runs and records their results; a run is a sweep of one point.

Callbacks handle everything else: the loop knows nothing of displays, trackers, tables or analyses.
"""

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.engine.host import Simulation, Snapshot, free_bytes, stacking_key
from fedjax_bal.lab import training
from fedjax_bal.lab.recorder import Recorder
from fedjax_bal.lab.schema import RunId
from fedjax_bal.types import size_in_bytes

_COPIES = 4  # copies of a stack's states: before, after, in the chains and in the chains' sums


class RunTask(NamedTuple):
    """A run with rounds left to do."""

    point: int  # number of its point
    run: RunId
    simulation: Simulation
    round: int  # finished rounds
    recorder: Any = None  # of its point; None in a dry run


@dataclasses.dataclass(frozen=True, eq=False)
class RunBatch:
    """Runs that one program trains together.

    Attributes:
        program: the program's number; batches with the same program differ at most in their number of runs.
        tasks: the runs.
        number: the batch's number on the display; its halves keep it if it has to be divided.
        attempts: 1 plus the number of consecutive losses of a worker without progress.
    """

    program: int
    tasks: tuple[RunTask, ...]
    number: int = 0
    attempts: int = 1

    @property
    def state_bytes(self) -> int:
        """Memory of all runs' states on the devices, in bytes."""
        return len(self.tasks) * size_in_bytes(self.tasks[0].simulation.state_shapes().state)

    def starts(self) -> list[training.RunStart]:
        """Returns the starting states of all runs. Call once, because training takes ownership of the models."""
        return [task.recorder.start(task.run) for task in self.tasks]


def steps_per_round(simulation: Simulation) -> float:
    """Returns the local steps of a round with the largest cohort, drawn evenly, all of which deliver."""
    steps = np.asarray(simulation.setting.local_steps(np.diff(simulation.federation.offsets)))
    return float(simulation.selector.most * simulation.selector.passes * steps[steps > 0].mean())


def batch_runs(tasks: Sequence[RunTask], max_size: int | None = None, concurrent: int = 1) -> list[RunBatch]:
    """Groups runs with equal stacking keys into batches of at most `max_size`, in the order of their first runs.

    `max_size=None`: as many as fit into memory, and small enough that `concurrent` batches can train at a time.
    """
    groups: dict[Any, list[RunTask]] = {}
    for task in tasks:
        # A client memory on the host is gathered per run and dispatch, so the run can't be stacked.
        alone = task.simulation.keeps_memory_on_host
        key = (task.point, task.run) if alone else (stacking_key(task.simulation), task.round)
        groups.setdefault(key, []).append(task)
    sizes = []
    for group in groups.values():
        simulation = group[0].simulation
        # Half of the free memory, for the states of all runs.
        free = free_bytes(simulation.setting.layout)
        state = max(size_in_bytes(simulation.state_shapes().state), 1)
        fitting = 10_000 if free is None else max(1, free // (2 * _COPIES * state))
        sizes.append(min(fitting, max_size or len(group)))
    if max_size is None:
        sizes = spread_batches(concurrent, [len(group) for group in groups.values()], sizes)
    batches: list[RunBatch] = []
    for program, (group, size) in enumerate(zip(groups.values(), sizes, strict=True)):
        # Batches of about equal size, so that the last one isn't a single run.
        for piece in np.array_split(np.arange(len(group)), -(-len(group) // size)):
            batches.append(RunBatch(program, tuple(group[index] for index in piece), len(batches)))
    return batches


def spread_batches(concurrent: int, runs: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Returns the largest batch sizes that give `concurrent` batches or more; single runs if no size does."""
    for largest in range(max(sizes, default=1), 1, -1):
        capped = [min(size, largest) for size in sizes]
        if sum(-(-count // size) for count, size in zip(runs, capped, strict=True)) >= concurrent:
            return capped
    return [1 for _ in sizes]


Events = Generator[tuple[RunBatch, training.Event], None, None]
"""Events in the training of several batches."""


class Callback:
    """Base class of callbacks; subclasses override the events that they handle."""

    def started(self, batch: RunBatch) -> None:
        """Called when a process has taken a batch, before it compiles the program."""

    def built(self, batch: RunBatch, built: training.BuiltBatch) -> None:
        """Called when a batch's program is compiled."""

    def recorded(self, recorder: Recorder, run: RunId, clients_per_s: float) -> None:
        """Called when results of a dispatch are on disk; with a rate of 0 for results of earlier sessions."""

    def saving(self, recorder: Recorder, run: RunId, snapshot: Snapshot) -> None:
        """Called before a checkpoint is written."""

    def ended(self, recorder: Recorder, run: RunId, snapshot: Snapshot) -> None:
        """Called after a run's last round is saved; again in the next session if a kill interrupted the callbacks."""

    def stepped(self, batch: RunBatch, step: training.StepResult) -> None:
        """Called when all results of a step are on disk."""


def runs_left(recorder: Recorder, callbacks: Sequence[Callback], point: int = 0) -> list[RunTask]:
    """Lists the runs of a resumed recorder that have rounds left; ends the complete runs that haven't failed."""
    left = []
    for run, state in recorder.states.items():
        if state.failure is not None:
            continue
        if state.round:
            for callback in callbacks:
                callback.recorded(recorder, run, 0.0)
        if recorder.is_over(run):
            _end(recorder, run, recorder.start(run).snapshot, callbacks)  # in case a kill prevented it
        else:
            left.append(RunTask(point, run, recorder.comparison.simulation(run), state.round, recorder))
    return left


def train(
    batches: Iterable[RunBatch],
    callbacks: Sequence[Callback],
    should_stop: Callable[[], bool],
    *,
    elsewhere: Callable[[deque[RunBatch], Callable[[], bool]], Events] | None = None,
    retry: Callable[[RunBatch, Exception], Iterable[RunBatch]] | None = None,
) -> None:
    """Trains batches sequentially in this process, or as `elsewhere` does, and records each step's results.

    `elsewhere` is `RayBackend.train`; None for this process. `retry` returns the replacements of a batch that failed,
    or raises the error; without it, every error is raised. Raises `Stopped` if `should_stop` returned True before the
    work was complete.
    """
    waiting = deque(batches)

    def take(batch: RunBatch, event: training.Event) -> None:
        if isinstance(event, training.StepResult):
            _record(batch, event, callbacks)
            for callback in callbacks:
                callback.stepped(batch, event)
        elif isinstance(event, training.BuiltBatch):
            for task in batch.tasks:
                task.recorder.add_built(event, len(batch.tasks))
            for callback in callbacks:
                callback.built(batch, event)
        elif isinstance(event, training.Started):
            for callback in callbacks:
                callback.started(batch)
        elif retry is None:
            raise event
        else:
            waiting.extend(retry(batch, event))

    if elsewhere is not None:
        with contextlib.closing(elsewhere(waiting, should_stop)) as events:
            for batch, event in events:
                take(batch, event)
        return
    with training.compiled_ahead(tuple(task.simulation for task in batch.tasks) for batch in waiting):
        while waiting:
            batch = waiting.popleft()
            for callback in callbacks:
                callback.started(batch)
            stopped = False
            for event in training.train_batch(batch.starts(), should_stop):
                take(batch, event)
                stopped = isinstance(event, training.StepResult) and event.stopped
            if stopped:
                raise training.Stopped


def _record(batch: RunBatch, step: training.StepResult, callbacks: Sequence[Callback]) -> None:
    """Records a step's results, saves the checkpoints that are due, and ends the runs that are complete."""
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
        snapshot = step.snapshots.pop(place)  # frees its memory before the next dispatch
        for callback in callbacks:
            callback.saving(recorder, run, snapshot)  # before saving: a round with a checkpoint is never repeated
        recorder.save(run, snapshot)
        # Callbacks at a run's end can take long; they wait for the next session if the user wants to stop.
        if place in step.ended and not step.stopped:
            _end(recorder, run, snapshot, callbacks)


def _end(recorder: Recorder, run: RunId, snapshot: Any, callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback.ended(recorder, run, snapshot)
    recorder.states[run].concluded = True
