"""The progress display of comparisons and sweeps: a line for each method; in a terminal, also what trains now."""

import dataclasses
import time
from collections.abc import Callable, Hashable, Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedjax_bal.metrics import SHARE, spread
from fedjax_bal.status import duration

_INTERVAL = 60.0  # seconds without a line after which output that isn't a terminal says how far training is


@dataclasses.dataclass
class WorkUnit:
    """A run or a batch of runs on the display.

    Attributes:
        method: its method; units of the same method share a line.
        title: its name among these units.
        rounds: the number of its rounds; those that it has finished if it ends early.
        program: units with the same program take equally long for a local step.
        steps: local steps in an average round, of all its runs.
        runs: the number of its runs.
        done: number of finished rounds.
        trained: whether rounds were trained in this session.
        accuracy: its latest accuracy in [0, 1]; None if there is none.
        failed: number of its runs that have failed.
    """

    method: str
    title: str
    rounds: int
    program: Hashable = None
    steps: float = 1.0
    runs: int = 1
    done: int = 0
    trained: bool = False
    accuracy: float | None = None
    failed: int = 0

    @property
    def left(self) -> int:
        """Number of remaining rounds."""
        return max(self.rounds - self.done, 0)

    @property
    def finished(self) -> int:
        """Number of its runs that have a result."""
        return 0 if self.left else self.runs - self.failed

    @property
    def result(self) -> float | None:
        """Its accuracy at the end; None before, and if it is unknown."""
        return self.accuracy if self.finished else None


class Progress:
    """Shows the progress of units of work: runs, or the batches of a sweep.

    A method gets a line when its last unit ends: the number of its runs, the mean of their accuracies, and its
    difference from the first method. In a terminal this line is shown earlier and filled up, above the state of the
    unit in training (with the seconds that compilation has taken so far) and a bar for all units. Other output gets a
    line a minute instead. The remaining time, without compilation, follows from this session's seconds per local step:
    of the same program, or of all for a program that hasn't trained yet.
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
        self._methods: dict[str, list[WorkUnit]] = {}
        self._noun = ""
        self._began = self._printed = clock()
        self._event = clock()  # when rounds were last reported, or compilation began
        self._trained: dict[Hashable, tuple[float, float]] = {}  # seconds and local steps, by program
        # What the picture shows, which another thread draws.
        self._compiling = False
        self._status = ""
        self._share = 0.0
        self._overall = ""
        self._live: Live | None = None
        if not plain and console.is_terminal and not console.is_dumb_terminal and console.file.isatty():
            self._live = Live(console=console, get_renderable=self._picture, refresh_per_second=8, transient=True)

    def start(self, units: Mapping[Hashable, WorkUnit], noun: str = "runs", headline: str = "") -> None:
        """Starts the display of units, by their keys; `noun` names their runs."""
        self._units = dict(units)
        self._methods = {}
        for unit in self._units.values():
            self._methods.setdefault(unit.method, []).append(unit)
        self._noun = noun
        self._began = self._clock()
        if headline:
            self.note(headline)
        if self._live is not None:
            self._live.start()

    def compiling(self, key: Hashable) -> None:
        """Shows that a unit's program is being compiled; time until its next `advance` doesn't count as training."""
        self._event = self._clock()
        self._compiling = True
        self._show(self._units[key], "compiling")

    def advance(self, key: Hashable, done: int, clients_per_s: float, accuracy: float | None = None) -> None:
        """Shows that a unit has finished `done` rounds, with a test accuracy in [0, 1].

        `clients_per_s` is 0 if nothing was trained since the last call: for a run loaded from disk, and before its
        first dispatch.
        """
        unit = self._units[key]
        now = self._clock()
        if clients_per_s > 0 and not self._compiling and done > unit.done:
            seconds, steps = self._trained.get(unit.program, (0.0, 0.0))
            self._trained[unit.program] = (seconds + now - self._event, steps + (done - unit.done) * unit.steps)
        self._event = now
        self._compiling = False
        finishes = unit.done < unit.rounds <= done
        unit.done = done
        unit.accuracy = accuracy
        unit.trained |= clients_per_s > 0
        status = f"round {done}/{unit.rounds}"
        status += f", accuracy {accuracy:.1%}" if accuracy is not None else ""
        if clients_per_s > 0:
            status += f", {clients_per_s:{',.0f' if clients_per_s >= 10 else '.2g'}} clients/s"
        self._show(unit, status, last=finishes)

    def stopped_early(self, key: Hashable) -> None:
        """Shows that a unit ends early, without its remaining rounds."""
        unit = self._units[key]
        unit.rounds = unit.done
        self._show(unit, f"stopped early after round {unit.done}", last=True)

    def failed(self, key: Hashable, runs: int = 1) -> None:
        """Shows how many runs of a unit have failed; if all have, it ends early."""
        unit = self._units[key]
        if runs != unit.failed:
            unit.failed = runs
            unit.trained = True
            unit.rounds = unit.done if runs == unit.runs else unit.rounds
            self._show(unit, f"{runs} failed", last=True)

    def note(self, text: str) -> None:
        """Prints a line; a terminal wraps it between words."""
        self.console.print(Text(text), soft_wrap=not self.console.is_terminal)
        self._printed = self._clock()

    def stop(self) -> None:
        """Stops the display; prints the lines of methods that aren't finished, and how many runs are."""
        if self._live is not None:
            self._live.stop()
        for method in self._begun():
            self.note(self._line(method))
        every = self._units.values()
        count = f"{sum(unit.finished for unit in every)} of {sum(unit.runs for unit in every)} runs"
        if any(unit.left or unit.trained for unit in every):
            self.note(f"{count} finished in {duration(self._clock() - self._began)}")
        elif every:
            self.note(f"{count} were already finished")
        self._units = {}
        self._methods = {}

    def _begun(self) -> list[str]:
        """Returns the methods that are partly trained."""
        return [
            method
            for method, units in self._methods.items()
            if any(unit.left for unit in units) and any(unit.trained for unit in units)
        ]

    def _name(self, method: str) -> str:
        """Shortens a method's name to leave room for numbers in a terminal."""
        room = self.console.width // 3
        return method if self._live is None or len(method) <= room else f"{method[: room - 1]}…"

    def _line(self, method: str) -> str:
        """Describes the units of a method."""
        units = self._methods[method]
        first, *_ = self._methods
        width = max(len(self._name(each)) for each in self._methods)
        counts = f"{sum(unit.finished for unit in units)}/{sum(unit.runs for unit in units)}"
        line = f"{self._name(method):{width}}  {counts} {self._noun}"
        accuracies = [unit.result for unit in units if unit.result is not None]
        if accuracies:
            line += f", accuracy {SHARE.show(spread(accuracies))}%"
        differences = [
            unit.result - other.result
            for unit, other in zip(units, self._methods[first], strict=False)
            if unit.result is not None and other.result is not None
        ]
        if differences and method != first:
            mean = f"{100 * sum(differences) / len(differences):+.1f}".replace("-", "\N{MINUS SIGN}")
            line += f", {mean} vs {self._name(first)}"
        failed = sum(unit.failed for unit in units)
        return line + f", {failed} failed" * bool(failed)

    def _seconds_left(self) -> float:
        overall = tuple(map(sum, zip(*self._trained.values(), strict=True)))
        left = 0.0
        for unit in self._units.values():
            seconds, steps = self._trained.get(unit.program, overall)
            left += unit.left * unit.steps * seconds / steps
        return left

    def _show(self, unit: WorkUnit, status: str, *, last: bool = False) -> None:
        self._status = f"{self._name(unit.method)}, {unit.title}: {status}"
        left = sum(each.left for each in self._units.values())
        self._share = 1 - left / max(sum(each.rounds for each in self._units.values()), 1)
        self._overall = f"{self._share:.0%}"
        self._overall += f", {duration(self._seconds_left())} left" if left and self._trained else ""
        units = self._methods[unit.method]
        if self._live is not None:
            self._live.refresh()  # otherwise a note would repeat the picture of an eighth of a second ago
        if last and not any(each.left for each in units) and any(each.trained for each in units):
            self.note(self._line(unit.method))
        elif self._live is None and self._clock() - self._printed >= _INTERVAL:
            self.note(f"{self._status}; {self._overall}")

    def _picture(self) -> Group:
        """Draws the lines that are replaced: methods that are partly trained, the unit in training, and all units."""
        lines = [self._line(method) for method in self._begun()][-max(self.console.height - 8, 1) :]
        lines.append(self._status + (f", {duration(self._clock() - self._event)}" if self._compiling else ""))
        whole = Table.grid(padding=(0, 1))
        whole.add_row(ProgressBar(1.0, self._share, width=20), Text(self._overall))
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines), whole)
