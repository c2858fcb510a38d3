"""The plain display: lines, for output that isn't a terminal."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fedjax_bal.experiments.display.tally import RunProgress, duration, percent

_PLAIN_INTERVAL = 2.0


class PlainProgress:
    """Lines for a file or a pipe: one at the start, one about every two seconds, and one for each finished run."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self._console = console
        self._clock = clock
        self._tally = RunProgress([""], [0], {"": 0}, clock)
        self._printed = clock()
        self._running = False

    def start(self, methods: Sequence[str], seeds: Sequence[int], rounds: Mapping[str, int], folder: Path) -> None:
        """Prints the amount of work."""
        self._tally = RunProgress(methods, seeds, rounds, self._clock)
        self._running = True
        total = sum(rounds[method] for method in methods) * len(seeds)
        self._print(
            f"{_many(len(methods), 'method')} x {_many(len(seeds), 'seed')}, {total} rounds in all, into {folder}"
        )

    def compiling(self, method: str) -> None:
        """Prints a line, unless one was just printed."""
        self._tally.compiling(method)
        if self._due():
            self._print(f"{method}: compiling")

    def advance(self, method: str, seed: int, round: int, accuracy: float | None, clients_per_s: float) -> None:
        """Prints a line if the run has just finished, or if two seconds have passed."""
        run, rounds = self._tally.runs[method][seed], self._tally.rounds[method]
        finishes, changed = run.round < rounds <= round, round != run.round or clients_per_s > 0
        self._tally.advance(method, seed, round, accuracy, clients_per_s)
        if finishes or (changed and self._due()):
            status = f"finished after {round} rounds" if round >= rounds else f"round {round}/{rounds}"
            self._print_run(method, seed, status, f", {clients_per_s:,.0f} clients/s" if clients_per_s > 0 else "")

    def ended(self, method: str, seed: int) -> None:
        """Prints the round at which the run ended."""
        self._tally.ended(method, seed)
        self._print_run(method, seed, f"stopped early after round {self._tally.runs[method][seed].round}")

    def note(self, text: str) -> None:
        """Prints the text."""
        self._print(text)

    def stop(self) -> None:
        """Prints the number of finished runs, once, if any began."""
        if self._running:
            done, runs = self._tally.runs_finished
            self._print(f"{done} of {runs} runs finished in {duration(self._tally.elapsed)}")
        self._running = False

    def _print_run(self, method: str, seed: int, status: str, pace: str = "") -> None:
        done, runs = self._tally.runs_finished
        accuracy = percent(self._tally.runs[method][seed].accuracy)
        self._print(
            f"{method}, seed {seed}: {status}, accuracy {accuracy}{pace}; {done}/{runs} runs, "
            f"{percent(self._tally.share, 0)}, {duration(self._tally.seconds_left)} left"
        )

    def _due(self) -> bool:
        return self._clock() - self._printed >= _PLAIN_INTERVAL

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)
        self._printed = self._clock()


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
