"""The progress display of a sweep."""

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from fedjax_bal.experiments.display.protocol import Progress as RunDisplay
from fedjax_bal.experiments.display.tally import duration

_INTERVAL = 5.0


class Silent(RunDisplay):
    """The progress display of a single point, which shows nothing but notes."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def note(self, text: str) -> None:
        """Passes the note on."""
        self._note(text)


class SweepProgress:
    """A line for each batch, and the progress of the sweep: a bar in a terminal, lines elsewhere.

    The time left is at the pace of this session's rounds, without compilation.
    """

    def __init__(self, console: Console, *, plain: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.clock = console, clock
        self._titles: list[str] = []
        self._rounds: list[int] = []
        self._done: list[int] = []
        self._printed = -_INTERVAL
        self._paced = (0, 0.0)
        self._event: float | None = None
        self._live: Progress | None = None
        self._bar = TaskID(0)
        if not plain and console.is_terminal and not console.is_dumb_terminal:
            columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
            self._live = Progress(*columns, console=console)

    def start(self, titles: Sequence[str], rounds: Sequence[int]) -> None:
        """Training starts: each batch has a title, and its runs so many rounds left."""
        self._titles, self._rounds, self._done = list(titles), list(rounds), [0] * len(rounds)
        if self._live is not None:
            self._bar = self._live.add_task("", total=max(sum(rounds), 1))
            self._live.start()

    def compiling(self, batch: int) -> None:
        """A batch's program is being compiled."""
        self._event = None
        self._say(f"{self._titles[batch]}: compiling", always=True)

    def advance(self, batch: int, done: int, clients_per_s: float) -> None:
        """All runs of a batch have done so many of the rounds that were left."""
        now, step = self.clock(), done - self._done[batch]
        if self._event is not None:
            self._paced = (self._paced[0] + max(step, 0), self._paced[1] + now - self._event)
        self._event, self._done[batch] = now, done
        share = sum(self._done) / max(sum(self._rounds), 1)
        finished = done >= self._rounds[batch]
        status = "finished" if finished else f"round {done}"
        left = duration(self._seconds_left())
        pace = f"{clients_per_s:,.0f} clients/s"
        self._say(f"{self._titles[batch]}: {status}, {pace}; {share:.0%} done, {left} left", always=finished)

    def note(self, text: str) -> None:
        """A warning or a remark."""
        self.console.print(Text(text), soft_wrap=True)

    def stop(self) -> None:
        """Training ends, finished or not."""
        if self._live is not None:
            self._live.stop()

    def _seconds_left(self) -> float | None:
        rounds, seconds = self._paced
        left = sum(self._rounds) - sum(self._done)
        return 0.0 if not left else seconds / rounds * left if rounds else None

    def _say(self, text: str, *, always: bool) -> None:
        if self._live is not None:
            self._live.update(self._bar, description=text, completed=sum(self._done))
        elif always or self.clock() - self._printed >= _INTERVAL:
            self.console.print(Text(text), soft_wrap=True)
            self._printed = self.clock()
