"""The table of results: one row for each run of a sweep."""

from collections.abc import Iterable, Mapping
from typing import Any

from fedjax_bal.experiments.plan import Point, Sweep
from fedjax_bal.metrics import ALL_METRICS

FIGURES = tuple(metric.name for metric in ALL_METRICS if metric.of_run and metric.swept)
COSTS = ("program", "runs_together", "compile_s", "client_updates_per_s", "samples_per_s", "device_bytes")
DONE, UNFINISHED, DIVERGED, REFUSED, FAILED = "done", "unfinished", "diverged", "refused", "failed"


def result_rows(
    sweep: Sweep,
    summaries: Mapping[int, Mapping[str, Any]],
    refused: Mapping[int, str],
    lost: Mapping[tuple[int, str, int], str],
    costs: Mapping[tuple[str, str, int], Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """A row for each run of the sweep, finished or not.

    Args:
        sweep: the sweep.
        summaries: the summary of every point that could be set up, by its number.
        refused: the reasons why the others couldn't.
        lost: the reasons why runs could not be trained, by point, method and seed.
        costs: `COSTS` of the run's batch, as far as known, by point, method and seed.

    Returns:
        Dicts with the swept keys, `point`, `method`, `seed`, `status`, `FIGURES`, `COSTS` and `failure`. The rates are
        those of all runs of the batch.
    """
    return list(_rows(sweep, summaries, refused, lost, costs))


def _rows(sweep: Sweep, summaries: Any, refused: Any, lost: Any, costs: Any) -> Iterable[dict[str, Any]]:
    for number, point in enumerate(sweep.points):
        found = {(run["method"], run["seed"]): run for run in summaries.get(number, {}).get("runs", [])}
        for index, method in enumerate(point.config.methods):
            wanted = point.config.for_method(index).training.rounds
            for seed in point.config.seeds:
                run = found.get((method.name, seed), {})
                finished = run.get("rounds", 0) >= wanted or run.get("stopped_early") is not None
                trouble = lost.get((number, method.name, seed))
                row = row_of(point, method.name, seed, run, finished, refused.get(number), trouble)
                yield row | costs_of(costs, row)


def row_of(
    point: Point,
    method: str,
    seed: int,
    run: Mapping[str, Any],
    finished: bool,
    refused: str | None,
    trouble: str | None,
) -> dict[str, Any]:
    """The row of a run, its costs empty, from its summary; `refused` and `trouble` say why there is none."""
    failure = refused or run.get("failure") or trouble
    return {
        **point.values,
        "point": point.label,
        "method": method,
        "seed": seed,
        "status": FAILED if trouble else _status(refused is not None, failure, finished),
        **{key: run.get(key) for key in FIGURES},
        **dict.fromkeys(COSTS),
        "failure": failure,
    }


def costs_of(costs: Mapping[tuple[str, str, int], Mapping[str, Any]], row: Mapping[str, Any]) -> dict[str, Any]:
    """The known costs of a row's run."""
    known = costs.get((row["point"], row["method"], row["seed"]), {})
    return {key: known[key] for key in COSTS if key in known}


def _status(refused: bool, failure: str | None, finished: bool) -> str:
    if refused:
        return REFUSED
    return DIVERGED if failure else DONE if finished else UNFINISHED
