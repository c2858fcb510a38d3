"""A sweep: its batches of runs, each one program, trained by a backend, and the table of its results."""

import contextlib
import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console

from fedjax_bal.config import check_methods
from fedjax_bal.lab.display import Progress
from fedjax_bal.lab.folder import RunFolder
from fedjax_bal.lab.outline import batch_title, find_left, place_of_results, program_line, sweep_outline
from fedjax_bal.lab.plan import Point, Sweep
from fedjax_bal.lab.runner import Runner
from fedjax_bal.lab.saved_runs import SavedRun
from fedjax_bal.lab.setup import SharedInputs
from fedjax_bal.lab.summary import Cost, total
from fedjax_bal.lab.sweep_folder import SweepFolder
from fedjax_bal.lab.training import (
    Backend,
    BatchRefused,
    BatchTraining,
    BuiltBatch,
    Event,
    LocalBackend,
    Started,
    StepResult,
    Stopped,
    SweepBatch,
    SweepRun,
    WorkerLost,
    batch_runs,
)
from fedjax_bal.metrics import METRICS
from fedjax_bal.registry import PluginError

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
        for task, saved in runner.unfinished(runner.resume(), number):
            tasks.append(task)
            self._saved[number, task.run] = saved
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


COSTS = ("program", "runs_together", "compile_s", "client_updates_per_s", "samples_per_s", "device_bytes")

# The whole table is written each time: done after every run, that would be quadratic in their number. So the next
# writing waits while writing has taken more than this share of the time so far. The table of a small sweep, which is
# written in milliseconds, still has every row at once; that of thousands of runs lags by seconds.
_SHARE = 1 / 20

Run = tuple[int, int, int]
"""A run of a sweep: its point's number, its method's number and its seed."""


class ResultsTable:
    """Writes `results.csv`, and `costs.json` with what is known of the cost of each run; for a part only the latter."""

    def __init__(
        self, sweep: Sweep, folder: SweepFolder, work: SweepWork, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sweep, self._folder, self._work, self._clock = sweep, folder, work, clock
        self._rows: dict[Run, dict[str, Any]] = {}  # of runs that are over
        self._began, self._spent = clock(), 0.0

    def update(self) -> None:
        """Adds the runs that are over, so that a kill leaves their rows, unless writing has taken too much time."""
        now, work = self._clock(), self._work
        if self._spent > _SHARE * (now - self._began):
            return
        before = len(self._rows)
        for run in self._runs():
            if run in self._rows:
                continue
            runner = work.runners.get(run[0])
            state = runner and runner.states[run[1:]]
            concluded = state is not None and (state.concluded or state.failure is not None)
            if run[0] in work.broken or concluded or self._name(run) in work.lost:
                self._rows[run] = self._row(run, runner.summarise(run[1:]) if runner and state and state.begun else {})
        if len(self._rows) > before:
            self._write([self._rows[run] for run in self._runs() if run in self._rows])
        self._spent += self._clock() - now

    def finish(self) -> list[dict[str, Any]]:
        """Writes the metrics and summaries of all points, and a row for each run, over or not; returns the rows.

        A row has the swept keys, `point`, `method`, `seed`, `status`, the metrics of runs, `COSTS` and `failure`. The
        rates are those of all runs of the batch.
        """
        found = {
            (number, entry["method"], entry["seed"]): entry
            for number, runner in self._work.runners.items()
            for entry in runner.finish()["runs"]
        }
        return self._write([self._row(run, found.get(self._name(run), {})) for run in self._runs()])

    def _runs(self) -> Iterator[Run]:
        """Every run in the order of the table."""
        for number, point in enumerate(self._sweep.points):
            for index in range(len(point.config.methods)):
                yield from ((number, index, seed) for seed in point.config.seeds)

    def _name(self, run: Run) -> tuple[int, str, int]:
        number, index, seed = run
        return number, self._sweep.points[number].config.methods[index].name, seed

    def _row(self, run: Run, entry: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a run, its costs empty, from its entry in the summary."""
        number, method, seed = self._name(run)
        refused, lost = self._work.broken.get(number), self._work.lost.get((number, method, seed))
        if lost or refused is not None:
            status = "failed" if lost else "refused"
        elif entry.get("failure"):
            status = "diverged"
        else:
            wanted = self._work.runners[number].comparison.methods[run[1]].training.rounds
            finished = entry.get("rounds", 0) >= wanted or entry.get("stopped_early") is not None
            status = "done" if finished else "unfinished"
        return {
            **self._sweep.points[number].values,
            "point": self._sweep.points[number].label,
            "method": method,
            "seed": seed,
            "status": status,
            **{key: entry.get(key) for key, metric in METRICS.items() if metric.of_run and metric.swept},
            **dict.fromkeys(COSTS),
            "failure": refused or entry.get("failure") or lost,
        }

    def _write(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Fills in the costs, those of earlier sessions too, and writes the rows; returns them."""
        costs = self._folder.read_costs()
        for known in self._work.costs:
            batch, cost = known.batch, known.cost
            figures = {
                "program": batch.program + 1,
                "runs_together": len(batch.tasks),
                "compile_s": round(cost.compile_s, 3),
                **{name: rate or 0.0 for name, rate in cost.rates().items()},
                "device_bytes": known.device_bytes,
            }
            for task in batch.tasks:
                number, method, seed = self._name((task.point, *task.run))
                costs[self._sweep.points[number].label, method, seed] = figures
        self._folder.write_costs(costs)
        for row in rows:
            own = costs.get((row["point"], row["method"], row["seed"]), {})
            row |= {key: own[key] for key in COSTS if key in own}
        if self._folder.part is None:
            self._folder.write_results(rows)
        return rows


def run_sweep(
    sweep: Sweep,
    folder: SweepFolder,
    console: Console,
    *,
    plain: bool,
    dry_run: bool,
    **options: Any,
) -> tuple[list[dict[str, Any]], bool]:
    """Prints the outline of a sweep, trains its batches, and writes the table.

    Args:
        sweep: the sweep.
        folder: its folder, claimed.
        console: shows outline and progress.
        plain: lines in place of the live display.
        dry_run: only print the outline.
        options: those of `SweepWork`.

    Returns:
        The rows of the table, and whether the user stopped it.
    """
    display = Progress(console, plain=plain)
    if dry_run:
        folder.check_owner(sweep.text, sweep.configs)
    else:
        folder.begin(sweep.text, sweep.configs)
    if folder.part is not None:
        number, parts = folder.part
        sweep = sweep._replace(points=sweep.points[number - 1 :: parts])
    with contextlib.ExitStack() as claims:
        work = SweepWork(sweep, folder, display, claims, **options, look=dry_run)
        outline = sweep_outline(sweep, work.batches, work.broken, work.backend.about())
        for line in (*outline, *(f"  {text}" for text in work.data_lines)):
            display.note(line)
        if dry_run:
            display.note(place_of_results(folder))
            return [], False
        titles = ((batch_title(sweep, batch), batch.tasks[0].simulation.rounds) for batch in work.batches)
        display.start(dict(enumerate(titles)), "batches")
        table, stopped, began = ResultsTable(sweep, folder, work), False, time.monotonic()
        try:
            work.run(table.update)
        except Stopped:
            stopped = True
        finally:
            display.stop()
            rows = table.finish()
            if folder.part is None:
                folder.seal()
        if work.costs:
            display.note(total(own.cost for own in work.costs).in_words(time.monotonic() - began))
    return rows, stopped
