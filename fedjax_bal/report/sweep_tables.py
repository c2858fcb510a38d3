"""The tables of a sweep: the methods at each condition, and the accuracy at every setting."""

from collections.abc import Iterator
from typing import Any

from fedjax_bal.metrics import SHARE, Spread
from fedjax_bal.report.details import Details
from fedjax_bal.report.published import Beside, paper_tables, published_by_metric
from fedjax_bal.report.sweep_cells import (
    Cell,
    Situation,
    best,
    cells,
    comparable,
    name_situation,
    name_tuned,
    neighbours,
    situations,
)
from fedjax_bal.report.sweep_results import LEAD, Results, readable
from fedjax_bal.report.table_files import as_files, comparison_table, comparison_title, statistics
from fedjax_bal.report.wording import LONGEST_NAME, Table, averaged_heading, averaged_in_words, printable, table_notes

_MOST_COLUMNS = 8  # of methods beside each other


def sweep_tables(results: Results, beside: Beside) -> dict[str, bytes]:
    """The tables of a sweep's runs, by the ending of their file.

    CSV has the statistics of each setting behind the swept keys, Markdown and LaTeX the tables of the page.
    """
    shown = [*comparisons(results), *paper_tables(beside), *best_settings(results), all_settings(results)]
    return as_files(shown, list(_statistics(results, beside)))


def comparisons(results: Results) -> list[Details]:
    """A table of the methods at each condition, each at its best setting there; only the last one has notes."""
    found, (partitions, crossed) = comparable(results), _covered_draws(results)
    every = [own for _, groups in found for group in groups for own in group]
    notes = table_notes(every, partitions=partitions, crossed=crossed)
    tables = [Details(comparison_title(name), comparison_table(groups, results.target), "") for name, groups in found]
    return [*tables[:-1], tables[-1]._replace(note=" ".join(notes))]


def _covered_draws(results: Results) -> tuple[bool, bool]:
    """Whether the runs of a setting are on several partitions, and whether several of them are on one of these."""
    draws = [{run["seed"] for run in runs} for runs in results.runs.values()]
    partitions = [len({draw.partition for draw in own}) for own in draws]
    several = max(partitions, default=1) > 1
    return several, several and any(len(own) > count for own, count in zip(draws, partitions, strict=True))


def best_settings(results: Results) -> list[Details]:
    """Each method's best setting at each condition, beside those next to it; none where nothing is tuned."""
    if not results.tuned:
        return []
    heads = [*(("Condition",) if results.conditions else ()), "Method", "Setting", _heading(results)]
    for place in results.tuned:
        sides = ("Next lower", "Next higher") if results.is_numeric(place) else ("One before", "One after")
        heads += [f"{side} {results.axes[place].name}" for side in sides]
    rows = []
    for situation in situations(results):
        condition = (name_situation(results, situation),) if results.conditions else ()
        rows += [(*condition, *_best_row(results, method, situation)) for method in results.methods]
    return [Details("Best settings", Table(tuple(heads), rows), "")]


def _best_row(results: Results, method: str, situation: Situation) -> tuple[str, ...]:
    top = best(results, method, situation)
    pairs = zip(results.tuned, neighbours(results, method, situation), strict=False)
    beside = [(cell, place) for place, pair in pairs for cell in pair]
    others = [f"{percent(cell)} ({readable(cell.setting[place])})" if cell else "-" for cell, place in beside]
    lacking = ["-"] * (2 * len(results.tuned) - len(others))
    values = name_tuned(results, top.setting) if top else "-"
    return printable(method, LONGEST_NAME), values, percent(top), *others, *lacking


def all_settings(results: Results) -> Details:
    """The accuracy at every setting: a row for each setting, or for each method where a row would be too long."""
    methods = results.methods
    by_method = {method: {c.setting: c for c in cells(results, method, LEAD)} for method in methods}
    rank = lambda setting: [own.index(value) for own, value in zip(results.values, setting, strict=True)]
    settings = sorted({setting for own in by_method.values() for setting in own}, key=rank)
    names = [printable(method, LONGEST_NAME) for method in methods]
    told = lambda setting: name_situation(results, dict(enumerate(setting))) or _heading(results)
    texts = [[percent(by_method[method].get(place)) for method in methods] for place in settings]
    if len(methods) > max(_MOST_COLUMNS, len(settings)):
        rows = [(name, *own) for name, *own in zip(names, *texts, strict=True)]
        table = Table(("Method", *map(told, settings)), rows)
    else:
        table = Table(("Setting", *names), [(told(place), *own) for place, own in zip(settings, texts, strict=True)])
    what = averaged_in_words(results.averaged)
    return Details("All settings", table, f"Mean of the {what} of a run, %, over seeds.")


def _heading(results: Results) -> str:
    return f"{averaged_heading(results.averaged).capitalize()}, %"


def percent(cell: Cell | None) -> str:
    """A cell's mean and spread over seeds, in percent."""
    if cell is None or cell.mean is None:
        return "-"
    text = SHARE.show(Spread(cell.mean, cell.deviation, cell.count))
    return text + f" ({cell.count} of {cell.asked} runs)" * (cell.count < cell.asked)


def _statistics(results: Results, beside: Beside) -> Iterator[dict[str, Any]]:
    """The statistics of each setting behind the swept keys."""
    keys = [key for axis in results.axes for key in axis.keys if key.partition(".")[0] != "paper"]
    for setting in dict.fromkeys(setting for _, setting in results.runs):
        runs = [run for (_, own), found in results.runs.items() if own == setting for run in found]
        condition = name_situation(results, {place: setting[place] for place in results.conditions})
        swept = {key: runs[0][key] for key in keys}
        yield from ({**swept, **row} for row in statistics(runs, published_by_metric(beside, printable(condition))))
