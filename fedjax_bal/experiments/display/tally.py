"""Counts the rounds that are done and estimates the time left, for any display."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence


@dataclasses.dataclass
class RunRow:
    """Progress of the run of one method with one seed."""

    round: int = 0
    accuracy: float | None = None
    warm: bool = False
    ended: bool = False


class RunProgress:
    """Progress of all runs of a comparison, and an estimate of the time left.

    Each method has its own pace: seconds over rounds between two dispatches, without compilation and without runs that
    were found on disk. A method without a pace is assumed to have that of the others, and a method that is still to be
    compiled to need the mean of the compilations so far.
    """

    def __init__(
        self,
        methods: Sequence[str],
        seeds: Sequence[int],
        rounds: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.rounds = {method: rounds[method] for method in methods}
        self.runs = {method: {seed: RunRow() for seed in seeds} for method in methods}
        self.current = dict.fromkeys(methods, seeds[0])
        self.clients_per_s = dict.fromkeys(methods, 0.0)
        self.compiling_now: str | None = None
        self.latest = methods[0]
        self.clock = clock
        self.began = self._event = clock()
        self._seconds = dict.fromkeys(methods, 0.0)
        self._paced = dict.fromkeys(methods, 0)
        self._compiled: set[str] = set()
        self._compile_s: list[float] = []

    def compiling(self, method: str) -> None:
        """Notes that a method's program is being compiled."""
        self.compiling_now = self.latest = method
        self._event = self.clock()
        for run in self.runs[method].values():
            run.warm = False

    def advance(self, method: str, seed: int, round: int, accuracy: float | None, clients_per_s: float) -> None:
        """Notes a run's progress."""
        run, now = self.runs[method][seed], self.clock()
        if self.compiling_now == method and not clients_per_s:
            self._compile_s.append(now - self._event)
        if self.compiling_now == method or clients_per_s:
            self._compiled.add(method)
        if run.warm and clients_per_s > 0 and round > run.round:
            self._seconds[method] += now - self._event
            self._paced[method] += round - run.round
        run.warm = True
        self._event, self.compiling_now, self.latest = now, None, method
        run.round = round
        run.accuracy = run.accuracy if accuracy is None else accuracy
        self.current[method] = seed
        self.clients_per_s[method] = clients_per_s or self.clients_per_s[method]

    def ended(self, method: str, seed: int) -> None:
        """Notes that a run ends early."""
        self.runs[method][seed].ended = True

    def finished(self, method: str) -> list[RunRow]:
        """The finished runs of a method."""
        return [run for run in self.runs[method].values() if run.ended or run.round >= self.rounds[method]]

    def mean(self, method: str) -> float | None:
        """The mean accuracy of a method's finished runs; None if none has finished."""
        values = [run.accuracy for run in self.finished(method) if run.accuracy is not None]
        return sum(values) / len(values) if values else None

    @property
    def runs_finished(self) -> tuple[int, int]:
        """The number of finished runs, and of all runs."""
        return sum(len(self.finished(method)) for method in self.runs), sum(map(len, self.runs.values()))

    @property
    def share(self) -> float:
        """The share of all rounds that is done, from 0 to 1."""
        total = sum(self.rounds[method] * len(runs) for method, runs in self.runs.items())
        return 1 - sum(map(self._remaining, self.runs)) / max(total, 1)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.began

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end at the measured pace, compilations included.

        None before a pace is known, and while a compilation takes longer than those so far.
        """
        if not any(map(self._remaining, self.runs)):
            return 0.0
        paced = sum(self._paced.values())
        if not paced:
            return None
        overall = sum(self._seconds.values()) / paced
        training = 0.0
        for method, count in self._paced.items():
            pace = self._seconds[method] / count if count else overall
            training += self._remaining(method) * pace
        compiling = self._compiling_left()
        return None if compiling is None else training + compiling

    def _compiling_left(self) -> float | None:
        """Seconds of the compilations to come, each assumed to take the mean of those so far."""
        ahead = [method for method in self.runs if method not in self._compiled and self._remaining(method)]
        if not ahead or not self._compile_s:
            return 0.0
        mean = sum(self._compile_s) / len(self._compile_s)
        spent = self.clock() - self._event if self.compiling_now in ahead else 0.0
        return None if spent > mean else len(ahead) * mean - spent

    def _remaining(self, method: str) -> int:
        going = [run for run in self.runs[method].values() if not run.ended]
        return sum(max(self.rounds[method] - run.round, 0) for run in going)


def percent(value: float | None, digits: int = 1) -> str:
    """A share from 0 to 1 as per cent; "-" for None."""
    return "-" if value is None else f"{value:.{digits}%}"


def duration(seconds: float | None) -> str:
    """Seconds as hours (from one hour on), minutes and seconds; "-:--" for None."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
