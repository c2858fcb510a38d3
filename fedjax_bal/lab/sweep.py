"""A sweep: a list of comparisons, whose runs train in batches of equal programs, and the table of their results."""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.config import check_methods, resolved_sheet
from fedjax_bal.lab.callbacks import describe_program
from fedjax_bal.lab.compare import Comparison, open_comparison
from fedjax_bal.lab.display import Progress, WorkUnit
from fedjax_bal.lab.errors import FolderError
from fedjax_bal.lab.loop import (
    BuiltProgram,
    Callback,
    DispatchStats,
    RunBatch,
    batch_runs,
    compiled_ahead,
    steps_per_round,
    train,
    unfinished,
)
from fedjax_bal.lab.outline import method_names, outline
from fedjax_bal.lab.post_training import PostTraining
from fedjax_bal.lab.records import RunId
from fedjax_bal.lab.run import Run
from fedjax_bal.lab.setup import SharedInputs
from fedjax_bal.lab.summary import Cost, total
from fedjax_bal.lab.sweep_folder import SweepFolder
from fedjax_bal.lab.sweep_plan import Sweep
from fedjax_bal.lab.training_line import training_line
from fedjax_bal.metrics import METRICS
from fedjax_bal.registry import PluginError

COSTS = ("program", "runs_together", "compile_s", "client_updates_per_s", "samples_per_s", "device_bytes")

# The whole table is written each time; doing so after every run would take quadratic time. So a write waits while
# writing has taken more than this share of the time so far. A small table, written in milliseconds, still shows every
# row at once; a table of thousands of runs lags by seconds.
_SHARE = 1 / 20


class SweepRunId(NamedTuple):
    """A run of a sweep: its point's label, the method's name and the seed."""

    point: str
    method: str
    seed: int


class SweepTable(Callback):
    """The table of a sweep's results, with a row for each run; a part of a sweep writes only its costs.

    Args:
        sweep: the sweep, or the part of it that this session trains.
        folder: its folder.

    Attributes:
        comparisons: the resumed comparisons, by point.
        refused: why a point can't be set up.
        failed: why a run couldn't be trained.
        cost: of this session's batches.
    """

    def __init__(self, sweep: Sweep, folder: SweepFolder) -> None:
        self.sweep = sweep
        self.folder = folder
        self.comparisons: dict[str, Comparison] = {}
        self.refused: dict[str, str] = {}
        self.failed: dict[SweepRunId, str] = {}
        self._costs: dict[RunBatch, tuple[BuiltProgram, Cost]] = {}
        self._points: dict[Run, str] = {}
        self._began = time.monotonic()
        self._writing_s = 0.0
        self._written = 0  # rows of the table

    @property
    def cost(self) -> Cost:
        """The cost of this session."""
        return total([Cost(), *(cost for _, cost in self._costs.values())])

    def add(self, point: str, comparison: Comparison) -> None:
        """Adds a point's comparison."""
        self.comparisons[point] = comparison
        self._points |= dict.fromkeys(comparison.runs, point)

    def comparison(self, run: Run) -> Comparison:
        """Returns the comparison of a run."""
        return self.comparisons[self._points[run]]

    def has_trained(self, batch: RunBatch) -> bool:
        """Returns whether a batch has finished a dispatch in this session."""
        return batch in self._costs and self._costs[batch][1].train_s > 0

    def name(self, run: Run) -> SweepRunId:
        """Returns a run's name in the table."""
        return SweepRunId(self._points[run], *run.id)

    def started(self, batch: RunBatch) -> None:
        """Writes the points that can't be set up."""
        self.update()

    def built(self, batch: RunBatch, program: BuiltProgram) -> None:
        """Adds the cost of compilation."""
        self._costs[batch] = program, Cost(program.compile_s)

    def stepped(self, batch: RunBatch, step: DispatchStats) -> None:
        """Adds the cost of a dispatch, and the runs that it has finished."""
        program, cost = self._costs[batch]
        self._costs[batch] = program, cost.after(step.seconds, step.client_updates, step.samples)
        self.update()

    def update(self) -> None:
        """Writes the runs that are over, so that a kill doesn't lose them, unless writing has taken too long."""
        now = time.monotonic()
        over = [run for run in self._runs() if self._is_over(run)]
        if len(over) > self._written and self._writing_s <= _SHARE * (now - self._began):
            self._written = len(self._write(over))
            self._writing_s += time.monotonic() - now

    def finish(self) -> list[dict[str, Any]]:
        """Ends the comparisons' sessions, and writes a row for every run; returns the rows.

        A row has the swept keys, `point`, `method`, `seed`, `status`, the run's metrics, `COSTS` and `failure`. Rates
        are those of the run's whole batch.
        """
        for comparison in self.comparisons.values():
            comparison.finish()
        return self._write(list(self._runs()))

    def _runs(self) -> Iterator[tuple[SweepRunId, Run | None]]:
        """Iterates over all runs in table order; those of a refused point have only a name."""
        for point in self.sweep.points:
            known = (
                {run.id: run for run in self.comparisons[point.label].runs} if point.label in self.comparisons else {}
            )
            for method in point.config.methods:
                for seed in point.config.seeds:
                    yield SweepRunId(point.label, method.name, seed), known.get(RunId(method.name, seed))

    def _is_over(self, named: tuple[SweepRunId, Run | None]) -> bool:
        name, run = named
        return run is None or run.ended or run.failure is not None or name in self.failed

    def _row(self, name: SweepRunId, run: Run | None, values: Mapping[str, Any]) -> dict[str, Any]:
        """Builds the row of a run, without costs."""
        entry: Mapping[str, Any] = {}
        if run is not None and (run.lines or run.failure is not None):
            entry = self.comparisons[name.point].summarise(run)
        if run is None:
            status = "refused"
            failure = self.refused[name.point]
        elif name in self.failed:
            status = "failed"
            failure = self.failed[name]
        else:
            status = "diverged" if run.failure is not None else "done" if run.round and run.is_over else "unfinished"
            failure = run.failure
        return {
            **values,
            **name._asdict(),
            "status": status,
            **{key: entry.get(key) for key, metric in METRICS.items() if metric.of_run and metric.swept},
            **dict.fromkeys(COSTS),
            "failure": failure,
        }

    def _write(self, runs: Sequence[tuple[SweepRunId, Run | None]]) -> list[dict[str, Any]]:
        """Writes and returns the rows of runs, including earlier sessions' costs."""
        costs: dict[tuple[str, str, int], dict[str, Any]] = self.folder.read_costs()
        for batch, (program, cost) in self._costs.items():
            figures = {
                "program": batch.program + 1,
                "runs_together": len(batch.runs),
                "compile_s": round(cost.compile_s, 3),
                **{name: rate or 0.0 for name, rate in cost.rates().items()},
                "device_bytes": program.device_bytes,
            }
            costs |= {self.name(run): figures for run in batch.runs}
        self.folder.write_costs(costs)
        values = {point.label: point.values for point in self.sweep.points}
        rows = []
        for name, run in runs:
            figures = costs.get(name, {})
            rows.append(
                self._row(name, run, values[name.point]) | {key: figures[key] for key in COSTS if key in figures}
            )
        if self.folder.part is None:
            self.folder.write_results(rows)
        return rows


class BatchProgress(Callback):
    """Shows every batch of a sweep on the display. A halved batch is shown as the one that was announced."""

    def __init__(self, display: Progress, *, verbose: bool) -> None:
        self.display = display
        self.verbose = verbose

    def started(self, batch: RunBatch) -> None:
        """Shows that a program is being compiled."""
        self.display.compiling(batch.number)

    def built(self, batch: RunBatch, program: BuiltProgram) -> None:
        """Shows that training begins."""
        self.display.advance(batch.number, batch.runs[0].round, 0.0)
        if self.verbose:
            self.display.note(f"{method_names(batch)}, {len(batch.runs)} runs: {describe_program(program)}")

    def stepped(self, batch: RunBatch, step: DispatchStats) -> None:
        """Shows the batch's progress."""
        self.display.advance(batch.number, step.round, step.client_updates / step.seconds)
        if step.round < batch.rounds and all(run.is_over or run.failure is not None for run in batch.runs):
            self.display.stopped_early(batch.number)
        self.display.failed(batch.number, sum(run.failure is not None for run in batch.runs))


def run_sweep(
    sweep: Sweep,
    folder: SweepFolder,
    inputs: SharedInputs,
    display: Progress,
    should_stop: Callable[[], bool],
    *,
    callbacks: Sequence[Callback] = (),
    most: int | None = None,
    verbose: bool = False,
    only_table: bool = False,
    announce: bool = True,
) -> list[dict[str, Any]]:
    """Trains the unfinished runs of a sweep, or of one part of it; writes the table, and returns its rows.

    A run that diverges or can't be trained is recorded, and the others continue.

    Args:
        sweep: the sweep, as its claimed folder yields it.
        folder: its folder, claimed.
        inputs: where the data are, and the devices that share the work.
        display: shows outline and progress.
        should_stop: called between dispatches; True ends the session.
        callbacks: further callbacks.
        most: maximum number of runs per batch; None for as many as fit into memory.
        verbose: shows each compiled program, too.
        only_table: train nothing: other processes have trained the parts.
        announce: shows what there is to train, the data, and how they are trained on.

    Raises:
        Stopped: `should_stop` returned True.
    """
    folder.begin(sweep.text, sweep.configs)
    others = folder.other_points(sweep.configs)
    sweep = sweep.part(folder.part)
    table = SweepTable(sweep, folder)

    callbacks = [PostTraining(), table, BatchProgress(display, verbose=verbose), *callbacks]
    runs = _open_points(table, inputs, display.note, callbacks)
    batches = [] if only_table else batch_runs(runs, most)
    if announce:
        for line in (
            *outline(sweep.name, sweep.runs, batches),
            *inputs.data_lines(),
            f"training: {training_line(resolved_sheet(sweep.points[0].config), sweep.values)}",
        ):
            display.note(line)
    if others:
        display.note(f"earlier points in {folder.path} that are not in this sweep or its table: {len(others)}")
    units: dict[Hashable, WorkUnit] = {}
    for batch in batches:
        steps = sum(steps_per_round(run.simulation) for run in batch.runs)
        title = table.name(batch.runs[0]).point if len(batch.runs) == 1 else f"{len(batch.runs)} runs"
        units[batch.number] = WorkUnit(
            method_names(batch), title, batch.rounds, program=batch.program, steps=steps, runs=len(batch.runs)
        )
    display.start(units)
    began = time.monotonic()
    try:
        _train_batches(table, batches, callbacks, should_stop, display.note)
    finally:
        display.stop()
        rows = table.finish()
        if folder.part is None:
            folder.finish()
        if table.cost.train_s:
            display.note(table.cost.in_words(time.monotonic() - began))
    return rows


def _open_points(
    table: SweepTable,
    inputs: SharedInputs,
    note: Callable[[str], None],
    callbacks: Sequence[Callback],
) -> list[Run]:
    """Resumes the comparisons of all points, and returns their unfinished runs; records points that can't be set up."""
    runs: list[Run] = []
    for point in table.sweep.points:
        folder = table.folder.point(point.label)
        note_point = lambda text, label=point.label: note(f"{label}: {text}")
        try:
            if point.label in table.folder.refused:
                raise table.folder.refused[point.label]
            check_methods(point.config, "")
            folder.create()
            comparison = open_comparison(point.config, folder, note_point, inputs)
            comparison.resume(point.config, retry_diverged=False)
            runs += unfinished(comparison.runs, callbacks)
            table.add(point.label, comparison)  # last: the table must not write into a folder that can't resume
        except ValueError as error:
            table.refused[point.label] = str(error)
            note_point(f"left out: {error}")
    return runs


def _train_batches(
    table: SweepTable,
    batches: Sequence[RunBatch],
    callbacks: Sequence[Callback],
    should_stop: Callable[[], bool],
    note: Callable[[str], None],
) -> None:
    """Trains batches one after another; halves those that are too large, and gives up runs that can't be trained."""
    with compiled_ahead(batches):
        waiting = deque(batches)
        while waiting:
            batch = waiting.popleft()
            try:
                train(batch, callbacks, should_stop)
            except FolderError:
                raise
            except (ValueError, MemoryError, RuntimeError) as error:
                lacks_memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
                if not lacks_memory and not isinstance(error, ValueError):
                    raise
                # The batch may be too large for memory or devices, unless it has trained before.
                if len(batch.runs) > 1 and not table.has_trained(batch) and not isinstance(error, PluginError):
                    for run in batch.runs:
                        table.comparison(run).rewind(run)  # training has taken its model
                    middle = len(batch.runs) // 2
                    halves = batch.runs[:middle], batch.runs[middle:]
                    waiting.extendleft(dataclasses.replace(batch, runs=half) for half in reversed(halves))
                    continue
                remedy = "not enough memory; train fewer runs at a time with --together, or fewer clients"
                for run in batch.runs:
                    if run.ended or run.failure is not None:
                        continue
                    name = table.name(run)
                    table.failed[name] = remedy if lacks_memory else str(error)
                    note(f"{name.point}, {name.method}: left out: {table.failed[name]}")
                table.update()
