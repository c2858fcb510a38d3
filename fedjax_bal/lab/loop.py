"""The loop that trains a batch of runs with one program; callbacks do everything else.

A batch is a single run, or runs of a sweep with equal stacking keys. The loop records the results of each dispatch,
saves the checkpoints that are due, and ends the runs that are complete. It knows nothing of displays, trackers, tables
or analyses.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.engine.device import Layout
from fedjax_bal.engine.host import (
    Member,
    Simulation,
    Snapshot,
    free_bytes,
    open_stack,
    program_of,
    stacking_key,
)
from fedjax_bal.lab.run import Run
from fedjax_bal.registry import plugin_errors
from fedjax_bal.types import size_in_bytes

_COPIES = 4  # copies of a stack's states: before, after, in the chains and in the chains' sums


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """Training stopped at the user's request, after saving everything needed to resume."""


class BuiltProgram(NamedTuple):
    """The compiled program of a batch."""

    compile_s: float
    device_bytes: int  # of data, states and the program on each device
    layout: Layout


class DispatchStats(NamedTuple):
    """The time and work of a dispatch of a batch."""

    round: int  # finished rounds
    seconds: float
    client_updates: int
    samples: int


class Callback:
    """Base class of callbacks; subclasses override the moments that they handle."""

    def started(self, batch: "RunBatch") -> None:
        """Called before a batch's program is compiled."""

    def built(self, batch: "RunBatch", program: BuiltProgram) -> None:
        """Called when a batch's program is compiled."""

    def recorded(self, run: Run, clients_per_s: float) -> None:
        """Called when a run's results of a dispatch are recorded; with a rate of 0 for those of earlier sessions."""

    def saving(self, run: Run, simulation: Simulation, snapshot: Snapshot) -> None:
        """Called before a checkpoint is written; rounds before it are never repeated."""

    def ended(self, run: Run, simulation: Simulation, snapshot: Snapshot) -> None:
        """Called after a run's last round is saved; again in the next session if a kill interrupted the callbacks."""

    def stepped(self, batch: "RunBatch", step: DispatchStats) -> None:
        """Called when all results of a dispatch are recorded, and its checkpoints are saved."""


@dataclasses.dataclass(frozen=True, eq=False)
class RunBatch:
    """Runs at the same round that one program trains together.

    Attributes:
        runs: the runs.
        program: the program's number; batches with the same one differ at most in their number of runs.
        number: the batch's number on the display; its halves keep it if it has to be divided.
    """

    runs: tuple[Run, ...]
    program: int = 0
    number: int = 0

    @property
    def simulations(self) -> tuple[Simulation, ...]:
        """The simulations of the runs."""
        return tuple(run.simulation for run in self.runs)

    @property
    def rounds(self) -> int:
        """Number of rounds of each run."""
        return self.runs[0].simulation.rounds

    @property
    def state_bytes(self) -> int:
        """Memory of all runs' states on the devices, in bytes."""
        return len(self.runs) * size_in_bytes(self.runs[0].simulation.state_shapes().state)


def unfinished(runs: Iterable[Run], callbacks: Sequence[Callback]) -> list[Run]:
    """Returns the resumed runs with rounds left; ends runs that are over, which a kill may have prevented."""
    left = []
    for run in runs:
        if run.failure is not None:
            continue
        if run.round:
            for callback in callbacks:
                callback.recorded(run, 0.0)
        if run.is_over:
            snapshot = run.start()
            assert snapshot is not None
            _end(run, snapshot, callbacks)
        else:
            left.append(run)
    return left


def batch_runs(runs: Sequence[Run], max_size: int | None = None) -> list[RunBatch]:
    """Groups runs with equal stacking keys into batches of at most `max_size`, in the order of their first runs.

    `max_size=None`: as many as fit into memory.
    """
    groups: dict[Hashable, list[Run]] = {}
    for run in runs:
        # A client memory on the host is gathered for one run and dispatch, so these runs can't be stacked.
        alone = run.simulation.keeps_memory_on_host
        groups.setdefault(id(run) if alone else (stacking_key(run.simulation), run.round), []).append(run)
    batches: list[RunBatch] = []
    for program, group in enumerate(groups.values()):
        # Half of the free memory, for the states of all runs.
        free = free_bytes(group[0].simulation.setting.layout)
        state = max(size_in_bytes(group[0].simulation.state_shapes().state), 1)
        fitting = len(group) if free is None else max(1, free // (2 * _COPIES * state))
        size = min(fitting, max_size or len(group))
        # Batches of about equal size, so that the last one isn't a single run.
        for part in np.array_split(np.arange(len(group)), -(-len(group) // size)):
            batches.append(RunBatch(tuple(group[place] for place in part), program, len(batches)))
    return batches


def steps_per_round(simulation: Simulation) -> float:
    """Returns the local steps of a round with the largest cohort, drawn evenly, all of which deliver."""
    steps = np.asarray(simulation.setting.local_steps(simulation.federation.sizes))
    return float(simulation.selector.most * simulation.selector.passes * steps[steps > 0].mean())


def train(batch: RunBatch, callbacks: Sequence[Callback], should_stop: Callable[[], bool]) -> None:
    """Trains the runs of a batch until they end; a run that diverges is recorded as failed, and the others continue.

    `should_stop` is called after each dispatch.

    Raises:
        Stopped: `should_stop` returned True; everything is saved.
        ValueError: the batch doesn't fit onto the devices.
    """
    runs = batch.runs
    for callback in callbacks:
        callback.started(batch)
    with plugin_errors():
        stack = open_stack([Member(run.simulation, run.id.seed) for run in runs], [run.start() for run in runs])
        program = BuiltProgram(stack.compile(), stack.device_bytes, stack.setting.layout)
    for run in runs:
        run.cost = run.cost._replace(compile_s=run.cost.compile_s + program.compile_s / len(runs))
    for callback in callbacks:
        callback.built(batch, program)

    every = min(run.checkpoint_every for run in runs)
    saved_at = stack.round
    while not all(stack.resting):
        training = [place for place, rests in enumerate(stack.resting) if not rests]
        began = time.perf_counter()
        with plugin_errors():
            results = stack.advance()
        seconds = time.perf_counter() - began
        for place in training:
            if stack.failures[place] is not None:
                runs[place].fail(str(stack.failures[place]))
        training = [place for place in training if stack.failures[place] is None]
        step = _record({runs[place]: results[place] for place in training}, stack.round, seconds, callbacks)
        del results  # the memory of their states is for the next dispatch

        # Runs that end are always saved; all of them if a checkpoint is due or the user stops.
        stopping = should_stop()
        due = stopping or stack.round - saved_at >= every
        if due:
            saved_at = stack.round
        for place in training:
            over = runs[place].is_over
            if over:
                stack.rest(place)
            if over or due:
                # Callbacks at a run's end can take long; they wait for the next session if the user wants to stop.
                _save(runs[place], stack.snapshot(place), callbacks, ended=over and not stopping)
        for callback in callbacks:
            callback.stepped(batch, step)
        if stopping:
            raise Stopped


def _record(results: Mapping[Run, Any], round: int, seconds: float, callbacks: Sequence[Callback]) -> DispatchStats:
    """Records the results of a dispatch, whose time its runs share equally."""
    for run, result in results.items():
        run.record(result, seconds / len(results))
        for callback in callbacks:
            callback.recorded(run, result.client_updates * len(results) / seconds)
    updates = sum(result.client_updates for result in results.values())
    return DispatchStats(round, seconds, updates, sum(result.samples for result in results.values()))


def _save(run: Run, snapshot: Snapshot, callbacks: Sequence[Callback], *, ended: bool) -> None:
    for callback in callbacks:
        callback.saving(run, run.simulation, snapshot)
    run.save(snapshot)
    if ended:
        _end(run, snapshot, callbacks)


def _end(run: Run, snapshot: Snapshot, callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback.ended(run, run.simulation, snapshot)
    run.ended = True


@contextlib.contextmanager
def compiled_ahead(batches: Iterable[RunBatch]) -> Iterator[None]:
    """Makes a context in which a thread compiles the programs of batches, in order, while others train."""
    # A stopped run doesn't wait for the thread: XLA can't be interrupted, and everything is saved by then. With several
    # processes nothing is compiled ahead, because all would have to compile at the same moments. The thread drops
    # errors, because the batch compiles again when it is reached. Decisions that depend on free memory are also made
    # then, when nothing else trains.
    thread = ThreadPoolExecutor(1, "compilation")
    stacks = dict.fromkeys(batch.simulations for batch in batches)
    try:
        # The list keeps the programs alive until they are used.
        programs = [thread.submit(program_of, stack) for stack in stacks if jax.process_count() == 1]
        yield
        del programs
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
