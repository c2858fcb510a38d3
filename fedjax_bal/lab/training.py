"""Trains one batch of runs in this process or in a cluster's worker; writes no files."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax

from fedjax_bal.engine.device import Layout
from fedjax_bal.engine.host import DispatchResult, Member, Simulation, Snapshot, open_stack, program_of
from fedjax_bal.lab.environment import device_name
from fedjax_bal.lab.schema import RunId
from fedjax_bal.lab.setup import Comparison
from fedjax_bal.registry import plugin_errors


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """Training stopped at the user's request, after saving everything needed to resume."""


class WorkerLost(Exception):  # noqa: N818 - an event, not a mistake
    """The worker that trained a batch is gone, and so are the results it hadn't sent; the message says why."""


class BatchRefused(Exception):  # noqa: N818 - an event, not a mistake
    """A worker can't train a batch of any size; the message gives the reason and a remedy."""


class RunStart(NamedTuple):
    """A run at the start of its training, or at the round where it resumes."""

    comparison: Comparison
    run: RunId
    snapshot: Snapshot | None  # None before the first round
    lines: Sequence[Mapping[str, Any]]  # metrics of earlier evaluated rounds

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
    device: str  # for people
    layout: Layout


class StepResult(NamedTuple):
    """Results of one dispatch, by the runs' positions in the batch."""

    results: dict[int, DispatchResult]  # of the trained runs, without states
    failures: dict[int, str]  # of runs that diverged in this dispatch
    round: int  # finished rounds
    seconds: float
    snapshots: dict[int, Snapshot]  # of runs to be saved now
    ended: list[int]  # runs that are complete
    stopped: bool  # the user wants to stop, and some runs aren't finished


Event = Started | BuiltBatch | StepResult | Exception
"""An event in the training of a batch. An exception is always the last one."""


def is_over(comparison: Comparison, run: RunId, round: int, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether a run has ended, by its rounds or by early stopping; resuming doesn't change the round."""
    simulation = comparison.simulation(run)
    between = round % simulation.rounds_per_dispatch != 0  # only a shorter run can end there
    stopping = comparison.methods[run.method].training.early_stopping.rule
    return round >= simulation.rounds or (not between and stopping.should_stop(lines))


def train_batch(starts: Sequence[RunStart], should_stop: Callable[[], bool]) -> Iterator[Event]:
    """Trains runs with equal stacking keys, all at the same round, until they end.

    Yields the compiled program, then the results of each dispatch; an exception that ends the training is the last
    event. The next step donates a step's snapshots, so they must be saved before requesting it. `should_stop` is called
    after each dispatch; if True, all runs are saved and training ends.
    """
    try:
        with plugin_errors():
            every = min(start.comparison.methods[start.run.method].execution.checkpoint_every for start in starts)
            lines = [list(start.lines) for start in starts]
            with plugin_errors():
                members = [Member(start.simulation, start.run.seed) for start in starts]
                stack = open_stack(members, [start.snapshot for start in starts])
                starts = [start._replace(snapshot=None) for start in starts]  # the stack owns their memory from here on
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
                # Runs that end are always saved; all runs if a checkpoint is due or the user stops.
                saving = ended
                stopping = should_stop()
                if stopping or stack.round - saved_at >= every:
                    saving = list(results)
                    saved_at = stack.round
                # No reference to the snapshots remains here, so their memory is freed once the receiver has saved them.
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
    except Exception as error:  # the caller knows which errors allow training to continue
        yield error


@contextlib.contextmanager
def compiled_ahead(stacks: Iterable[tuple[Simulation, ...]]) -> Iterator[Sequence[Future[Any]]]:
    """Returns a context in which a thread compiles the programs of stacks, in order, while others train."""
    # A stopped run doesn't wait for the thread: XLA can't be interrupted, and everything is saved by then. With several
    # processes nothing is compiled ahead, because all would have to compile at the same moments. The thread drops
    # errors, because the batch compiles again when it is reached. Decisions that depend on free memory are also made
    # then, when nothing else trains.
    thread = ThreadPoolExecutor(1, "compilation")
    try:
        # The list keeps the programs alive until they are used.
        programs = [thread.submit(program_of, stack) for stack in dict.fromkeys(stacks) if jax.process_count() == 1]
        yield programs
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
