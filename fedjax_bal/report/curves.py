"""The curves of all runs of a sweep as one table."""

from collections.abc import Callable
from itertools import takewhile
from typing import Any

from fedjax_bal.metrics import METRICS
from fedjax_bal.report.sweep_results import Results
from fedjax_bal.runs import SweepFolder
from fedjax_bal.validate import is_number

_OF_RUN = ("method", "seed", "round")


def sweep_curves(
    results: Results, folder: SweepFolder, note: Callable[[str], object] = lambda text: None
) -> list[dict[str, Any]]:
    """A row for each evaluated round of each run: the swept keys, point, method, seed, round, and its numbers.

    A table of this long form is what pandas, R and spreadsheets group and plot as it is; `point`, `method` and `seed`
    join it with `results.csv`. Metrics that no run has are left out, so are lists, and damaged
    lines, which `note` is told.
    """
    # Whatever the table names, only folders among the sweep's own points are read.
    points = {point.path.name: point for point in folder.points()}
    swept = {row["point"]: dict(takewhile(lambda item: item[0] != "point", row.items())) for row in results.rows}
    lines = [
        ({**values, "point": label}, line)
        for label, values in swept.items()
        if label in points
        for line in points[label].read_metrics(note)
    ]
    every = (*(metric.name for metric in METRICS.values() if metric.of_round), "wall_s")
    names = [name for name in every if any(is_number(line.get(name)) for _, line in lines)]
    number = lambda value: value if is_number(value) else None
    return [
        {**of_point, **{key: line[key] for key in _OF_RUN}, **{name: number(line.get(name)) for name in names}}
        for of_point, line in lines
    ]
