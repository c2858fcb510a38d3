"""The table of a sweep: a row for each run, kept up to date while it trains."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedjax_bal.experiments.plan import Sweep
from fedjax_bal.experiments.sweep_work import SweepWork
from fedjax_bal.metrics import METRICS
from fedjax_bal.runs import SweepFolder

COSTS = ("program", "runs_together", "compile_s", "client_updates_per_s", "samples_per_s", "device_bytes")

# The whole table is written each time: done after every run, that would be quadratic in their number. So the next
# writing waits while writing has taken more than this share of the time so far. The table of a small sweep, which is
# written in milliseconds, still has every row at once; that of thousands of runs lags by seconds.
_SHARE = 1 / 20

Run = tuple[int, int, int]
"""A run of a sweep: its point's number, its method's number and its seed."""


class ResultsTable:
    """Writes `results.csv`, and `costs.json` with what is known of the cost of each run; for a part only the latter."""

    def __init__(
        self, sweep: Sweep, folder: SweepFolder, work: SweepWork, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sweep, self._folder, self._work, self._clock = sweep, folder, work, clock
        self._rows: dict[Run, dict[str, Any]] = {}  # of runs that are over
        self._began, self._spent = clock(), 0.0

    def update(self) -> None:
        """Adds the runs that are over, so that a kill leaves their rows, unless writing has taken too much time."""
        now = self._clock()
        if self._spent > _SHARE * (now - self._began):
            return
        before = len(self._rows)
        for run in self._runs():
            if run not in self._rows and self._over(run):
                self._rows[run] = self._row(run, self._summarised(run))
        if len(self._rows) > before:
            self._write([self._rows[run] for run in self._runs() if run in self._rows])
        self._spent += self._clock() - now

    def finish(self) -> list[dict[str, Any]]:
        """Writes the metrics and summaries of all points, and a row for each run, over or not; returns the rows.

        A row has the swept keys, `point`, `method`, `seed`, `status`, the metrics of runs, `COSTS` and `failure`. The
        rates are those of all runs of the batch.
        """
        found = {
            (number, entry["method"], entry["seed"]): entry
            for number, runner in self._work.runners.items()
            for entry in runner.finish()["runs"]
        }
        return self._write([self._row(run, found.get(self._name(run), {})) for run in self._runs()])

    def _runs(self) -> Iterator[Run]:
        """Every run in the order of the table."""
        for number, point in enumerate(self._sweep.points):
            for index in range(len(point.config.methods)):
                yield from ((number, index, seed) for seed in point.config.seeds)

    def _name(self, run: Run) -> tuple[int, str, int]:
        number, index, seed = run
        return number, self._sweep.points[number].config.methods[index].name, seed

    def _over(self, run: Run) -> bool:
        if run[0] in self._work.broken:
            return True
        state = self._work.runners[run[0]].states[run[1:]]
        return state.concluded or state.failure is not None or self._name(run) in self._work.lost

    def _summarised(self, run: Run) -> Mapping[str, Any]:
        runner = self._work.runners.get(run[0])
        return runner.summarise(run[1:]) if runner is not None and runner.states[run[1:]].begun else {}

    def _row(self, run: Run, entry: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a run, its costs empty, from its entry in the summary."""
        number, method, seed = self._name(run)
        refused, lost = self._work.broken.get(number), self._work.lost.get((number, method, seed))
        return {
            **self._sweep.points[number].values,
            "point": self._sweep.points[number].label,
            "method": method,
            "seed": seed,
            "status": "failed" if lost else "refused" if refused is not None else self._status(run, entry),
            **{key: entry.get(key) for key, metric in METRICS.items() if metric.of_run and metric.swept},
            **dict.fromkeys(COSTS),
            "failure": refused or entry.get("failure") or lost,
        }

    def _status(self, run: Run, entry: Mapping[str, Any]) -> str:
        if entry.get("failure"):
            return "diverged"
        wanted = self._work.runners[run[0]].comparison.methods[run[1]].training.rounds
        finished = entry.get("rounds", 0) >= wanted or entry.get("stopped_early") is not None
        return "done" if finished else "unfinished"

    def _write(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Fills in the costs and writes the rows; returns them."""
        costs = self._note_costs()
        for row in rows:
            known = costs.get((row["point"], row["method"], row["seed"]), {})
            row |= {key: known[key] for key in COSTS if key in known}
        if self._folder.part is None:
            self._folder.write_results(rows)
        return rows

    def _note_costs(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        costs = self._folder.read_costs()
        for own in self._work.costs:
            figures = {
                "program": own.batch.program + 1,
                "runs_together": len(own.batch.tasks),
                "compile_s": round(own.cost.compile_s, 3),
                **{name: rate or 0.0 for name, rate in own.cost.rates().items()},
                "device_bytes": own.device_bytes,
            }
            for task in own.batch.tasks:
                number, method, seed = self._name((task.point, *task.run))
                costs[self._sweep.points[number].label, method, seed] = figures
        self._folder.write_costs(costs)
        return costs
