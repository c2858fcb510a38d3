"""Carries a sweep through: groups of runs, each one program, saved as they go."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_bal.engine.errors import DivergenceError
from fedjax_bal.engine.simulation import Advance, Simulation, Snapshot
from fedjax_bal.engine.stack import Member, Stack
from fedjax_bal.experiment.folder import RunFolder
from fedjax_bal.experiment.runner import Runner, Saved, Stopped
from fedjax_bal.experiment.setup import Workshop, set_up
from fedjax_bal.sweep.groups import Group, Task, group
from fedjax_bal.sweep.plan import Point, Sweep
from fedjax_bal.sweep.show import Silent, SweepProgress


class Costs(NamedTuple):
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


class Work:
    """A sweep under way.

    Args:
        sweep: the sweep.
        folder: where its points' folders are, below `points`.
        display: what the user sees.
        data_dir: the folder with the data set's files, where it isn't embedded.
        devices: how many devices share the work, whatever the configurations say; None leaves it to them.
        should_stop: asked between dispatches; True ends the session with `Stopped`.
        most: how many runs to train together at most; None for as many as fit into memory.
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
        look: bool = False,
    ) -> None:
        self.sweep, self.display, self.should_stop = sweep, display, should_stop
        self.runners: dict[int, Runner] = {}
        self.broken: dict[int, str] = {}
        self.lost: dict[tuple[int, str, int], str] = {}
        self.costs: list[tuple[Group, Costs]] = []
        self._saved: dict[tuple[int, tuple[int, int]], Saved | None] = {}
        workshop, tasks = Workshop(data_dir, devices), []
        find = self._seen if look else self._resumed
        for number, point in enumerate(sweep.points):
            try:
                tasks += find(number, point, RunFolder(folder / "points" / point.label), workshop)
            except ValueError as error:
                self.broken[number] = str(error)
                display.note(f"{point.label}: left out: {error}")
        self.groups = group(tasks, most)

    def run(self, written: Callable[[], object] = lambda: None) -> None:
        """Does what is left to do.

        A run that diverges, or can't be carried out, is noted; the others go on.

        Args:
            written: called after each group, and before stopping.

        Raises:
            Stopped: `should_stop` said so; all is saved.
        """
        for number, own in enumerate(self.groups):
            try:
                if self.should_stop():
                    raise Stopped
                self._attempt(number, own)
            finally:
                written()

    def _seen(self, number: int, point: Point, folder: RunFolder, workshop: Workshop) -> list[Task]:
        comparison = set_up(point.config, workshop=workshop)
        runs = folder.read_summary().get("runs")
        known = {(run.get("method"), run.get("seed")): run for run in runs or [] if isinstance(run, dict)}
        tasks = []
        for index, simulation in enumerate(comparison.simulations):
            for seed in point.config.seeds:
                run = known.get((point.config.methods[index].name, seed), {})
                done = min(int(run.get("rounds") or 0), simulation.rounds)
                if done < simulation.rounds and not run.get("failure") and run.get("stopped_early") is None:
                    tasks.append(Task(number, (index, seed), simulation, done))
        return tasks

    def _resumed(self, number: int, point: Point, folder: RunFolder, workshop: Workshop) -> list[Task]:
        folder.check(point.config)
        display = Silent(lambda text: self.display.note(f"{point.label}: {text}"))
        runner = self.runners[number] = Runner(point.config, folder, display, workshop=workshop)
        runner.recall_failures()
        tasks = []
        for run, saved in runner.resume().items():
            if runner.failed(run) is not None:
                continue
            if saved and runner.over(run, saved):
                runner.conclude(run, saved.progress)  # a kill may have come before that
                continue
            tasks.append(Task(number, run, runner.comparison.simulations[run[0]], saved.progress.round if saved else 0))
            self._saved[number, run] = saved
        return tasks

    def _attempt(self, number: int, own: Group) -> None:
        """Carries a group through, in two halves where all of it doesn't fit into memory."""
        saved = [self._saved.pop((task.point, task.run)) for task in own.tasks]
        try:
            self._carry(number, own, saved)
        except (ValueError, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            if len(own.tasks) > 1 and not self._begun(own):
                self._halve(number, own, saved)
            else:
                self._give_up(own, error)

    def _begun(self, own: Group) -> bool:
        """Whether a group's runs have come further than they were when they were put into it."""
        return bool(self.costs) and self.costs[-1][0] is own and self.costs[-1][1].train_s > 0

    def _halve(self, number: int, own: Group, saved: list[Saved | None]) -> None:
        middle = len(own.tasks) // 2
        for part in (slice(0, middle), slice(middle, None)):
            tasks = own.tasks[part]
            self._saved |= {(task.point, task.run): kept for task, kept in zip(tasks, saved[part], strict=True)}
            self._attempt(number, own._replace(tasks=tasks))

    def _give_up(self, own: Group, error: Exception) -> None:
        memory = isinstance(error, MemoryError | RuntimeError)
        reason = (
            "not enough memory; train fewer runs at a time with --together, or fewer clients" if memory else str(error)
        )
        for task in own.tasks:
            runner = self._runner(task)
            self.lost[(task.point, *runner.name(task.run))] = reason
            self.display.note(f"{self.sweep.points[task.point].label}, {runner.name(task.run)[0]}: left out: {reason}")

    def _carry(self, number: int, own: Group, before: Sequence[Saved | None]) -> None:
        self.display.compiling(number)
        saved = [state or self._runner(task).begin(task.run) for task, state in zip(own.tasks, before, strict=True)]
        stack = _stack(own.tasks, [state.progress for state in saved])
        cost = Costs(own.program, len(own.tasks), stack.compile(), 0.0, 0, 0, stack.device_bytes)
        every = min(self._method(task).execution.checkpoint_every for task in own.tasks)
        saved_at = stack.round
        try:
            while not all(stack.resting):
                cost = self._advance(number, own, stack, saved, cost)
                self._end_those_over(own, stack, saved)
                stopping = self.should_stop()
                if stopping or stack.round - saved_at >= every:
                    self._save(own.tasks, stack, saved)
                    saved_at = stack.round
                if stopping and not all(stack.resting):
                    raise Stopped
        finally:
            self.costs.append((own, cost))
        for task in own.tasks:
            self._runner(task).add_compile_s(cost.compile_s / len(own.tasks))

    def _end_those_over(self, own: Group, stack: "Stack | Alone", saved: list[Saved]) -> None:
        for place, task in enumerate(own.tasks):
            if not stack.resting[place] and self._runner(task).over(task.run, saved[place]):
                self._end(task, stack, place, saved[place])

    def _advance(self, number: int, own: Group, stack: "Stack | Alone", saved: list[Saved], cost: Costs) -> Costs:
        began = time.perf_counter()
        advances = stack.advance()
        seconds = time.perf_counter() - began
        for place, (task, advance) in enumerate(zip(own.tasks, advances, strict=True)):
            saved[place] = self._take(task, saved[place], advance, seconds / len(own.tasks), stack.failures[place])
        updates = sum(advance.client_updates for advance in advances if advance is not None)
        samples = sum(advance.samples for advance in advances if advance is not None)
        self.display.advance(number, stack.round - own.tasks[0].round, updates / seconds)
        return cost._replace(
            train_s=cost.train_s + seconds, client_updates=cost.client_updates + updates, samples=cost.samples + samples
        )

    def _take(
        self, task: Task, saved: Saved, advance: Advance | None, seconds: float, failure: DivergenceError | None
    ) -> Saved:
        runner = self._runner(task)
        if advance is not None:
            return runner.take(task.run, saved, advance, seconds)
        if failure is not None and runner.failed(task.run) is None:
            runner.fail(task.run, str(failure))
        return saved

    def _end(self, task: Task, stack: "Stack | Alone", place: int, saved: Saved) -> None:
        snapshot = stack.snapshot(place)
        self._runner(task).save(task.run, saved._replace(progress=snapshot))
        self._runner(task).conclude(task.run, snapshot)
        stack.rest(place)

    def _save(self, tasks: Sequence[Task], stack: "Stack | Alone", saved: list[Saved]) -> None:
        for place, task in enumerate(tasks):
            if not stack.resting[place]:
                self._runner(task).save(task.run, saved[place]._replace(progress=stack.snapshot(place)))

    def _runner(self, task: Task) -> Runner:
        return self.runners[task.point]

    def _method(self, task: Task) -> Any:
        return self._runner(task).comparison.methods[task.run[0]]


class Alone:
    """A single run, with what a stack offers."""

    def __init__(self, simulation: Simulation, seed: int, snapshot: Snapshot) -> None:
        self.simulation, self.seed, self._snapshot = simulation, seed, snapshot
        self.failures: list[DivergenceError | None] = [None]
        self.resting = [False]

    def rest(self, place: int) -> None:
        """Lets the run be."""
        self.resting[place] = True

    @property
    def round(self) -> int:
        """Rounds done."""
        return int(self._snapshot.round)

    @property
    def device_bytes(self) -> int:
        """What data, state and the program take on each device."""
        return self.simulation.device_bytes

    def compile(self) -> float:
        """Compiles the program, once; returns the seconds that it took now."""
        return self.simulation.compile()

    def snapshot(self, place: int) -> Snapshot:
        """Where the run stands."""
        del place
        return self._snapshot

    def advance(self) -> list[Advance | None]:
        """Runs the next rounds."""
        try:
            advance = self.simulation.advance(self.seed, self._snapshot)
        except DivergenceError as error:
            self.failures[0] = error
            self.rest(0)
            return [None]
        self._snapshot = advance.progress
        return [advance]


def _stack(tasks: Sequence[Task], snapshots: Sequence[Snapshot]) -> "Stack | Alone":
    if len(tasks) == 1:
        return Alone(tasks[0].simulation, tasks[0].run[1], snapshots[0])
    return Stack([Member(task.simulation, task.run[1]) for task in tasks], snapshots)
