"""Carries a sweep through: groups of runs, each one program, saved as they go."""

import functools
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_bal.engine.host import Snapshot
from fedjax_bal.experiments.backends.backend import (
    Backend,
    BatchHandle,
    BatchRefused,
    Journey,
    LocalBackend,
    WorkerLost,
)
from fedjax_bal.experiments.backends.group_handle import BuiltRun, StepResult
from fedjax_bal.experiments.display.sweep import Silent, SweepProgress
from fedjax_bal.experiments.grouping import SweepBatch, SweepRun, batch_runs
from fedjax_bal.experiments.plan import Point, Sweep
from fedjax_bal.experiments.runner import Runner, Stopped
from fedjax_bal.experiments.saved_runs import SavedRun
from fedjax_bal.experiments.setup import SharedInputs, set_up
from fedjax_bal.runs import RunFolder, SweepFolder

_TRIES = 3  # of a group that gets no further, for whoever trains it gets lost


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
        engine: what trains; None for this process.
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
        engine: Backend | None = None,
        look: bool = False,
    ) -> None:
        self.sweep, self.display, self.should_stop = sweep, display, should_stop
        self.engine: Backend = engine or LocalBackend()
        self.runners: dict[int, Runner] = {}
        self.broken: dict[int, str] = {}
        self.lost: dict[tuple[int, str, int], str] = {}
        self.costs: list[tuple[SweepBatch, BatchCosts]] = []
        self._written: Callable[[], object] = lambda: None
        self._saved: dict[tuple[int, tuple[int, int]], SavedRun | None] = {}
        workshop, tasks = SharedInputs(data_dir, devices), []
        find = self._seen if look else self._resumed
        for number, point in enumerate(sweep.points):
            try:
                tasks += find(number, point, SweepFolder(folder).point(point.label), workshop)
            except ValueError as error:
                self.broken[number] = str(error)
                display.note(f"{point.label}: left out: {error}")
        self.groups = batch_runs(tasks, most, self.engine.places)

    def run(self, written: Callable[[], object] = lambda: None) -> None:
        """Does what is left to do.

        A run that diverges, or can't be carried out, is noted; the others go on.

        Args:
            written: called after each dispatch and each group, and before stopping.

        Raises:
            Stopped: `should_stop` said so; all is saved.
        """
        self._written = written
        journeys = [self._journey(number, own) for number, own in enumerate(self.groups)]
        self.engine.carry(journeys, self.should_stop)

    def _journey(self, number: int, own: SweepBatch) -> Journey:
        try:
            yield from self._attempt(number, own)
        finally:
            self._written()

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

    def _attempt(self, number: int, own: SweepBatch, tries: int = 1) -> Journey:
        """Carries a group through: in two halves where all of it doesn't fit into memory, again where it gets lost."""
        saved = [self._saved.pop((task.point, task.run)) for task in own.tasks]
        try:
            yield from self._carry(number, own, saved)
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

    def _halve(self, number: int, own: SweepBatch, saved: list[SavedRun | None]) -> Journey:
        middle = len(own.tasks) // 2
        for part in (slice(0, middle), slice(middle, None)):
            tasks = own.tasks[part]
            self._saved |= {(task.point, task.run): kept for task, kept in zip(tasks, saved[part], strict=True)}
            yield from self._attempt(number, own._replace(tasks=tasks))

    def _again(self, number: int, own: SweepBatch, lost: WorkerLost, tries: int) -> Journey:
        """Goes on from the last checkpoints of a group's runs."""
        left = [task for task in map(self._rewound, own.tasks) if task is not None]
        tries = 1 if any(task.round > own.tasks[0].round for task in left) else tries + 1
        if tries > _TRIES:
            self._give_up(
                own._replace(tasks=tuple(left)), WorkerLost(f"{lost} (tried {_TRIES} times without getting on)")
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

    def _carry(self, number: int, own: SweepBatch, before: Sequence[SavedRun | None]) -> Journey:
        saved = [state or self._runner(task).unbegun(task.run) for task, state in zip(own.tasks, before, strict=True)]
        ride = self.engine.open(self.runners, own, [state and state.snapshot for state in before])
        try:
            yield from ride.enter()
            self.display.compiling(number)
            built: BuiltRun = yield ride.compile
            place = len(self.costs)
            self.costs.append(
                (own, BatchCosts(own.program, len(own.tasks), built.compile_s, 0.0, 0, 0, built.device_bytes))
            )
            for task in own.tasks:
                self._runner(task).device = built.device
            yield from self._train(number, place, ride, saved)
        finally:
            ride.close()
        for task in own.tasks:
            self._runner(task).add_compile_s(built.compile_s / len(own.tasks))

    def _train(self, number: int, place: int, ride: BatchHandle, saved: list[SavedRun]) -> Journey:
        """Trains a group to its end, saving it as it goes; `place` is that of its costs."""
        own, _ = self.costs[place]
        every = min(self._method(task).execution.checkpoint_every for task in own.tasks)
        saved_at, resting = own.tasks[0].round, [False] * len(own.tasks)
        while not all(resting):
            stretch: StepResult = yield functools.partial(ride.advance, tuple(resting))
            self._count(number, place, stretch)
            self._take(own, saved, stretch, resting)
            over = [self._runner(task).over(task.run, state) for task, state in zip(own.tasks, saved, strict=True)]
            yield from self._end(own, ride, saved, resting, over)
            self._written()
            stopping = self.should_stop()
            if stopping or stretch.round - saved_at >= every:
                yield from self._save(own, ride, saved, [at for at, rests in enumerate(resting) if not rests])
                saved_at = stretch.round
            if stopping and not all(resting):
                raise Stopped

    def _count(self, number: int, place: int, stretch: StepResult) -> None:
        own, cost = self.costs[place]
        updates = sum(advance.client_updates for advance in stretch.advances if advance is not None)
        samples = sum(advance.samples for advance in stretch.advances if advance is not None)
        done = stretch.round - self.groups[number].tasks[0].round
        self.display.advance(number, done, updates / stretch.seconds)
        counts = {"client_updates": cost.client_updates + updates, "samples": cost.samples + samples}
        self.costs[place] = own, cost._replace(train_s=cost.train_s + stretch.seconds, **counts)

    def _take(self, own: SweepBatch, saved: list[SavedRun], stretch: StepResult, resting: list[bool]) -> None:
        seconds = stretch.seconds / len(own.tasks)
        for place, (task, advance) in enumerate(zip(own.tasks, stretch.advances, strict=True)):
            runner, failure = self._runner(task), stretch.failures[place]
            if advance is not None:
                saved[place] = runner.take(task.run, saved[place], advance, seconds)
            elif failure is not None and not resting[place]:
                runner.fail(task.run, failure)
                resting[place] = True

    def _end(
        self, own: SweepBatch, ride: BatchHandle, saved: list[SavedRun], resting: list[bool], over: list[bool]
    ) -> Journey:
        """Saves the runs that are over now, and lets them rest."""
        places = [place for place, rests in enumerate(resting) if over[place] and not rests]
        snapshots = yield from self._save(own, ride, saved, places)
        for place, snapshot in zip(places, snapshots, strict=True):
            self._runner(own.tasks[place]).conclude(own.tasks[place].run, snapshot)
            resting[place] = True

    def _save(
        self, own: SweepBatch, ride: BatchHandle, saved: list[SavedRun], places: Sequence[int]
    ) -> Generator[Callable[[], Any], Any, list[Snapshot]]:
        if not places:
            return []
        snapshots: list[Snapshot] = yield functools.partial(ride.snapshots, tuple(places))
        for place, snapshot in zip(places, snapshots, strict=True):
            task = own.tasks[place]
            self._runner(task).save(task.run, saved[place]._replace(snapshot=snapshot))
        return snapshots

    def _runner(self, task: SweepRun) -> Runner:
        return self.runners[task.point]

    def _method(self, task: SweepRun) -> Any:
        return self._runner(task).comparison.methods[task.run[0]]
