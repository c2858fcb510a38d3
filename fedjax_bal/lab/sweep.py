"""Trains a sweep in batches of runs, one program per batch, and writes the table of results."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fedjax_bal.config import check_methods, resolved_sheet
from fedjax_bal.lab.display import Progress, Unit
from fedjax_bal.lab.loop import Callback, RunBatch, RunTask, batch_runs, runs_left, steps_per_round, train
from fedjax_bal.lab.outline import (
    batch_title,
    describe_destination,
    describe_other_points,
    program_line,
    remaining_runs,
    sweep_outline,
)
from fedjax_bal.lab.post_training import PostTraining
from fedjax_bal.lab.recorder import Recorder
from fedjax_bal.lab.schema import RunId
from fedjax_bal.lab.setup import SharedInputs
from fedjax_bal.lab.summary import Cost
from fedjax_bal.lab.sweep_folder import SweepFolder
from fedjax_bal.lab.sweep_plan import Sweep
from fedjax_bal.lab.training import BatchRefused, BuiltBatch, StepResult, Stopped, WorkerLost
from fedjax_bal.lab.training_line import training_line
from fedjax_bal.metrics import METRICS
from fedjax_bal.registry import PluginError

if TYPE_CHECKING:
    from fedjax_bal.lab.ray_cluster import RayBackend

COSTS = ("program", "runs_together", "compile_s", "client_updates_per_s", "samples_per_s", "device_bytes")

_MAX_RETRIES = 3  # consecutive losses of a worker without progress after which a batch is given up

# The whole table is written each time; doing so after every run would take quadratic time. So a write waits while
# writing has taken more than this share of the time so far. A small table, written in milliseconds, still shows every
# row at once; a table of thousands of runs lags by seconds.
_SHARE = 1 / 20


class SweepRun(NamedTuple):
    """A run of a sweep."""

    point: int  # number of its point
    id: RunId


class SweepSession(Callback):
    """One session of a sweep: the remaining runs, their outcomes, and the table of results.

    Args:
        sweep: the sweep, or the part of it that this session trains.
        folder: its folder, already claimed.
        display: the progress display.
        max_batch_size: maximum number of runs per batch; None for as many as fit into memory.
        backend: trains the batches; None for this process.
        verbose: shows each compiled program, too.

    Attributes:
        recorders: the recorders of all points that can be set up, by point number; empty in a dry run.
        setup_errors: why a point can't be set up, by point number.
        training_errors: why a run could not be trained.
        batches: the remaining batches.
        costs: the costs of batches trained in this session.
        device_bytes: the memory that they take on each device: data, states and the program.
    """

    def __init__(
        self,
        sweep: Sweep,
        folder: SweepFolder,
        display: Progress,
        *,
        max_batch_size: int | None,
        backend: "RayBackend | None",
        verbose: bool,
    ) -> None:
        self.sweep = sweep
        self.folder = folder
        self.display = display
        self.max_batch_size = max_batch_size
        self.backend = backend
        self.verbose = verbose
        self.callbacks = (PostTraining(), self)
        self.recorders: dict[int, Recorder] = {}
        self.setup_errors: dict[int, str] = {}
        self.training_errors: dict[SweepRun, str] = {}
        self.batches: list[RunBatch] = []
        self.costs: dict[RunBatch, Cost] = {}
        self.device_bytes: dict[RunBatch, int] = {}
        self._began = time.monotonic()
        self._writing_s = 0.0
        self._written = 0  # rows of the table

    def prepare(self, inputs: SharedInputs, claims: contextlib.ExitStack, *, dry_run: bool) -> None:
        """Resumes all points and collects the remaining batches; records points that can't be set up.

        A part of a sweep locks its points until `claims` is closed. A dry run changes nothing.
        """
        tasks: list[RunTask] = []
        for number, point in enumerate(self.sweep.points):
            folder = self.folder.point(point.label)
            note = lambda text, label=point.label: self.display.note(f"{label}: {text}")
            try:
                check_methods(point.config, "")
                if dry_run:
                    tasks += remaining_runs(number, point.config, folder, inputs)
                    continue
                if self.folder.part is None:  # the lock of the whole sweep covers its points
                    folder.check(point.config)
                else:
                    claims.enter_context(folder.claimed(point.config))
                recorder = Recorder(point.config, folder, note, inputs, swept=True)
                recorder.recall_failures()
                recorder.resume()
                tasks += runs_left(recorder, self.callbacks, number)
                self.recorders[number] = recorder  # set last: `finish` must not write into a folder that can't resume
            except ValueError as error:
                self.setup_errors[number] = str(error)
                note(f"left out: {error}")
        self.batches = batch_runs(tasks, self.max_batch_size, self.backend.concurrent_batches if self.backend else 1)

    def train(self, should_stop: Callable[[], bool]) -> None:
        """Trains the remaining batches; a run that diverges or can't be trained is noted, and the others continue."""
        elsewhere = self.backend and self.backend.train
        train(self.batches, self.callbacks, should_stop, elsewhere=elsewhere, retry=self.retry)

    def retry(self, batch: RunBatch, error: Exception) -> list[RunBatch]:
        """Returns the replacements of a failed batch; none if neither fewer runs nor another try would help."""
        if isinstance(error, BatchRefused | PluginError):
            self._give_up(batch.tasks, str(error))
            return []
        if isinstance(error, WorkerLost):
            left = self._rewind(batch)
            # Progress since the last loss resets the count.
            attempts = 1 if any(task.round > batch.tasks[0].round for task in left) else batch.attempts + 1
            if attempts > _MAX_RETRIES:
                self._give_up(left, f"{error} (tried {_MAX_RETRIES} times without getting on)")
                return []
            again = []
            for round in sorted({task.round for task in left}):  # one round, unless a checkpoint is damaged
                self.display.note(f"{batch_title(self.sweep, batch)}: {error}; resuming after round {round}")
                tasks = tuple(task for task in left if task.round == round)
                again.append(dataclasses.replace(batch, tasks=tasks, attempts=attempts))
            return again
        # Any other error is a bug rather than a property of this batch.
        if not isinstance(error, ValueError | MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise error
        # A batch that has trained before isn't too large, so halving it would not help.
        if len(batch.tasks) == 1 or (batch in self.costs and self.costs[batch].train_s > 0):
            memory = isinstance(error, MemoryError | RuntimeError)
            remedy = "not enough memory; train fewer runs at a time with --together, or fewer clients"
            self._give_up(batch.tasks, remedy if memory else str(error))
            return []
        # The batch may be too large for memory or devices.
        left = self._rewind(batch)
        halves = (left[: len(left) // 2], left[len(left) // 2 :])
        return [dataclasses.replace(batch, tasks=tuple(half), attempts=1) for half in halves if half]

    def _rewind(self, batch: RunBatch) -> list[RunTask]:
        """Resets the runs of a batch to their last checkpoints; returns those that aren't over."""
        tasks = []
        for task in batch.tasks:
            if task.recorder.states[task.run].failure is None:
                task.recorder.rewind(task.run)
                if not task.recorder.is_over(task.run):
                    tasks.append(task._replace(round=task.recorder.states[task.run].round))
        return tasks

    def _give_up(self, tasks: Iterable[RunTask], reason: str) -> None:
        """Records why runs are left out, also in the table."""
        for task in tasks:
            self.training_errors[SweepRun(task.point, task.run)] = reason
            method = task.recorder.states[task.run].method
            self.display.note(f"{self.sweep.points[task.point].label}, {method}: left out: {reason}")
        self.update()

    def started(self, batch: RunBatch) -> None:
        """Shows that a program is being compiled."""
        self.display.compiling(batch.number)
        self.update()  # includes the points that can't be set up

    def built(self, batch: RunBatch, built: BuiltBatch) -> None:
        """Adds the cost of compilation, and shows that training begins."""
        self.costs[batch] = Cost(built.compile_s)
        self.device_bytes[batch] = built.device_bytes
        self.display.advance(batch.number, batch.tasks[0].round, 0.0)
        if self.verbose:
            self.display.note(program_line(batch_title(self.sweep, batch), built))

    def stepped(self, batch: RunBatch, step: StepResult) -> None:
        """Adds the cost of a step, shows the batch's progress, and adds finished runs to the table."""
        self.costs[batch] = self.costs[batch].after(step.seconds, step.results.values())
        updates = sum(result.client_updates for result in step.results.values())
        # The display shows a halved or resumed batch as the one that was announced.
        self.display.advance(batch.number, step.round, updates / step.seconds)
        if len(step.ended) == len(step.results) and step.round < batch.tasks[0].simulation.rounds:
            self.display.ended(batch.number)
        self.update()

    def update(self) -> None:
        """Writes finished runs to the table, so that a kill doesn't lose them, unless writing has taken too long."""
        now = time.monotonic()
        over = [run for run in self._runs() if self._is_over(run)]
        if len(over) > self._written and self._writing_s <= _SHARE * (now - self._began):
            self._written = len(self._write(over))
            self._writing_s += time.monotonic() - now

    def finish(self) -> list[dict[str, Any]]:
        """Writes the metrics and summaries of all points, and a table row for every run; returns the rows.

        A row has the swept keys, `point`, `method`, `seed`, `status`, the run's metrics, `COSTS` and `failure`. Rates
        are those of the run's whole batch.
        """
        for recorder in self.recorders.values():
            recorder.finish()
        return self._write(list(self._runs()))

    def _is_over(self, run: SweepRun) -> bool:
        if run.point in self.setup_errors or run in self.training_errors:
            return True
        state = self.recorders[run.point].states[run.id]
        return state.concluded or state.failure is not None

    def _runs(self) -> Iterator[SweepRun]:
        """Iterates over all runs in table order."""
        for number, point in enumerate(self.sweep.points):
            for index in range(len(point.config.methods)):
                yield from (SweepRun(number, RunId(index, seed)) for seed in point.config.seeds)

    def _name(self, run: SweepRun) -> tuple[str, int]:
        """Returns a run's method and seed."""
        return self.sweep.points[run.point].config.methods[run.id.method].name, run.id.seed

    def _row(self, run: SweepRun) -> dict[str, Any]:
        """Builds the row of a run, without costs."""
        method, seed = self._name(run)
        refused = self.setup_errors.get(run.point)
        lost = self.training_errors.get(run)
        entry: Mapping[str, Any] = {}
        if refused is None and self.recorders[run.point].states[run.id].has_results:
            entry = self.recorders[run.point].summarise(run.id)
        if lost or refused is not None:
            status = "failed" if lost else "refused"
        elif entry.get("failure"):
            status = "diverged"
        else:
            wanted = self.recorders[run.point].comparison.methods[run.id.method].training.rounds
            finished = entry.get("rounds", 0) >= wanted or entry.get("stopped_early") is not None
            status = "done" if finished else "unfinished"
        return {
            **self.sweep.points[run.point].values,
            "point": self.sweep.points[run.point].label,
            "method": method,
            "seed": seed,
            "status": status,
            **{key: entry.get(key) for key, metric in METRICS.items() if metric.of_run and metric.swept},
            **dict.fromkeys(COSTS),
            "failure": refused or entry.get("failure") or lost,
        }

    def _write(self, runs: list[SweepRun]) -> list[dict[str, Any]]:
        """Writes and returns the rows of runs, including earlier sessions' costs; for a part, writes only the costs."""
        rows = [self._row(run) for run in runs]
        costs = self.folder.read_costs()
        for batch, cost in self.costs.items():
            figures = {
                "program": batch.program + 1,
                "runs_together": len(batch.tasks),
                "compile_s": round(cost.compile_s, 3),
                **{name: rate or 0.0 for name, rate in cost.rates().items()},
                "device_bytes": self.device_bytes[batch],
            }
            for task in batch.tasks:
                costs[self.sweep.points[task.point].label, *self._name(SweepRun(task.point, task.run))] = figures
        self.folder.write_costs(costs)
        for row in rows:
            figures = costs.get((row["point"], row["method"], row["seed"]), {})
            row |= {key: figures[key] for key in COSTS if key in figures}
        if self.folder.part is None:
            self.folder.write_results(rows)
        return rows


def run_sweep(
    sweep: Sweep,
    folder: SweepFolder,
    display: Progress,
    *,
    dry_run: bool,
    data_dir: str | os.PathLike | None = None,
    devices: str | int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    most: int | None = None,
    backend: "RayBackend | None" = None,
    verbose: bool = False,
) -> tuple[list[dict[str, Any]], bool]:
    """Prints the outline of a sweep, trains its batches, and writes the table.

    Args:
        sweep: the sweep.
        folder: its folder, claimed.
        display: shows outline and progress.
        dry_run: only print the outline.
        data_dir: the folder with the data set's files, unless they are embedded.
        devices: number of devices that share the work; overrides the configurations unless None.
        should_stop: called between dispatches; True ends the session.
        most: maximum number of runs per batch; None for as many as fit into memory.
        backend: trains the batches; None for this process.
        verbose: shows each compiled program, too.

    Returns:
        The rows of the table, and whether the user stopped the sweep.
    """
    folder.check_owner(sweep.text, sweep.configs)
    inputs = SharedInputs(data_dir, devices, folder.read_devices(), plan=dry_run)
    if not dry_run:
        folder.begin(sweep.text, sweep.configs)
    others = folder.other_points(sweep.configs)
    if folder.part is not None:
        number, parts = folder.part
        sweep = sweep._replace(points=sweep.points[number - 1 :: parts])
    session = SweepSession(sweep, folder, display, max_batch_size=most, backend=backend, verbose=verbose)
    with contextlib.ExitStack() as claims:
        session.prepare(inputs, claims, dry_run=dry_run)
        outline = sweep_outline(sweep, session.batches, session.setup_errors, backend.about() if backend else "")
        axes: dict[str, list[Any]] = {}  # of the points of this part
        for key, value in (item for point in sweep.points for item in point.values.items()):
            axes.setdefault(key, []).extend([value] if value not in axes.get(key, ()) else [])
        training = f"training: {training_line(resolved_sheet(sweep.points[0].config), axes)}"
        said = (f"  {text}" for text in (*inputs.data_lines(), training))
        for line in (*outline, *describe_other_points(others), *said):
            display.note(line)
        if dry_run:
            display.note(describe_destination(folder))
            return [], False
        units: dict[Hashable, Unit] = {}
        for batch in session.batches:
            steps = sum(steps_per_round(task.simulation) for task in batch.tasks)
            title = batch_title(sweep, batch)
            units[batch.number] = Unit(title, batch.tasks[0].simulation.rounds, batch.program, steps)
        display.start(units, "batches")
        stopped = False
        began = time.monotonic()
        try:
            session.train(should_stop)
        except Stopped:
            stopped = True
        finally:
            display.stop()
            rows = session.finish()
            if folder.part is None:
                folder.finish()
        if session.costs:
            cost = Cost(*map(sum, zip(*session.costs.values(), strict=True)))
            display.note(cost.in_words(time.monotonic() - began))
    return rows, stopped
