"""One tidy table: a row for each run of a sweep."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedjax_bal.experiment.endings import AT_THE_END, PERSONALISED, TIMES
from fedjax_bal.sweep.plan import Sweep

FIGURES = (
    "rounds",
    "final_accuracy",
    "best_accuracy",
    "last5_accuracy",
    "rounds_to_target",
    "traffic_bytes",
    "traffic_to_target_bytes",
    "last10_accuracy",
    "stopped_early",
    "best_validation_round",
    "accuracy_at_best_validation",
    *AT_THE_END,
    *PERSONALISED,
    *TIMES,
)
COSTS = ("program", "runs_together", "compile_s", "client_updates_per_s", "samples_per_s", "device_bytes")
DONE, UNFINISHED, DIVERGED, REFUSED, FAILED = "done", "unfinished", "diverged", "refused", "failed"


def rows(
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
                trouble = lost.get((number, method.name, seed))
                failure = refused.get(number) or run.get("failure") or trouble
                finished = run.get("rounds", 0) >= wanted or run.get("stopped_early") is not None
                status = FAILED if trouble else _status(number in refused, failure, finished)
                yield {
                    **point.values,
                    "point": point.label,
                    "method": method.name,
                    "seed": seed,
                    "status": status,
                    **{key: run.get(key) for key in FIGURES},
                    **{key: costs.get((point.label, method.name, seed), {}).get(key) for key in COSTS},
                    "failure": failure,
                }


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
