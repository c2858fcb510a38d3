"""One tidy table: a row for each run of a sweep."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
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
    """A row for each run that the sweep asks for, whatever came of it.

    Args:
        sweep: the sweep.
        summaries: the summary of every point that could be set up, by its number.
        refused: why the others couldn't.
        lost: why runs could not be carried out, by point, method and seed.
        costs: what the group of a run cost, by point, method and seed; `COSTS` of those that are known.

    Returns:
        Dicts with the swept keys, `point`, `method`, `seed`, `status`, `FIGURES`, `COSTS` and `failure`. The rates are
        those of all runs that were trained together.
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
    """What is known of the costs of a row's run."""
    known = costs.get((row["point"], row["method"], row["seed"]), {})
    return {key: known[key] for key in COSTS if key in known}


def _status(refused: bool, failure: str | None, finished: bool) -> str:
    if refused:
        return REFUSED
    return DIVERGED if failure else DONE if finished else UNFINISHED


def as_csv(table: Sequence[Mapping[str, Any]]) -> str:
    r"""The table as CSV, with a line of headings; None is empty, and lists are as YAML writes them.

    Example:
        >>> as_csv([{"alpha": 0.1, "seed": 0, "failure": None}])
        'alpha,seed,failure\n0.1,0,\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()
