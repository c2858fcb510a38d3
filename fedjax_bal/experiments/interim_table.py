"""The table of an unfinished sweep, so that a killed sweep leaves the rows of its finished runs."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedjax_bal.experiments.plan import Sweep
from fedjax_bal.experiments.results_table import costs_of, row_of
from fedjax_bal.experiments.sweep_work import SweepWork
from fedjax_bal.runs import SweepFolder

# The whole table is written each time: done after every run, that would be quadratic in their number. So the next
# writing waits while writing has taken more than this share of the time so far. The table of a small sweep, which is
# written in milliseconds, still has every row at once; that of thousands of runs lags by seconds.
_SHARE = 1 / 20

Costs = Mapping[tuple[str, str, int], Mapping[str, Any]]


class InterimTable:
    """Keeps `results.csv` up to date with the finished runs.

    Args:
        sweep: the sweep.
        folder: its folder.
        work: its runs and their state.
        costs: notes the costs of the batches, and returns them.
        clock: seconds, from any start.
    """

    def __init__(
        self,
        sweep: Sweep,
        folder: SweepFolder,
        work: SweepWork,
        costs: Callable[[], Costs],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sweep, self._folder, self._work, self._costs, self._clock = sweep, folder, work, costs, clock
        self._rows: dict[tuple[int, int, int], dict[str, Any]] = {}  # by point, method and seed, once they are over
        self._began, self._spent = clock(), 0.0

    def update(self) -> None:
        """Writes the table if it lacks finished runs, unless writing has taken too much time already."""
        now = self._clock()
        if self._spent > _SHARE * (now - self._began):
            return
        before = len(self._rows)
        for key in self._keys():
            if key not in self._rows and self._over(*key):
                self._rows[key] = self._row(*key)
        if len(self._rows) > before:
            costs = self._costs()
            rows = [self._rows[key] for key in self._keys() if key in self._rows]
            self._folder.write_results([row | costs_of(costs, row) for row in rows])
        self._spent += self._clock() - now

    def _keys(self) -> Iterator[tuple[int, int, int]]:
        """Every run in the order of the table: its point's number, its method's number and its seed."""
        for number, point in enumerate(self._sweep.points):
            for index in range(len(point.config.methods)):
                yield from ((number, index, seed) for seed in point.config.seeds)

    def _over(self, number: int, index: int, seed: int) -> bool:
        if number in self._work.broken:
            return True
        runner = self._work.runners[number]
        name = runner.name((index, seed))
        return (index, seed) in runner.concluded or name in runner.failures or (number, *name) in self._work.lost

    def _row(self, number: int, index: int, seed: int) -> dict[str, Any]:
        point, work = self._sweep.points[number], self._work
        name = point.config.methods[index].name, seed
        runner = work.runners.get(number)
        started = runner is not None and (runner.lines.get(name) or name in runner.failures)
        run = runner.summarise((index, seed)) if runner is not None and started else {}
        return row_of(point, *name, run, True, work.broken.get(number), work.lost.get((number, *name)))
