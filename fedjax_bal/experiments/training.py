"""Trains batches of runs, and saves them as they go.

A comparison trains batches of one run; a sweep, batches of as many runs as one program can train together. Training
and writing are kept apart: `train_batch` trains, here or on a machine of a cluster, and yields the results; a
`BatchTraining` writes them, always in the process that owns the folders.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedjax_bal.config import MethodConfig
from fedjax_bal.engine.device import Layout
from fedjax_bal.engine.host import DispatchResult, Member, Simulation, Snapshot, open_stack
from fedjax_bal.experiments.environment import device_name
from fedjax_bal.experiments.grouping import SweepBatch
from fedjax_bal.experiments.saved_runs import SavedRun, unstarted
from fedjax_bal.registry import plugin_errors

if TYPE_CHECKING:
    from fedjax_bal.experiments.runner import Runner


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
