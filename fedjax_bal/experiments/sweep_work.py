"""Works through a sweep: batches of runs, each one program, trained by a backend."""

import dataclasses
import os
from collections.abc import Callable

from fedjax_bal.config import check_methods
from fedjax_bal.experiments.backends.backend import Backend, BatchRefused, BatchTask, BuiltBatch, StepResult, WorkerLost
from fedjax_bal.experiments.backends.local import LocalBackend
from fedjax_bal.experiments.display.sweep import Silent, SweepProgress
from fedjax_bal.experiments.grouping import SweepBatch, SweepRun, batch_runs
from fedjax_bal.experiments.outline import program_line
from fedjax_bal.experiments.plan import Point, Sweep
from fedjax_bal.experiments.preview import find_left
from fedjax_bal.experiments.runner import Runner
from fedjax_bal.experiments.saved_runs import SavedRun
from fedjax_bal.experiments.setup import SharedInputs
from fedjax_bal.experiments.summary import Cost
from fedjax_bal.experiments.training import BatchTraining
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
        display: SweepProgress,
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
        self.backend: Backend = backend or LocalBackend()
        self.runners: dict[int, Runner] = {}
        self.broken: dict[int, str] = {}
        self.lost: dict[tuple[int, str, int], str] = {}
        self.costs: list[BatchCosts] = []
        self.written: Callable[[], object] = lambda: None
        self._saved: dict[tuple[int, tuple[int, int]], SavedRun | None] = {}
        inputs, tasks = SharedInputs(data_dir, devices, folder.read_devices()), []
        find = self._find_left if look else self._resume
        for number, point in enumerate(sweep.points):
            try:
                check_methods(point.config, "")
                tasks += find(number, point, folder.point(point.label), inputs)
            except ValueError as error:
                self.broken[number] = str(error)
                display.note(f"{point.label}: left out: {error}")
        self.batches, self.data_lines = batch_runs(tasks, most, self.backend.places), inputs.data_lines()

    def run(self, written: Callable[[], object] = lambda: None) -> None:
        """Trains the batches that are left; a run that diverges or can't be trained is noted, and the others go on.

        Calls `written` after each dispatch and each batch, and before it raises `Stopped` because the user wants it.
        """
        self.written = written
        tasks = [self._task(number, batch) for number, batch in enumerate(self.batches)]
        self.backend.run_tasks(tasks, self.batches, self.should_stop)

    def _task(self, number: int, batch: SweepBatch) -> BatchTask:
        try:
            yield from self._attempt(number, batch)
        finally:
            self.written()

    def _find_left(self, number: int, point: Point, folder: RunFolder, inputs: SharedInputs) -> list[SweepRun]:
        return find_left(number, point.config, folder, inputs)

    def _resume(self, number: int, point: Point, folder: RunFolder, inputs: SharedInputs) -> list[SweepRun]:
        folder.check(point.config)
        display = Silent(lambda text: self.display.note(f"{point.label}: {text}"))
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

    def _attempt(self, number: int, batch: SweepBatch, tries: int = 1) -> BatchTask:
        """Trains a batch: in two halves if it doesn't fit into memory, again if its worker is lost."""
        saved = [self._saved.pop((task.point, task.run)) for task in batch.tasks]
        try:
            training = BatchTraining(batch, self.runners, saved, _BatchObserver(self, number, batch))
            yield from training.task(self.backend)
        except WorkerLost as lost:
            yield from self._retry(number, batch, lost, tries)
        except (BatchRefused, PluginError) as error:  # fewer runs would not help
            self._give_up(batch, error)
        except (ValueError, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            if len(batch.tasks) > 1 and not self._has_progress(batch):
                yield from self._halve(number, batch, saved)
            else:
                self._give_up(batch, error)

    def _has_progress(self, batch: SweepBatch) -> bool:
        """Whether a batch's runs have made progress since they were put into it."""
        return any(own.batch is batch and own.cost.train_s > 0 for own in self.costs)

    def _halve(self, number: int, batch: SweepBatch, saved: list[SavedRun | None]) -> BatchTask:
        middle = len(batch.tasks) // 2
        for part in (slice(0, middle), slice(middle, None)):
            tasks = batch.tasks[part]
            self._saved |= {(task.point, task.run): kept for task, kept in zip(tasks, saved[part], strict=True)}
            yield from self._attempt(number, batch._replace(tasks=tasks))

    def _retry(self, number: int, batch: SweepBatch, lost: WorkerLost, tries: int) -> BatchTask:
        """Resumes a batch's runs from their last checkpoints."""
        left = [task for task in map(self._rewound, batch.tasks) if task is not None]
        tries = 1 if any(task.round > batch.tasks[0].round for task in left) else tries + 1
        if tries > _MAX_RETRIES:
            lost = WorkerLost(f"{lost} (tried {_MAX_RETRIES} times without getting on)")
            self._give_up(batch._replace(tasks=tuple(left)), lost)
            return
        for round in sorted({task.round for task in left}):  # one, unless a checkpoint is damaged
            self.display.note(f"{self.title_of(batch)}: {lost}; going on after round {round}")
            alike = tuple(task for task in left if task.round == round)
            yield from self._attempt(number, batch._replace(tasks=alike), tries)

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


class _BatchObserver:
    """Counts and shows the progress of a sweep's batch, announced under `number`."""

    def __init__(self, work: SweepWork, number: int, batch: SweepBatch) -> None:
        self._work, self._number = work, number
        self._own = BatchCosts(batch, Cost(), 0)

    def compiling(self) -> None:
        self._work.display.compiling(self._number)

    def built(self, built: BuiltBatch) -> None:
        self._own.cost, self._own.device_bytes = Cost(built.compile_s), built.device_bytes
        self._work.costs.append(self._own)
        if self._work.detail:
            self._work.detail(program_line(self._work.title_of(self._own.batch), built))

    def stepped(self, step: StepResult) -> None:
        before = self._own.cost
        self._own.cost = before.after(step.seconds, [result for result in step.results if result is not None])
        pace = (self._own.cost.client_updates - before.client_updates) / step.seconds
        # A batch that was halved or resumed is shown as a part of the one that was announced.
        done = step.round - self._work.batches[self._number].tasks[0].round
        self._work.display.advance(self._number, done, pace)

    def written(self) -> None:
        self._work.written()

    def should_stop(self) -> bool:
        return self._work.should_stop()
