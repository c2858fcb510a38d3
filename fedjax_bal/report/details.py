"""Tables beside the comparison, by class, client, validation and time, and remarks on stopped and faulty runs."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.metrics import METRICS, REPORT_TABLES, Column, Metric, ReportTable, spread
from fedjax_bal.report.wording import LONGEST_NAME, Table, printable


class Details(NamedTuple):
    """A further table of the report: its heading, a row for each method, and what its numbers are."""

    title: str
    table: Table
    note: str


_MOST_NAMED = 12  # runs of which failures, or broken clients, are named
_LONGEST_TEXT = 400


def details(runs: Sequence[Mapping[str, Any]]) -> list[Details]:
    """The tables for which `runs` of a `summary.json` have numbers; columns without any are left out."""
    shown = ((table, _columns(table, runs)) for table in REPORT_TABLES)
    return [_details(table, columns, runs) for table, columns in shown if columns]


def ending(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Names the runs that were stopped early; None where none was."""
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


def failed(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Names the runs that failed, with the reasons; None where none did."""
    told = [f"{_named(run)} ({printable(run['failure'], _LONGEST_TEXT)})" for run in runs if run.get("failure")]
    return f"Runs that failed, and so have no final accuracy: {_first_of(told)}." if told else None


def broken(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Names the clients that were left out of rounds, or whose updates were scaled down; None without any."""
    told = [
        f"{_named(run)}: {run['excluded'] or 0:g} left out, "
        f"{run['clipped'] or 0:g} scaled down ({printable(run['broken_clients'], _LONGEST_TEXT)})"
        for run in runs
        if run.get("broken_clients")
    ]
    return f"Broken clients. {_first_of(told)}." if told else None


def _named(run: Mapping[str, Any]) -> str:
    return f"{printable(run['method'], LONGEST_NAME)}, seed {run['seed']}"


def _first_of(told: Sequence[str]) -> str:
    rest = f"; and {len(told) - _MOST_NAMED} more runs" if len(told) > _MOST_NAMED else ""
    return "; ".join(told[:_MOST_NAMED]) + rest


def _columns(table: ReportTable, runs: Sequence[Mapping[str, Any]]) -> list[tuple[Metric, Column]]:
    """The metrics of a table for which there are numbers."""
    own = [(metric, metric.column) for metric in METRICS.values() if metric.column and metric.column.table is table]
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
    headings = (", ".join(filter(None, (column.heading, metric.unit.symbol))) for metric, column in columns)
    notes = dict.fromkeys([table.note, *(column.note for _, column in columns)])
    return Details(table.title, Table(("Method", *headings), rows), " ".join(filter(None, notes)))
