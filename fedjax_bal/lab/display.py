"""The progress display of runs and sweeps: bars in a terminal, lines elsewhere."""

import dataclasses
import time
from collections.abc import Callable, Hashable, Mapping

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from fedjax_bal.status import duration

_INTERVAL = 2.0  # seconds between two lines about runs in training


@dataclasses.dataclass
class WorkUnit:
    """A run or a batch on the display.

    Attributes:
        title: its name.
        rounds: the number of its rounds.
        program: units with the same program take equally long for a local step.
        steps: local steps in an average round, of all its runs.
        done: number of finished rounds.
        ended: whether it has stopped early.
        bar: its bar, in a terminal.
    """

    title: str
    rounds: int
    program: Hashable = None
    steps: float = 1.0
    done: int = 0
    ended: bool = False
    bar: TaskID | None = None

    @property
    def left(self) -> int:
        """Number of remaining rounds."""
        return 0 if self.ended else max(self.rounds - self.done, 0)


class Progress:
    """Shows the progress of units of work: runs, or the batches of a sweep.

    A finished unit prints a line. During training, a terminal shows a bar for all units and one per unit in training;
    other output gets a line about every two seconds. The remaining time, without compilation, follows from this
    session's seconds per local step: of the same program, or of all for a program that hasn't trained yet.
    """

    def __init__(
        self,
        console: Console,
        *,
        plain: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self._clock = clock
        self._units: dict[Hashable, WorkUnit] = {}
        self._noun = ""
        self._began = self._printed = clock()
        self._event: float | None = None  # when rounds were last reported; None while a program is compiled
        self._trained: dict[Hashable, tuple[float, float]] = {}  # seconds and local steps, by program
        self._bars: Bars | None = None
        self._whole = TaskID(0)
        if not plain and console.is_terminal and not console.is_dumb_terminal and console.file.isatty():
            room = Column(no_wrap=True, max_width=console.width // 3)
            title = TextColumn("{task.description}", markup=False, table_column=room)
            status = TextColumn("{task.fields[status]}", markup=False)
            self._bars = Bars(title, BarColumn(10), status, console=console)

    def start(self, units: Mapping[Hashable, WorkUnit], noun: str = "runs", headline: str = "") -> None:
        """Starts the display of units, by their keys."""
        self._units = dict(units)
        self._noun = noun
        self._began = self._clock()
        if headline:
            self.note(headline)
        if self._bars is not None:
            self._whole = self._bars.add_task("all", total=sum(unit.rounds for unit in self._units.values()), status="")
            self._bars.start()

    def compiling(self, key: Hashable) -> None:
        """Shows that a unit's program is being compiled; time until its next `advance` doesn't count as training."""
        self._event = None
        self._show(self._units[key], "compiling")

    def advance(self, key: Hashable, done: int, clients_per_s: float, accuracy: float | None = None) -> None:
        """Shows that a unit has finished `done` rounds, with a test accuracy in [0, 1].

        `clients_per_s` is 0 if nothing was trained since the last call: for a run loaded from disk, and before its
        first dispatch.
        """
        unit = self._units[key]
        now = self._clock()
        if clients_per_s > 0 and self._event is not None and done > unit.done:
            seconds, steps = self._trained.get(unit.program, (0.0, 0.0))
            self._trained[unit.program] = (seconds + now - self._event, steps + (done - unit.done) * unit.steps)
        self._event = now
        finishes = unit.done < unit.rounds <= done
        changed = done != unit.done or clients_per_s > 0
        unit.done = done
        if changed:
            status = f"finished after {done} rounds" if done >= unit.rounds else f"round {done}/{unit.rounds}"
            status += f", accuracy {accuracy:.1%}" if accuracy is not None else ""
            status += f", {clients_per_s:,.0f} clients/s" if clients_per_s > 0 else ""
            self._show(unit, status, last=finishes)

    def stopped_early(self, key: Hashable) -> None:
        """Shows that a unit ends early, without its remaining rounds."""
        unit = self._units[key]
        unit.ended = True
        self._show(unit, f"stopped early after round {unit.done}", last=True)

    def note(self, text: str) -> None:
        """Prints a line; a terminal wraps it between words."""
        self.console.print(Text(text), soft_wrap=not self.console.is_terminal)
        self._printed = self._clock()

    def stop(self) -> None:
        """Stops the display and prints how many units are finished."""
        if self._bars is not None:
            self._bars.stop()
        if self._units:
            finished = sum(not unit.left for unit in self._units.values())
            seconds = self._clock() - self._began
            self.note(f"{finished} of {len(self._units)} {self._noun} finished in {duration(seconds)}")
        self._units = {}

    def _seconds_left(self) -> float:
        overall = tuple(map(sum, zip(*self._trained.values(), strict=True)))
        left = 0.0
        for unit in self._units.values():
            seconds, steps = self._trained.get(unit.program, overall)
            left += unit.left * unit.steps * seconds / steps
        return left

    def _show(self, unit: WorkUnit, status: str, *, last: bool = False) -> None:
        left = sum(each.left for each in self._units.values())
        rounds = sum(each.rounds for each in self._units.values())
        finished = sum(not each.left for each in self._units.values())
        whole = f"{finished}/{len(self._units)} {self._noun}, {1 - left / max(rounds, 1):.0%}"
        whole += f", {duration(self._seconds_left())} left" if left and self._trained else ""
        if self._bars is not None:
            self._bars.update(self._whole, completed=rounds - left, status=whole)
            if unit.bar is None:
                unit.bar = self._bars.add_task(unit.title, total=unit.rounds, status="")
            self._bars.update(unit.bar, completed=unit.done, status=status)
            if last:
                self._bars.remove_task(unit.bar)
                unit.bar = None
        if last or (self._bars is None and self._clock() - self._printed >= _INTERVAL):
            self.note(f"{unit.title}: {status}; {whole}")
