"""Works through a sweep: batches of runs, each one program, trained wherever there is room."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedjax_bal.experiments.backends.backend import (
    Backend,
    BatchRefused,
    BatchTask,
    BuiltBatch,
    StepResult,
    WorkerLost,
)
from fedjax_bal.experiments.backends.local import LocalBackend
from fedjax_bal.experiments.display.sweep import Silent, SweepProgress
from fedjax_bal.experiments.grouping import SweepBatch, SweepRun, batch_runs
from fedjax_bal.experiments.plan import Point, Sweep
from fedjax_bal.experiments.runner import Runner
from fedjax_bal.experiments.saved_runs import SavedRun
from fedjax_bal.experiments.setup import SharedInputs, set_up
from fedjax_bal.experiments.training import BatchTraining
from fedjax_bal.runs import RunFolder, SweepFolder

_MAX_RETRIES = 3  # consecutive losses of a worker without progress before a batch is given up


class BatchCosts(NamedTuple):
    """What a group has cost.

    Attributes:
        program: the number of its program.
        runs: how many runs it has.
        compile_s: seconds that compiling took.
        train_s: seconds of all its rounds, evaluation included.
        client_updates: visits of clients that delivered.
        samples: samples they trained on.
        device_bytes: what data, states and the program take on each device.
    """

    program: int
    runs: int
    compile_s: float
    train_s: float
    client_updates: int
    samples: int
    device_bytes: int


class SweepWork:
    """A sweep under way.

    Args:
        sweep: the sweep.
        folder: the sweep's folder.
        display: what the user sees.
        data_dir: the folder with the data set's files, where it isn't embedded.
        devices: how many devices share the work, whatever the configurations say; None leaves it to them.
        should_stop: asked between dispatches; True ends the session with `Stopped`.
        most: how many runs to train together at most; None for as many as fit into memory.
        backend: what trains; None for this process.
        look: only look at what there is to do; nothing is written, and `run` isn't called.

    Attributes:
        runners: of every point that can be set up, by its number; none where it is only looked.
        broken: why a point can't be set up, by its number.
        lost: why a run could not be carried out, by point, method and seed.
        groups: what is left to do.
        costs: of the groups that were worked on in this session.
    """

    def __init__(
        self,
        sweep: Sweep,
        folder: Path,
        display: SweepProgress,
        *,
        data_dir: str | None = None,
        devices: str | int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        most: int | None = None,
        backend: Backend | None = None,
        look: bool = False,
    ) -> None:
        self.sweep, self.display, self.should_stop = sweep, display, should_stop
        self.backend: Backend = backend or LocalBackend()
        self.runners: dict[int, Runner] = {}
        self.broken: dict[int, str] = {}
        self.lost: dict[tuple[int, str, int], str] = {}
        self.costs: list[tuple[SweepBatch, BatchCosts]] = []
        self.written: Callable[[], object] = lambda: None
        self._saved: dict[tuple[int, tuple[int, int]], SavedRun | None] = {}
        workshop, tasks = SharedInputs(data_dir, devices), []
        find = self._seen if look else self._resumed
        for number, point in enumerate(sweep.points):
            try:
                tasks += find(number, point, SweepFolder(folder).point(point.label), workshop)
            except ValueError as error:
                self.broken[number] = str(error)
                display.note(f"{point.label}: left out: {error}")
        self.groups = batch_runs(tasks, most, self.backend.places)

    def run(self, written: Callable[[], object] = lambda: None) -> None:
        """Does what is left to do.

        A run that diverges, or can't be carried out, is noted; the others go on.

        Args:
            written: called after each dispatch and each group, and before stopping.

        Raises:
            Stopped: `should_stop` said so; all is saved.
        """
        self.written = written
        tasks = [self._task(number, own) for number, own in enumerate(self.groups)]
        self.backend.run_tasks(tasks, self.should_stop)

    def _task(self, number: int, own: SweepBatch) -> BatchTask:
        try:
            yield from self._attempt(number, own)
        finally:
            self.written()

    def _seen(self, number: int, point: Point, folder: RunFolder, workshop: SharedInputs) -> list[SweepRun]:
        comparison = set_up(point.config, workshop=workshop)
        runs = folder.read_summary().get("runs")
        known = {(run.get("method"), run.get("seed")): run for run in runs or [] if isinstance(run, dict)}
        tasks = []
        for index, simulation in enumerate(comparison.simulations):
            for seed in point.config.seeds:
                run = known.get((point.config.methods[index].name, seed), {})
                done = min(int(run.get("rounds") or 0), simulation.rounds)
                if done < simulation.rounds and not run.get("failure") and run.get("stopped_early") is None:
                    tasks.append(SweepRun(number, (index, seed), simulation, done))
        return tasks

    def _resumed(self, number: int, point: Point, folder: RunFolder, workshop: SharedInputs) -> list[SweepRun]:
        folder.check(point.config)
        display = Silent(lambda text: self.display.note(f"{point.label}: {text}"))
        runner = self.runners[number] = Runner(point.config, folder, display, workshop=workshop)
        runner.recall_failures()
        tasks = []
        for run, saved in runner.resume().items():
            if runner.failed(run) is not None:
                continue
            if saved and runner.over(run, saved):
                runner.conclude(run, saved.snapshot)  # a kill may have come before that
                continue
            tasks.append(
                SweepRun(number, run, runner.comparison.simulations[run[0]], saved.snapshot.round if saved else 0)
            )
            self._saved[number, run] = saved
        return tasks

    def _attempt(self, number: int, own: SweepBatch, tries: int = 1) -> BatchTask:
        """Carries a group through: in two halves where all of it doesn't fit into memory, again where it gets lost."""
        saved = [self._saved.pop((task.point, task.run)) for task in own.tasks]
        try:
            training = BatchTraining(own, self.runners, saved, _BatchObserver(self, number, own))
            yield from training.task(self.backend)
        except WorkerLost as lost:
            yield from self._again(number, own, lost, tries)
        except BatchRefused as error:
            self._give_up(own, error)
        except (ValueError, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            if len(own.tasks) > 1 and not self._begun(own):
                yield from self._halve(number, own, saved)
            else:
                self._give_up(own, error)

    def _begun(self, own: SweepBatch) -> bool:
        """Whether a group's runs have come further than they were when they were put into it."""
        return any(worked is own and cost.train_s > 0 for worked, cost in self.costs)

    def _halve(self, number: int, own: SweepBatch, saved: list[SavedRun | None]) -> BatchTask:
        middle = len(own.tasks) // 2
        for part in (slice(0, middle), slice(middle, None)):
            tasks = own.tasks[part]
            self._saved |= {(task.point, task.run): kept for task, kept in zip(tasks, saved[part], strict=True)}
            yield from self._attempt(number, own._replace(tasks=tasks))

    def _again(self, number: int, own: SweepBatch, lost: WorkerLost, tries: int) -> BatchTask:
        """Goes on from the last checkpoints of a group's runs."""
        left = [task for task in map(self._rewound, own.tasks) if task is not None]
        tries = 1 if any(task.round > own.tasks[0].round for task in left) else tries + 1
        if tries > _MAX_RETRIES:
            self._give_up(
                own._replace(tasks=tuple(left)), WorkerLost(f"{lost} (tried {_MAX_RETRIES} times without getting on)")
            )
            return
        rounds = sorted({task.round for task in left})  # one, unless a checkpoint is damaged
        for round in rounds:
            self.display.note(f"{self._called(own)}: {lost}; going on after round {round}")
            yield from self._attempt(number, SweepBatch(own.program, tuple(t for t in left if t.round == round)), tries)

    def _rewound(self, task: SweepRun) -> SweepRun | None:
        """A run at its last checkpoint; None for one that is over."""
        runner = self._runner(task)
        if runner.failed(task.run) is not None:
            return None
        saved = runner.rewind(task.run)
        if saved and runner.over(task.run, saved):
            return None
        self._saved[task.point, task.run] = saved
        return task._replace(round=saved.snapshot.round if saved else 0)

    def _called(self, own: SweepBatch) -> str:
        first = own.tasks[0]
        others = f" and {len(own.tasks) - 1} more" if len(own.tasks) > 1 else ""
        return f"{self.sweep.points[first.point].label}, {self._runner(first).name(first.run)[0]}{others}"

    def _give_up(self, own: SweepBatch, error: Exception) -> None:
        memory = isinstance(error, MemoryError | RuntimeError)
        reason = (
            "not enough memory; train fewer runs at a time with --together, or fewer clients" if memory else str(error)
        )
        for task in own.tasks:
            runner = self._runner(task)
            self.lost[(task.point, *runner.name(task.run))] = reason
            self.display.note(f"{self.sweep.points[task.point].label}, {runner.name(task.run)[0]}: left out: {reason}")

    def count(self, number: int, place: int, step: StepResult) -> None:
        """Counts and shows a dispatch of a batch; `place` is that of the batch's costs."""
        own, cost = self.costs[place]
        updates = sum(result.client_updates for result in step.results if result is not None)
        samples = sum(result.samples for result in step.results if result is not None)
        done = step.round - self.groups[number].tasks[0].round
        self.display.advance(number, done, updates / step.seconds)
        counts = {"client_updates": cost.client_updates + updates, "samples": cost.samples + samples}
        self.costs[place] = own, cost._replace(train_s=cost.train_s + step.seconds, **counts)

    def _runner(self, task: SweepRun) -> Runner:
        return self.runners[task.point]


class _BatchObserver:
    """Counts and shows what a batch of a sweep does; `number` is that of the batch that was announced."""

    def __init__(self, work: SweepWork, number: int, batch: SweepBatch) -> None:
        self._work, self._number, self._batch = work, number, batch
        self._place = 0

    def compiling(self) -> None:
        self._work.display.compiling(self._number)

    def built(self, built: BuiltBatch) -> None:
        costs, batch = self._work.costs, self._batch
        self._place = len(costs)
        cost = BatchCosts(batch.program, len(batch.tasks), built.compile_s, 0.0, 0, 0, built.device_bytes)
        costs.append((batch, cost))

    def stepped(self, step: StepResult) -> None:
        self._work.count(self._number, self._place, step)

    def written(self) -> None:
        self._work.written()

    def should_stop(self) -> bool:
        return self._work.should_stop()
