"""What a table of accuracies leaves out, by class, client, validation and time; only where there is something."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.metrics import ALL_METRICS, REPORT_TABLES, Column, Metric, ReportTable, spread
from fedjax_bal.report.wording import LONGEST_NAME, Table, printable


class Details(NamedTuple):
    """A further table of the report.

    Attributes:
        title: its heading.
        table: a row for each method.
        note: what its numbers are.
    """

    title: str
    table: Table
    note: str


_MOST_BROKEN = 12  # runs of which broken clients are named
_LONGEST_TEXT = 400


def details(runs: Sequence[Mapping[str, Any]]) -> list[Details]:
    """The tables for which `runs` of a `summary.json` have numbers; columns without any are left out.

    >>> run = {"method": "fedavg", "seed": 0, "balanced_accuracy": 0.5, "worst_class_accuracy": 0.25}
    >>> details([run])[0].table
    Table(headings=('Method', 'Mean over classes, %', 'Worst class, %'), rows=[('fedavg', '50.0', '25.0')])
    """
    shown = ((table, _columns(table, runs)) for table in REPORT_TABLES)
    return [_details(table, columns, runs) for table, columns in shown if columns]


def ending(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Which runs were stopped early, in words; None where none was.

    >>> ending([{"method": "a", "seed": 3, "stopped_early": 40}]).split(": ")[1].split(".")[0]
    'a after round 40 (seed 3)'
    """
    early: dict[str, list[str]] = {}
    for run in runs:
        if run.get("stopped_early") is not None:
            early.setdefault(run["method"], []).append(f"{run['stopped_early']} (seed {run['seed']})")
    if not early:
        return None
    named = "; ".join(f"{printable(name, LONGEST_NAME)} after round {', '.join(at)}" for name, at in early.items())
    return (
        f"Stopped early, because the metric on validation images no longer got better: {named}. Final accuracies are "
        "those of these rounds; that of the best round by validation is further below."
    )


def broken(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Which clients were left out of rounds, or had their updates scaled down, in words; None where none was.

    >>> broken([{"method": "a", "seed": 3, "excluded": 2, "clipped": 0, "broken_clients": "client 7 in round 4"}])
    'Broken clients. a, seed 3: 2 left out, 0 scaled down (client 7 in round 4).'
    """
    told = [
        f"{printable(run['method'], LONGEST_NAME)}, seed {run['seed']}: {run['excluded'] or 0:g} left out, "
        f"{run['clipped'] or 0:g} scaled down ({printable(run['broken_clients'], _LONGEST_TEXT)})"
        for run in runs
        if run.get("broken_clients")
    ]
    rest = f"; and {len(told) - _MOST_BROKEN} more runs" if len(told) > _MOST_BROKEN else ""
    return f"Broken clients. {'; '.join(told[:_MOST_BROKEN])}{rest}." if told else None


def _columns(table: ReportTable, runs: Sequence[Mapping[str, Any]]) -> list[tuple[Metric, Column]]:
    """The metrics of a table for which there are numbers."""
    own = [(metric, metric.column) for metric in ALL_METRICS if metric.column and metric.column.table is table]
    known = [pair for pair in own if any(run.get(pair[0].name) is not None for run in runs)]
    lone = sum(column.optional for _, column in known) < 2
    return [pair for pair in known if not (lone and pair[1].optional)]


def _details(
    table: ReportTable, columns: Sequence[tuple[Metric, Column]], runs: Sequence[Mapping[str, Any]]
) -> Details:
    rows = []
    for method in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == method]
        cells = [metric.unit.show(spread([run.get(metric.name) for run in own])) for metric, _ in columns]
        rows.append((printable(method, LONGEST_NAME), *cells))
    headings = (f"{column.heading}, {metric.unit.symbol}" for metric, column in columns)
    return Details(table.title, Table(("Method", *headings), rows), table.note)
