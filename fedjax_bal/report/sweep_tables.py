"""The tables of a sweep as files: the statistics of each method at each setting."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_bal.metrics import METRICS, NOTHING, SHARE, Difference, SeededDraw, Spread
from fedjax_bal.report.details import Details
from fedjax_bal.report.sweep_results import Results, setting_of
from fedjax_bal.report.table_files import as_files, statistics
from fedjax_bal.report.wording import DEVIATION_IN_WORDS, LONGEST_NAME, Table, interval_in_words, points, printable
from fedjax_bal.runs import LARGEST
from fedjax_bal.validate import is_number

_HEADINGS = (
    "Method",
    "n",
    "Final accuracy, %",
    "95% interval",
    "Difference from the first method, points [95% interval]",
)


def sweep_tables(results: Results) -> dict[str, bytes]:
    """The tables of a sweep's finished runs, by the ending of their file.

    CSV has the statistics of each setting behind the swept keys, Markdown and LaTeX those of the final accuracy.
    """
    settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row, partition in zip(results.rows, results.partitions, strict=True):
        settings.setdefault(setting_of(results, row), []).append(_run(row, partition))
    keys = [key for axis in results.axes for key in axis]
    rows = [{**{key: runs[0][key] for key in keys}, **row} for runs in settings.values() for row in statistics(runs)]
    accuracies = [row for row in rows if row["metric"] == "final_accuracy"]
    cells = [(*(printable(str(row[key]), LONGEST_NAME) for key in keys), *_cells(row)) for row in accuracies]
    title = "Final accuracy at each setting"
    return as_files([Details(title, Table((*keys, *_HEADINGS), cells), _note(list(settings.values())))], rows)


def _run(row: Mapping[str, Any], partition: int | None) -> dict[str, Any]:
    """A row as a run whose seed is a `SeededDraw`; without numbers unless it is done."""
    done = row["status"] == "done"
    fits = lambda value: done and is_number(value) and abs(value) <= LARGEST
    known = {key: value if key not in METRICS or fits(value) else None for key, value in row.items()}
    return {**known, "seed": SeededDraw(partition, (row["point"], row.get("seed")))}


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    apart = Difference(*(row[key] for key in ("difference", "difference_low", "difference_high", "pairs")))
    interval = NOTHING if row["low"] is None else f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
    mean = SHARE.show(Spread(row["mean"], row["deviation"], row["n"]))
    return printable(row["method"], LONGEST_NAME), str(row["n"]), mean, interval, points(apart)


def _note(settings: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """What the numbers are, and which draws the intervals cover."""
    draws = [{run["seed"] for run in runs} for runs in settings]
    partitions = [len({draw.partition for draw in own}) for own in draws]
    several = max(partitions, default=1) > 1
    crossed = several and any(len(own) > count for own, count in zip(draws, partitions, strict=True))
    covered = interval_in_words(partitions=several, crossed=crossed)
    return f"{DEVIATION_IN_WORDS}{covered} That of a mean is computed in the same way."
