"""Works through a sweep: batches of runs, each one program, trained by a backend."""

import contextlib
import dataclasses
import os
from collections import deque
from collections.abc import Callable

from fedjax_bal.config import check_methods
from fedjax_bal.experiments.backends.local import LocalBackend
from fedjax_bal.experiments.display import Progress
from fedjax_bal.experiments.grouping import SweepBatch, SweepRun, batch_runs
from fedjax_bal.experiments.outline import find_left, program_line
from fedjax_bal.experiments.plan import Point, Sweep
from fedjax_bal.experiments.runner import Runner
from fedjax_bal.experiments.saved_runs import SavedRun
from fedjax_bal.experiments.setup import SharedInputs
from fedjax_bal.experiments.summary import Cost
from fedjax_bal.experiments.training import (
    Backend,
    BatchRefused,
    BatchTraining,
    BuiltBatch,
    Event,
    Started,
    StepResult,
    WorkerLost,
)
from fedjax_bal.registry import PluginError
from fedjax_bal.runs import RunFolder, SweepFolder

_MAX_RETRIES = 3  # consecutive losses of a worker without progress before a batch is given up


@dataclasses.dataclass
class BatchCosts:
    """Cost of a batch in this session."""

    batch: SweepBatch
    cost: Cost
    device_bytes: int  # of data, states and the program on each device


class SweepWork:
    """A sweep in progress.

    Args:
        sweep: the sweep.
        folder: its folder.
        display: the progress display.
        claims: holds the locks on the points of a part; the whole sweep's own lock keeps others from them.
        data_dir: the folder with the data set's files, unless that is embedded.
        devices: number of devices that share the work, whatever the configurations say; None leaves it to them.
        should_stop: asked between dispatches; True ends the session with `Stopped`.
        most: the most runs of a batch; None for as many as fit into memory.
        backend: trains the batches; None for this process.
        look: only find out what is left to do; nothing is written, and `run` isn't called.
        detail: told about each compiled program; None for nothing.

    Attributes:
        runners: the runner of every point that can be set up, by its number; none with `look`.
        broken: the reason why a point can't be set up, by its number.
        lost: the reason why a run could not be trained, by point, method and seed.
        batches: the batches that are left to train.
        data_lines: how many rows and clients of the data the points use.
        costs: costs of the batches that were trained in this session.
    """

    def __init__(
        self,
        sweep: Sweep,
        folder: SweepFolder,
        display: Progress,
        claims: contextlib.ExitStack,
        *,
        data_dir: str | os.PathLike | None = None,
        devices: str | int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        most: int | None = None,
        backend: Backend | None = None,
        look: bool = False,
        detail: Callable[[str], None] | None = None,
    ) -> None:
        self.sweep, self.display, self.should_stop, self.detail = sweep, display, should_stop, detail
        self._claims, self._part = claims, folder.part
        self.backend: Backend = backend or LocalBackend()
        self.runners: dict[int, Runner] = {}
        self.broken: dict[int, str] = {}
        self.lost: dict[tuple[int, str, int], str] = {}
        self.costs: list[BatchCosts] = []
        self._saved: dict[tuple[int, tuple[int, int]], SavedRun | None] = {}
        inputs, tasks = SharedInputs(data_dir, devices, folder.read_devices()), []
        for number, point in enumerate(sweep.points):
            try:
                check_methods(point.config, "")
                own = folder.point(point.label)
                left = (
                    find_left(number, point.config, own, inputs) if look else self._resume(number, point, own, inputs)
                )
                tasks += left
            except ValueError as error:
                self.broken[number] = str(error)
                display.note(f"{point.label}: left out: {error}")
        self.batches, self.data_lines = batch_runs(tasks, most, self.backend.places), inputs.data_lines()

    def run(self, written: Callable[[], object] = lambda: None) -> None:
        """Trains the batches that are left; a run that diverges or can't be trained is noted, and the others go on.

        Calls `written` after all that is written. Raises `Stopped` because the user wants it.
        """
        waiting = deque(self._training(batch, number) for number, batch in enumerate(self.batches))
        with contextlib.closing(self.backend.train(waiting, self.should_stop)) as events:
            for training, event in events:
                self._show(training, event)
                training.take(event)
                if isinstance(event, WorkerLost):
                    waiting += self._again(training, event)
                elif isinstance(event, BatchRefused | PluginError):  # fewer runs would not help
                    self._give_up(training.batch, event)
                elif isinstance(event, Exception):
                    waiting += self._halves(training, event)
                written()

    def _training(self, batch: SweepBatch, number: int, tries: int = 1) -> BatchTraining:
        saved = [self._saved.pop((task.point, task.run)) for task in batch.tasks]
        return BatchTraining(batch, self.runners, saved, number, tries)

    def _resume(self, number: int, point: Point, folder: RunFolder, inputs: SharedInputs) -> list[SweepRun]:
        if self._part is None:
            folder.check(point.config)
        else:
            self._claims.enter_context(folder.claimed(point.config))
        display = Progress(self.display.console, plain=True, prefix=f"{point.label}: ")  # never started
        runner = Runner(point.config, folder, display, inputs=inputs)
        runner.recall_failures()
        tasks = []
        for run, saved in runner.resume().items():
            if runner.states[run].failure is not None:
                continue
            done = saved.snapshot.round if saved else 0
            if saved and runner.over(run, done):
                runner.conclude(run, saved.snapshot)  # in case the session was killed before it
                continue
            tasks.append(SweepRun(number, run, runner.comparison.simulation(run), done))
            self._saved[number, run] = saved
        self.runners[number] = runner  # only now: `finish` must not write into a folder that can't be resumed
        return tasks

    def _halves(self, training: BatchTraining, error: Exception) -> list[BatchTraining]:
        """Two halves of a batch that doesn't fit into memory; none for a single run, or one that fitted before."""
        if not isinstance(error, ValueError | MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise error
        batch = training.batch
        if len(batch.tasks) == 1 or any(costs.batch is batch and costs.cost.train_s > 0 for costs in self.costs):
            self._give_up(batch, error)
            return []
        left = [task for task in map(self._rewound, batch.tasks) if task is not None]
        halves = (left[: len(left) // 2], left[len(left) // 2 :])
        return [self._training(batch._replace(tasks=tuple(half)), training.number) for half in halves]

    def _again(self, training: BatchTraining, lost: WorkerLost) -> list[BatchTraining]:
        """A batch whose worker was lost, from its runs' last checkpoints."""
        batch, tries = training.batch, training.tries + 1
        left = [task for task in map(self._rewound, batch.tasks) if task is not None]
        if any(task.round > batch.tasks[0].round for task in left):
            tries = 1
        if tries > _MAX_RETRIES:
            reason = WorkerLost(f"{lost} (tried {_MAX_RETRIES} times without getting on)")
            self._give_up(batch._replace(tasks=tuple(left)), reason)
            return []
        again = []
        for round in sorted({task.round for task in left}):  # one, unless a checkpoint is damaged
            self.display.note(f"{self.title_of(batch)}: {lost}; going on after round {round}")
            alike = tuple(task for task in left if task.round == round)
            again.append(self._training(batch._replace(tasks=alike), training.number, tries))
        return again

    def _rewound(self, task: SweepRun) -> SweepRun | None:
        """A run at its last checkpoint; None for a run that is over."""
        runner = self.runners[task.point]
        if runner.states[task.run].failure is not None:
            return None
        saved = runner.rewind(task.run)
        if saved and runner.over(task.run, saved.snapshot.round):
            return None
        self._saved[task.point, task.run] = saved
        return task._replace(round=saved.snapshot.round if saved else 0)

    def _show(self, training: BatchTraining, event: Event) -> None:
        """Counts and shows what has become of a batch."""
        batch, number = training.batch, training.number
        if isinstance(event, Started):
            self.display.compiling(number)
        elif isinstance(event, BuiltBatch):
            self.costs.append(BatchCosts(batch, Cost(event.compile_s), event.device_bytes))
            self.display.advance(number, batch.tasks[0].round, 0.0)
            if self.detail:
                self.detail(program_line(self.title_of(batch), event))
        elif isinstance(event, StepResult):
            costs = next(costs for costs in self.costs if costs.batch is batch)
            costs.cost = costs.cost.after(event.seconds, event.results.values())
            pace = sum(result.client_updates for result in event.results.values()) / event.seconds
            # A batch that was halved or resumed is shown as a part of the one that was announced.
            self.display.advance(number, event.round, pace)
            if len(event.ended) == len(event.results) and event.round < batch.tasks[0].simulation.rounds:
                self.display.ended(number)

    def title_of(self, batch: SweepBatch) -> str:
        """The first run of a batch, and the number of the others."""
        first = batch.tasks[0]
        others = f" and {len(batch.tasks) - 1} more" if len(batch.tasks) > 1 else ""
        return f"{self.sweep.points[first.point].label}, {self._method_of(first)}{others}"

    def _method_of(self, task: SweepRun) -> str:
        return self.runners[task.point].states[task.run].method

    def _give_up(self, batch: SweepBatch, error: Exception) -> None:
        memory = isinstance(error, MemoryError | RuntimeError)
        reason = (
            "not enough memory; train fewer runs at a time with --together, or fewer clients" if memory else str(error)
        )
        for task in batch.tasks:
            method = self._method_of(task)
            self.lost[task.point, method, task.run[1]] = reason
            self.display.note(f"{self.sweep.points[task.point].label}, {method}: left out: {reason}")
