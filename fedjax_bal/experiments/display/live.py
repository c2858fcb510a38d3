"""The live display: a table that stays in place in a terminal."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedjax_bal.experiments.display.tally import RunProgress, duration, percent

_LINES_AROUND_METHODS = 4
_TITLES = ("method", "seeds", "round", "accuracy", "mean", "clients/s")


class LiveProgress:
    """A bar with the time left, compilations included, and a line for each method."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self._console = console
        self._clock = clock
        self._tally = RunProgress([""], [0], {"": 0}, clock)
        self._folder = Path()
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=4)

    def start(self, methods: Sequence[str], seeds: Sequence[int], rounds: Mapping[str, int], folder: Path) -> None:
        """Shows the empty table."""
        self._tally = RunProgress(methods, seeds, rounds, self._clock)
        self._folder = folder
        self._live.start(refresh=True)

    def compiling(self, method: str) -> None:
        """Marks a method's line."""
        self._tally.compiling(method)
        self._live.refresh()

    def advance(self, method: str, seed: int, round: int, accuracy: float | None, clients_per_s: float) -> None:
        """Updates a method's line."""
        self._tally.advance(method, seed, round, accuracy, clients_per_s)

    def ended(self, method: str, seed: int) -> None:
        """Counts the run as finished, and prints a line above the table."""
        self._tally.ended(method, seed)
        self.note(f"{method}, seed {seed}: stopped early after round {self._tally.runs[method][seed].round}")

    def note(self, text: str) -> None:
        """Prints a line above the table."""
        self._console.print(Text(text))

    def stop(self) -> None:
        """Leaves the table as it is."""
        self._tally.compiling_now = None
        self._live.stop()

    def render(self) -> Group:
        """The display at this moment, for rich."""
        wide = self._console.width
        folder = str(self._folder) if len(str(self._folder)) <= wide else self._folder.name
        return Group(Text(folder, no_wrap=True, overflow="crop", style="dim"), self._bar(), self._lines())

    def _lines(self) -> Table:
        rows = [_cells(self._tally, method) for method in self._visible(list(self._tally.runs))]
        gap = 2 if self._console.width >= 72 else 1
        numbers = [max(map(len, column)) for column in zip(_TITLES, *rows, strict=True)][1:]
        room = max(self._console.width - sum(numbers) - gap * len(numbers), len(_TITLES[0]))
        table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
        cut = "ellipsis" if "utf" in self._console.encoding else "crop"
        table.add_column(_TITLES[0], no_wrap=True, overflow=cut, max_width=room)
        for title in _TITLES[1:]:
            table.add_column(title, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*map(Text, row))
        return table

    def _bar(self) -> Table:
        tally = self._tally
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column()
        line.add_column(no_wrap=True)
        text = f"{percent(tally.share, 0)}  {duration(tally.elapsed)} so far  {duration(tally.seconds_left)} left"
        width = max(min(self._console.width - len(text) - 4, 40), 5)
        line.add_row(ProgressBar(total=1.0, completed=tally.share, width=width), text)
        return line

    def _visible(self, methods: list[str]) -> list[str]:
        room = max(self._console.height - _LINES_AROUND_METHODS, 1)
        first = min(max(methods.index(self._tally.latest) - room // 2, 0), max(len(methods) - room, 0))
        return methods[first : first + room]


def _cells(tally: RunProgress, method: str) -> list[str]:
    runs, rounds = tally.runs[method], tally.rounds[method]
    run = runs[tally.current[method]]
    idle = "compiling" if tally.compiling_now == method else "-"
    pace = f"{tally.clients_per_s[method]:,.0f}" if tally.clients_per_s[method] else idle
    seeds = f"{len(tally.finished(method))}/{len(runs)}"
    return [method, seeds, f"{run.round}/{rounds}", percent(run.accuracy), percent(tally.mean(method)), pace]
