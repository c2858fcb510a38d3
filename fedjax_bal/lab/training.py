"""Trains one batch of runs, in this process or in a worker of a cluster; writes nothing."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax

from fedjax_bal.engine.device import Layout
from fedjax_bal.engine.host import DispatchResult, Member, Simulation, Snapshot, open_stack, program_of
from fedjax_bal.lab.environment import device_name
from fedjax_bal.lab.setup import Comparison
from fedjax_bal.registry import plugin_errors


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """Training was asked to stop, and has saved all that it needs to resume."""


class WorkerLost(Exception):  # noqa: N818 - an event, not a mistake
    """The worker that trained a batch is gone, with its unsent results; the message says why."""


class BatchRefused(Exception):  # noqa: N818 - an event, not a mistake
    """A batch, however small, can't be trained by its worker; the message gives the reason and a remedy."""


class RunStart(NamedTuple):
    """A run as its training starts or goes on."""

    comparison: Comparison
    run: tuple[int, int]  # its method's number and its seed
    snapshot: Snapshot | None  # None before the first round
    lines: Sequence[Mapping[str, Any]]  # metrics of the rounds that were evaluated before

    @property
    def simulation(self) -> Simulation:
        """The run's simulation."""
        return self.comparison.simulation(self.run)


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


def is_over(comparison: Comparison, run: tuple[int, int], round: int, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run has ended, by its number of rounds or by early stopping; a resumed run ends at the same round."""
    simulation = comparison.simulation(run)
    between = round % simulation.rounds_per_dispatch != 0  # where only the end of a shorter run can be
    stopping = comparison.methods[run[0]].training.early_stopping.rule
    return round >= simulation.rounds or (not between and stopping.over(lines))


def train_batch(starts: Sequence[RunStart], should_stop: Callable[[], bool]) -> Iterator[Event]:
    """Trains runs with equal stacking keys, all at the same round, to their ends.

    Yields the compiled program, then the results of each dispatch; the exception that ends the training is its last
    event. A step's snapshots are donated to the next one, so they must be saved before it is asked for. After each
    dispatch `should_stop` is asked; True saves all runs and ends the training.
    """
    try:
        with plugin_errors():
            every = min(start.comparison.methods[start.run[0]].execution.checkpoint_every for start in starts)
            lines = [list(start.lines) for start in starts]
            with plugin_errors(part for start in starts for part in start.simulation.setting.parts):
                members = [Member(start.simulation, start.run[1]) for start in starts]
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
                    place: result._replace(snapshot=result.snapshot._replace(state=None))
                    for place, result in enumerate(advanced)
                    if result is not None
                }
                del advanced
                ended = []
                for place, result in results.items():
                    lines[place] += result.records
                    if is_over(starts[place].comparison, starts[place].run, stack.round, lines[place]):
                        ended.append(place)
                        stack.rest(place)
                saving = ended
                stopping = should_stop()
                if stopping or stack.round - saved_at >= every:
                    saving = list(results)
                    saved_at = stack.round
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
    except Exception as error:  # the caller knows after which errors it can go on
        yield error


@contextlib.contextmanager
def compiled_ahead(stacks: Iterable[tuple[Simulation, ...]]) -> Iterator[Sequence[Future[Any]]]:
    """Within this context a thread compiles the programs of stacks, in this order, while others are trained."""
    # A stopped run doesn't wait for the thread: XLA can't be interrupted, and everything is saved by then. Several
    # processes don't compile ahead, as all of them would have to compile at the same moments. The thread only compiles:
    # its errors are dropped, as a batch that is reached asks again; and what the machine's free memory decides is
    # decided then, while nothing else is trained.
    thread = ThreadPoolExecutor(1, "compilation")
    try:
        # The list keeps the programs until they are asked for.
        programs = [thread.submit(program_of, stack) for stack in dict.fromkeys(stacks) if jax.process_count() == 1]
        yield programs
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
