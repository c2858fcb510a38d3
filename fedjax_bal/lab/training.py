"""Trains batches of runs, and saves them as they go.

A comparison trains batches of one run; a sweep, batches of as many runs as one program can train together. Training
and writing are kept apart: `train_batch` trains, here or on a machine of a cluster, and yields the results; a
`BatchTraining` writes them, always in the process that owns the folders.
"""

import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import numpy as np

from fedjax_bal.config import MethodConfig
from fedjax_bal.engine.device import Layout
from fedjax_bal.engine.host import (
    DispatchResult,
    Member,
    Simulation,
    Snapshot,
    free_bytes,
    open_stack,
    program_of,
    stacking_key,
)
from fedjax_bal.lab.environment import device_name
from fedjax_bal.lab.saved_runs import SavedRun, unstarted
from fedjax_bal.registry import plugin_errors
from fedjax_bal.types import size_in_bytes

if TYPE_CHECKING:
    from fedjax_bal.lab.runner import Runner

_COPIES = 4  # of a stack's states: before, after, in the chains, and in their sums


class SweepRun(NamedTuple):
    """A run with rounds left to do."""

    point: int  # its point's number
    run: tuple[int, int]  # its method's number and its seed
    simulation: Simulation
    round: int  # rounds done


class SweepBatch(NamedTuple):
    """Runs that one program trains together."""

    program: int  # its number; batches with the same one differ at most in their number of runs
    tasks: tuple[SweepRun, ...]

    @property
    def state_bytes(self) -> int:
        """Bytes that the states of all its runs take on the devices."""
        return len(self.tasks) * size_in_bytes(self.tasks[0].simulation.state_shapes().state)


def batch_runs(tasks: Sequence[SweepRun], most: int | None = None, places: int = 1) -> list[SweepBatch]:
    """Groups runs with equal stacking keys into batches of at most `most`, in the order of their first runs.

    None for `most` stands for as many as fit into memory and leave none of the `places`, where batches are trained at a
    time, without a batch.
    """
    alike: dict[Any, list[SweepRun]] = {}
    for task in tasks:
        # Clients' memory on the host is gathered for each dispatch of a run by itself.
        alone = task.simulation.keeps_memory_on_host
        key = (task.point, task.run) if alone else (stacking_key(task.simulation), task.round)
        alike.setdefault(key, []).append(task)
    sizes = [min(_most_in_memory(own[0].simulation), most or len(own)) for own in alike.values()]
    if most is None:
        sizes = _for_all(places, [len(own) for own in alike.values()], sizes)
    batches = []
    for number, (own, size) in enumerate(zip(alike.values(), sizes, strict=True)):
        # Batches of about equal sizes, so that the last one isn't left with a single run.
        pieces = np.array_split(np.arange(len(own)), -(-len(own) // size))
        batches += [SweepBatch(number, tuple(own[place] for place in piece)) for piece in pieces]
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


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """Training was asked to stop, and has saved all that it needs to resume."""


class WorkerLost(Exception):  # noqa: N818 - an event, not a mistake
    """The worker that trained a batch is gone, with its unsent results; the message says why."""


class BatchRefused(Exception):  # noqa: N818 - an event, not a mistake
    """A batch, however small, can't be trained by its worker; the message gives the reason and a remedy."""


class RunStart(NamedTuple):
    """A run as its training starts or goes on."""

    config: MethodConfig
    simulation: Simulation
    seed: int
    snapshot: Snapshot | None  # None before the first round
    lines: Sequence[Mapping[str, Any]]  # metrics of the rounds that were evaluated before


class Started(NamedTuple):
    """A process has taken a batch."""

    node: str
    pid: int


class BuiltBatch(NamedTuple):
    """A batch whose program is compiled."""

    compile_s: float
    device_bytes: int  # of data, states and the program on each device
    device: str  # in words
    layout: Layout


class StepResult(NamedTuple):
    """Results of one dispatch for the runs of a batch, by their places in it."""

    results: dict[int, DispatchResult]  # of the runs that were trained, without states
    failures: dict[int, str]  # of runs that have diverged in it
    round: int  # rounds done
    seconds: float
    snapshots: dict[int, Snapshot]  # of runs that are to be saved now
    ended: list[int]  # runs whose last round this was
    stopped: bool  # the user wants to stop, and some runs are not concluded


Event = Started | BuiltBatch | StepResult | Exception
"""A step in the training of a batch. An exception is its last one."""


class Backend(Protocol):
    """Trains batches of runs."""

    @property
    def places(self) -> int:
        """Number of batches that it trains at a time."""
        ...

    def about(self) -> str:
        """The machines, in words; empty for this process."""
        ...

    def train(
        self, waiting: deque["BatchTraining"], should_stop: Callable[[], bool]
    ) -> Generator[tuple["BatchTraining", Event], None, None]:
        """Trains the batches in the queue, which the caller may extend, and yields their events.

        The caller saves a step's snapshots before it asks for more. Raises `Stopped`, with all that matters yielded,
        once `should_stop` returns True and something is left.
        """
        ...


def is_over(config: MethodConfig, simulation: Simulation, round: int, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run has ended, by its number of rounds or by early stopping; a resumed run ends at the same round."""
    between = round % simulation.rounds_per_dispatch != 0  # where only the end of a shorter run can be
    return round >= simulation.rounds or (not between and config.training.early_stopping.rule.over(lines))


def train_batch(starts: Sequence[RunStart], should_stop: Callable[[], bool]) -> Iterator[BuiltBatch | StepResult]:
    """Trains runs with equal stacking keys, all at the same round, to their ends.

    Yields the compiled program, then the results of each dispatch. A step's snapshots are donated to the next one, so
    they must be saved before it is asked for. After each dispatch `should_stop` is asked; True saves all runs and ends
    the training. Raises ValueError if the program doesn't fit into memory.
    """
    every = min(start.config.execution.checkpoint_every for start in starts)
    lines = [list(start.lines) for start in starts]
    with plugin_errors():
        with plugin_errors(part for start in starts for part in start.simulation.setting.parts):
            members = [Member(start.simulation, start.seed) for start in starts]
            stack = open_stack(members, [start.snapshot for start in starts])
            starts = [start._replace(snapshot=None) for start in starts]  # whose memory is the stack's from here on
            compile_s = stack.compile()
        yield BuiltBatch(compile_s, stack.device_bytes, device_name(), stack.setting.layout)
        saved_at = stack.round
        while not all(stack.resting):
            trained = [place for place, rests in enumerate(stack.resting) if not rests]
            began = time.perf_counter()
            advanced = stack.advance()
            seconds = time.perf_counter() - began
            # States stay on the devices until they are saved.
            results = {
                place: own._replace(snapshot=own.snapshot._replace(state=None))
                for place, own in enumerate(advanced)
                if own is not None
            }
            del advanced
            for place, result in results.items():
                lines[place] += result.records
            ended = [
                place
                for place in results
                if is_over(starts[place].config, starts[place].simulation, stack.round, lines[place])
            ]
            saving, stopping = ended, should_stop()
            if stopping or stack.round - saved_at >= every:
                saving, saved_at = list(results), stack.round
            for place in ended:
                stack.rest(place)
            # Nothing here refers to the snapshots, which take memory, once the receiver has saved them.
            yield StepResult(
                results,
                {place: str(stack.failures[place]) for place in trained if place not in results},
                stack.round,
                seconds,
                {place: stack.snapshot(place) for place in saving},
                ended,
                stopped=stopping and bool(results),
            )
            if stopping:
                return


class BatchTraining:
    """The training of a batch, as the process that owns the folders sees it.

    Args:
        batch: the runs.
        runners: those of their points by number, which write the results.
        before: the saved runs; None for those that haven't started.
        number: under which the batch is announced.
        tries: losses of a worker in a row without progress, and one.

    Attributes:
        runs: each run's runner, and its method's number and seed.
    """

    def __init__(
        self,
        batch: SweepBatch,
        runners: "Mapping[int, Runner]",
        before: Sequence[SavedRun | None],
        number: int = 0,
        tries: int = 1,
    ) -> None:
        self.batch, self.number, self.tries = batch, number, tries
        self.runs = [(runners[task.point], task.run) for task in batch.tasks]
        self._saved = [
            saved or unstarted(runner.comparison, run) for (runner, run), saved in zip(self.runs, before, strict=True)
        ]

    def starts(self) -> list[RunStart]:
        """The runs as they start. To be called once, as it gives their states away."""
        found = []
        for place, (runner, run) in enumerate(self.runs):
            saved, config = self._saved[place], runner.comparison.methods[run[0]]
            snapshot = saved.snapshot if self.batch.tasks[place].round else None
            simulation, lines = runner.comparison.simulation(run), runner.states[run].lines
            found.append(RunStart(config, simulation, run[1], snapshot, lines))
            self._saved[place] = saved._replace(snapshot=saved.snapshot._replace(state=None))
        return found

    def take(self, event: Event) -> None:
        """Writes what has become of the batch; concludes runs that have ended, unless the user wants to stop.

        What follows a run's last round may take long, and waits for the next session then.
        """
        if isinstance(event, BuiltBatch):
            for runner, _ in self.runs:
                runner.add_built(event, len(self.runs))
        if not isinstance(event, StepResult):
            return
        for place, result in event.results.items():
            runner, run = self.runs[place]
            self._saved[place] = runner.take(run, self._saved[place], result, event.seconds / len(event.results))
        for place, failure in event.failures.items():
            runner, run = self.runs[place]
            runner.fail(run, failure)
        for place in list(event.snapshots):
            runner, run = self.runs[place]
            snapshot = event.snapshots.pop(place)  # so that its memory is free before the next dispatch
            runner.save(run, self._saved[place]._replace(snapshot=snapshot))
            if place in event.ended and not event.stopped:
                runner.conclude(run, snapshot)


class LocalBackend:
    """Trains in this process, one batch after the other, and compiles the next one's program meanwhile."""

    places = 1

    def about(self) -> str:
        """Returns nothing."""
        return ""

    def train(
        self, waiting: deque[BatchTraining], should_stop: Callable[[], bool]
    ) -> Generator[tuple[BatchTraining, Event], None, None]:
        """Trains the waiting batches."""
        with _compiled_ahead(training.batch for training in waiting):
            while waiting:
                training = waiting.popleft()
                yield training, Started(socket.gethostname(), os.getpid())
                stopped = False
                try:
                    for event in train_batch(training.starts(), should_stop):
                        yield training, event
                        stopped = isinstance(event, StepResult) and event.stopped
                except Exception as error:  # the caller knows after which errors it can go on
                    yield training, error
                if stopped:
                    raise Stopped


@contextlib.contextmanager
def _compiled_ahead(batches: Iterable[SweepBatch]) -> Iterator[Sequence[Future[Any]]]:
    """Within this context a thread compiles the programs of batches, in this order, while others are trained."""
    # A stopped run doesn't wait for the thread: XLA can't be interrupted, and everything is saved by then. Several
    # processes don't compile ahead, as all of them would have to compile at the same moments. The thread only compiles:
    # its errors are dropped, as a batch that is reached asks again; and what the machine's free memory decides is
    # decided then, while nothing else is trained.
    thread = ThreadPoolExecutor(1, "compilation")
    alike = dict.fromkeys(tuple(task.simulation for task in batch.tasks) for batch in batches)
    try:
        # The list keeps the programs until they are asked for.
        programs = [thread.submit(program_of, own) for own in alike if jax.process_count() == 1]
        yield programs
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
