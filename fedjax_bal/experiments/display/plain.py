"""The display where there is no terminal: lines."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fedjax_bal.experiments.display.tally import RunProgress, duration, percent

_PLAIN_INTERVAL = 2.0


class PlainProgress:
    """Lines for a file or a pipe: at once at the start, then about one each two seconds, and one a finished run.

    Args:
        console: where to.
        clock: seconds, from anywhere.

    Example:
        >>> progress = PlainProgress(Console(width=100), clock=lambda: 0.0)
        >>> progress.start(["fedavg"], [7], {"fedavg": 10}, Path("runs/quickstart"))
        1 method x 1 seed, 10 rounds in all, into runs/quickstart
        >>> progress.advance("fedavg", 7, 10, 0.875, 100.0)
        fedavg, seed 7: finished after 10 rounds, accuracy 87.5%, 100 clients/s; 1/1 runs, 100%, 0:00 left
        >>> progress.stop()
        1 of 1 runs finished in 0:00
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self._console = console
        self._clock = clock
        self._tally = RunProgress([""], [0], {"": 0}, clock)
        self._printed = clock()
        self._running = False

    def start(self, methods: Sequence[str], seeds: Sequence[int], rounds: Mapping[str, int], folder: Path) -> None:
        """Says how much work there is."""
        self._tally = RunProgress(methods, seeds, rounds, self._clock)
        self._running = True
        total = sum(rounds[method] for method in methods) * len(seeds)
        self._print(
            f"{_many(len(methods), 'method')} x {_many(len(seeds), 'seed')}, {total} rounds in all, into {folder}"
        )

    def compiling(self, method: str) -> None:
        """Says so, unless a line was just printed."""
        self._tally.compiling(method)
        if self._due():
            self._print(f"{method}: compiling")

    def advance(self, method: str, seed: int, round: int, accuracy: float | None, clients_per_s: float) -> None:
        """A line when the run has just finished, or when two seconds have passed."""
        run, rounds = self._tally.runs[method][seed], self._tally.rounds[method]
        finishes, news = run.round < rounds <= round, round != run.round or clients_per_s > 0
        self._tally.advance(method, seed, round, accuracy, clients_per_s)
        if finishes or (news and self._due()):
            stands = f"finished after {round} rounds" if round >= rounds else f"round {round}/{rounds}"
            self._tell(method, seed, stands, f", {clients_per_s:,.0f} clients/s" if clients_per_s > 0 else "")

    def ended(self, method: str, seed: int) -> None:
        """A line that says where."""
        self._tally.ended(method, seed)
        self._tell(method, seed, f"stopped early after round {self._tally.runs[method][seed].round}")

    def note(self, text: str) -> None:
        """Prints it."""
        self._print(text)

    def stop(self) -> None:
        """Says how far it came, once, if anything began."""
        if self._running:
            done, runs = self._tally.runs_finished
            self._print(f"{done} of {runs} runs finished in {duration(self._tally.elapsed)}")
        self._running = False

    def _tell(self, method: str, seed: int, stands: str, pace: str = "") -> None:
        done, runs = self._tally.runs_finished
        accuracy = percent(self._tally.runs[method][seed].accuracy)
        self._print(
            f"{method}, seed {seed}: {stands}, accuracy {accuracy}{pace}; {done}/{runs} runs, "
            f"{percent(self._tally.share, 0)}, {duration(self._tally.seconds_left)} left"
        )

    def _due(self) -> bool:
        return self._clock() - self._printed >= _PLAIN_INTERVAL

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)
        self._printed = self._clock()


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
