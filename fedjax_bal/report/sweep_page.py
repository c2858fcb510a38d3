"""The page of a sweep: `sweep.html`."""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_bal.lab import FolderError, SweepFolder, as_csv
from fedjax_bal.metrics import SHARE, Spread
from fedjax_bal.report.markup import Page, command, folded
from fedjax_bal.report.published import Beside, beside_of_sweep, paper_tables, paper_verdict, published_by_metric
from fedjax_bal.report.sweep_results import (
    LEAD,
    VALIDATION,
    Cell,
    Results,
    Situation,
    best,
    cells,
    comparable,
    name_situation,
    name_tuned,
    neighbours,
    read_results,
    readable,
    situations,
    summarise_situation,
    sweep_curves,
)
from fedjax_bal.report.tables import Details, comparison, encoded, statistics
from fedjax_bal.report.wording import (
    LONGEST_NAME,
    Table,
    averaged_heading,
    averaged_in_words,
    lead,
    plural,
    printable,
    table_notes,
    verdict,
)

if TYPE_CHECKING:
    from fedjax_bal.report.svg import Picture

_MOST_TOLD = 6
_MOST_LACKING = 20
_MOST_COLUMNS = 8  # of methods beside each other
_ON_TEST = " Settings were selected on the test set, so all of them are optimistic."
_ON_VALIDATION = " Settings were selected by accuracy on the validation images."


def build_sweep(folder: Path, note: Callable[[str], object] = lambda text: None) -> Path:
    """Writes `sweep.html`, `plots/*.svg`, `curves.csv`, and `tables.csv` and `.tex` into a sweep's folder.

    The sweep may be unfinished, which the page then says. `note` is told of damaged lines of metrics, which are left
    out. Returns the page.

    Raises:
        FolderError: a file is missing or damaged, or the folder can't be written to.
    """
    from fedjax_bal.report.svg import to_pictures
    from fedjax_bal.report.sweep_plots import sweep_figures

    own, results = SweepFolder(folder), read_results(folder)
    lines, beside = sweep_curves(results, own, note), beside_of_sweep(results)
    page = page_of_sweep(results, beside, to_pictures(sweep_figures(results, lines)))
    try:
        return own.write_page(page.html(), page.documents(), encoded(as_csv(lines)), page.tables())
    except OSError as error:
        raise FolderError(f"{folder}: the page can't be written there ({error.strerror})") from error


def page_of_sweep(results: Results, beside: Beside, pictures: Sequence["Picture"] = ()) -> Page:
    """The page of a sweep."""
    seeds = len({row.get("seed") for row in results.rows})
    counts = {"run": len(results.rows), "method": len(results.methods), "seed": seeds}
    # The comparison of methods at each condition, each at its best setting there; only the last table has notes.
    found = comparable(results)
    (partitions, crossed) = _covered_draws(results)
    every = [own for _, groups in found for group in groups for own in group]
    tables = [comparison(groups, results.target, "", name) for name, groups in found]
    notes = " ".join(table_notes(every, partitions=partitions, crossed=crossed))
    repeat = command(["fedjax-bal", "sweep", "sweep.yaml"], results.sheet, results.command)
    return Page(
        tab=f"{results.name}: federated learning sweep",
        kicker=" · ".join(["Federated learning sweep", *(plural(count, noun) for noun, count in counts.items())]),
        heading=results.name,
        warnings=_lacking(results),
        answers=[answer(results)],
        paper=paper_verdict(beside),
        published=paper_tables(beside),
        comparisons=[*tables[:-1], tables[-1]._replace(note=notes)],
        statistics=list(_statistics(results, beside)),
        details=best_settings(results),
        pictures=pictures,
        settings=[all_settings(results)] if results.axes else [],
        sections=[
            ("How to reproduce", f"{repeat}{folded('sweep.yaml', f'<pre>{escape(results.text)}</pre>')}"),
        ],
    )


def answer(results: Results) -> str:
    """The result of the sweep in a few sentences: what a run's report says, or of each condition who leads there."""
    told = lambda situation: name_situation(results, situation).replace(" ", "\N{NO-BREAK SPACE}")
    found = [(told(own), summarise_situation(results, own)) for own in situations(results)]
    known = [(name, group) for name, group in found if any(own.last5.mean is not None for own in group)]
    if not known:
        return "No run is finished yet."
    how = (_ON_VALIDATION if results.judge == VALIDATION else _ON_TEST) if results.tuned else ""
    if results.conditions:
        each = "; ".join(f"{name}: {lead(group)}" for name, group in known[:_MOST_TOLD])
        more = f"; and {len(known) - _MOST_TOLD} more below" if len(known) > _MOST_TOLD else ""
        what = "Accuracy" if len(results.methods) == 1 else "Highest accuracy"
        when = averaged_in_words(results.averaged)
        return f"{what} over the {when} at each condition: {each}{more}.{how}"
    return verdict(known[0][1]) + _picked(results) + how


def _picked(results: Results) -> str:
    """The best settings of a few methods, as a sentence; empty where nothing is tuned, or the table below must do."""
    if not results.tuned or len(results.methods) > _MOST_TOLD:
        return ""
    tops = [(method, best(results, method)) for method in results.methods]
    told = [f"{method} {name_tuned(results, top.setting)}" for method, top in tops if top is not None]
    return f" Best settings: {', '.join(told)}."


def _lacking(results: Results) -> list[str]:
    """Sentences on runs that are missing, and on runs that failed."""
    verb = lambda count: "is" if count == 1 else "are"
    left = (results.asked or 0) - len(results.rows)
    found = []
    if left > 0:
        found.append(
            f"This sweep is not finished: {left} of its {results.asked} runs {verb(left)} not in the table yet."
        )
    lost = [row for row in results.rows if row["status"] != "done"]
    if lost:
        found.append(
            f"{len(lost)} of {len(results.rows)} runs {verb(len(lost))} without a result, in none of the means below:"
        )
        found += [
            f"{row['point']}, {row['method']}, seed {row.get('seed')}: {row['status']}"
            + (f": {row['failure']}" if row["failure"] else "")
            for row in lost[:_MOST_LACKING]
        ]
    return [*found, *([f"and {len(lost) - _MOST_LACKING} more"] if len(lost) > _MOST_LACKING else [])]


def _covered_draws(results: Results) -> tuple[bool, bool]:
    """Whether the runs of a setting use several partitions, and whether several of them share a partition."""
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
