"""Trains batches of runs in this process."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax

from fedjax_bal.engine.host import DispatchResult, Member, Snapshot, Stack, StackOfOne, open_stack, program_of
from fedjax_bal.experiments.backends.backend import BatchHandle, BatchTask, BuiltBatch, StepResult, Stopped
from fedjax_bal.experiments.environment import device_name
from fedjax_bal.experiments.grouping import SweepBatch
from fedjax_bal.registry import plugin_errors

if TYPE_CHECKING:
    from fedjax_bal.experiments.runner import Runner


class LocalBackend:
    """Trains in this process, one batch after the other, and compiles the next one's program meanwhile."""

    places = 1

    def about(self) -> str:
        """Returns nothing."""
        return ""

    def open(
        self, runners: Mapping[int, "Runner"], batch: SweepBatch, snapshots: Sequence[Snapshot | None]
    ) -> BatchHandle:
        """Takes a batch in."""
        del runners
        return LocalBatch([Member(task.simulation, task.run[1]) for task in batch.tasks], snapshots)

    def run_tasks(
        self, tasks: Iterable[BatchTask], batches: Iterable[SweepBatch], should_stop: Callable[[], bool]
    ) -> None:
        """Runs tasks to their ends."""
        with _compiled_ahead(batches):
            for task in tasks:
                if should_stop():
                    raise Stopped
                with contextlib.closing(task):
                    _run(task)


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


class LocalBatch:
    """Runs with equal stacking keys, all at the same round, that one program trains together in this process."""

    def __init__(self, members: Sequence[Member], snapshots: Sequence[Snapshot | None]) -> None:
        self._given: tuple[Sequence[Member], Sequence[Snapshot | None]] = members, snapshots
        self._stack: Stack | StackOfOne | None = None

    def enter(self) -> BatchTask:
        """Prepares nothing."""
        yield from ()

    def compile(self) -> BuiltBatch:
        """Makes the initial models and compiles the program; raises `ValueError` if it doesn't fit into memory."""
        with plugin_errors(part for member in self._given[0] for part in member.simulation.setting.parts):
            self._stack = stack = open_stack(*self._given)
            self._given = (), ()
            return BuiltBatch(stack.compile(), stack.device_bytes, device_name(), stack.setting.layout)

    def advance(self, resting: Sequence[bool]) -> StepResult:
        """Runs the rounds of one dispatch, but for runs that rest."""
        stack = self._opened
        for place in [place for place, rests in enumerate(resting) if rests]:
            stack.rest(place)
        began = time.perf_counter()
        results = stack.advance()
        seconds = time.perf_counter() - began
        failures = [None if error is None else str(error) for error in stack.failures]
        return StepResult([_without_state(result) for result in results], failures, stack.round, seconds)

    def snapshots(self, places: Sequence[int]) -> list[Snapshot]:
        """Snapshots of some of the runs, with their states."""
        return [self._opened.snapshot(place) for place in places]

    def close(self) -> None:
        """Frees the runs' states."""
        self._stack, self._given = None, ((), ())

    @property
    def _opened(self) -> Stack | StackOfOne:
        if self._stack is None:
            raise ValueError("the batch of runs isn't compiled, or is closed; compile it first")
        return self._stack


def _without_state(result: DispatchResult | None) -> DispatchResult | None:
    """A result whose state stays on the devices until it is saved."""
    return result and result._replace(snapshot=result.snapshot._replace(state=None))


def _run(task: BatchTask) -> None:
    with contextlib.suppress(StopIteration):
        call = next(task)
        while True:
            try:
                with plugin_errors():
                    value = call()
            except Exception as error:  # the task knows after which errors it can go on
                call = task.throw(error)
            else:
                call = task.send(value)
