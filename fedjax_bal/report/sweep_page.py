"""The page of a sweep: `sweep.html`."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedjax_bal.report.curves import sweep_curves
from fedjax_bal.report.markup import command, document, encoded, figures, folded, grid
from fedjax_bal.report.page import curves_first
from fedjax_bal.report.sweep_results import (
    TEST,
    VALIDATION,
    Cell,
    Results,
    Situation,
    best,
    cells,
    is_numeric,
    judge,
    name_situation,
    neighbours,
    read_results,
    situations,
)
from fedjax_bal.report.sweep_tables import sweep_tables
from fedjax_bal.report.wording import LONGEST_NAME, Table, plural, printable
from fedjax_bal.runs import FolderError, SweepFolder, as_csv

if TYPE_CHECKING:
    from fedjax_bal.report.svg import Picture

_MOST_TOLD = 6
_MOST_COLUMNS = 8  # of methods beside each other
_NO_BREAK = "\N{NO-BREAK SPACE}"
_HOW_PICKED = {
    TEST: " Settings were picked on the test set itself, which flatters all of them.",
    VALIDATION: " Settings were picked by accuracy on the validation images.",
}


def build_sweep(folder: Path, note: Callable[[str], object] = lambda text: None) -> Path:
    """Writes `sweep.html`, `plots/*.svg`, `curves.csv`, and `tables.csv`, `.md` and `.tex` into a sweep's folder.

    The sweep may be unfinished, which the page then says. `note` is told of damaged lines of metrics, which are left
    out. Returns the page.

    Raises:
        FolderError: a file is missing or damaged, or the folder can't be written to.
    """
    from fedjax_bal.report.svg import to_pictures
    from fedjax_bal.report.sweep_plots import sweep_figures

    own, results = SweepFolder(folder), read_results(folder)
    lines = sweep_curves(results, own, note)
    curves = encoded(as_csv(lines))
    pictures = to_pictures(sweep_figures(results, lines))
    html = encoded(page(results, pictures))
    try:
        documents = {picture.name: picture.document for picture in pictures}
        return own.write_page(html, documents, curves, sweep_tables(results))
    except OSError as error:
        raise FolderError(f"{folder}: the page can't be written there ({error.strerror})") from error


def page(results: Results, pictures: Sequence["Picture"]) -> str:
    """The page as HTML."""
    curves, others = curves_first(pictures)
    parts = [
        f"<p class=kicker>{escape(_kicker(results))}</p>",
        f"<h1>{escape(results.name)}</h1>",
        _lacking(results),
        f"<p class=verdict>{escape(answer(results))}</p>",
        figures("Curves", curves),
        _best_table(results),
        figures("Figures", others),
        "<h2>All settings</h2>",
        _all_table(results),
        "<h2>How to reproduce</h2>",
        command("fedjax-bal sweep sweep.yaml", results.sheet),
        folded("sweep.yaml", f"<pre>{escape(results.text)}</pre>"),
    ]
    return document(f"{results.name}: federated learning sweep", parts)


def answer(results: Results) -> str:
    """The result of the sweep, in a sentence or two: where each method does best, or of each condition the best one."""
    found = [(situation, _ranked(results, situation)) for situation in situations(results)]
    known = [(situation, ranked) for situation, ranked in found if ranked]
    if not known:
        return "No run is finished yet."
    how = _HOW_PICKED[judge(results)] if results.tuned else ""
    if results.conditions:
        shown = known[:_MOST_TOLD]
        each = (f"{name_situation(results, own)}: {_does(results, *ranked[0])}" for own, ranked in shown)
        more = f"; and {len(known) - len(shown)} more below" if len(known) > len(shown) else ""
        what = "Accuracy" if len(results.methods) == 1 else "Best method"
        return f"{what} at each condition: {'; '.join(each)}{more}.{how}"
    ((_, ranked),) = known
    (first, cell), *others = ranked
    text = f"{printable(first, LONGEST_NAME)} does best: {percent(cell)}{setting(results, cell)}."
    if others:
        second, behind = others[0]
        text += f" Next is {printable(second, LONGEST_NAME)}: {percent(behind)}{setting(results, behind)}."
    return text + how


def _ranked(results: Results, situation: Situation) -> list[tuple[str, Cell]]:
    """The methods with their best cells, the highest mean first."""
    tops = [(method, best(results, method, situation)) for method in results.methods]
    known = [(method, cell) for method, cell in tops if cell is not None]
    return sorted(known, key=lambda pair: -(pair[1].mean or 0.0))


def _does(results: Results, method: str, cell: Cell) -> str:
    return f"{printable(method, LONGEST_NAME)} {percent(cell)}{setting(results, cell)}"


def percent(cell: Cell | None) -> str:
    """A cell's mean and spread over seeds, in percent."""
    if cell is None or cell.mean is None:
        return "-"
    spread = f"{_NO_BREAK}±{_NO_BREAK}{100 * cell.spread:.1f}" if cell.spread is not None else ""
    some = f" ({cell.count} of {cell.asked} runs)" if cell.count < cell.asked else ""
    return f"{100 * cell.mean:.1f}{spread}{_NO_BREAK}%{some}"


def setting(results: Results, cell: Cell) -> str:
    """The tuned values of a cell, as the end of a sentence."""
    values = name_situation(results, {place: cell.setting[place] for place in results.tuned})
    return f" with {values}" if values else ""


def _kicker(results: Results) -> str:
    seeds = len({row.get("seed") for row in results.rows})
    counts = {"run": len(results.rows), "method": len(results.methods), "seed": seeds}
    return " · ".join(["Federated learning sweep", *(plural(count, noun) for noun, count in counts.items())])


def _lacking(results: Results) -> str:
    lost = [row for row in results.rows if row["status"] != "done"]
    left = (results.asked or 0) - len(results.rows)
    unfinished = f"This sweep is not finished: {left} of its {results.asked} runs {_verb(left)} not in the table yet."
    if not lost:
        return f'<p class=unfinished role="status">{unfinished}</p>' if left > 0 else ""
    reasons = [f"{row['point']}, {row['method']}, seed {row.get('seed')}: {_why(row)}" for row in lost[:20]]
    more = f"<li>and {len(lost) - 20} more</li>" if len(lost) > 20 else ""
    listed = "".join(f"<li>{escape(text)}</li>" for text in reasons)
    title = f"{len(lost)} of {len(results.rows)} runs {_verb(len(lost))} without a result, in none of the means below:"
    title = f"{unfinished} {title}" if left > 0 else title
    return f'<div class=unfinished role="status">{escape(title)}<ul>{listed}{more}</ul></div>'


def _verb(count: int) -> str:
    return "is" if count == 1 else "are"


def _why(row: dict[str, str]) -> str:
    return f"{row['status']}: {row['failure']}" if row["failure"] else row["status"]


def _best_table(results: Results) -> str:
    """Each method's best setting at each condition; nothing where none is tuned, as that is the table of all."""
    if not results.tuned:
        return ""
    heads = [*(("condition",) if results.conditions else ()), "method", "final accuracy", "setting"]
    for place in results.tuned:
        sides = ("next lower", "next higher") if is_numeric(results, place) else ("one before", "one after")
        heads += [f"{side} {results.axes[place][0].rpartition('.')[2]}" for side in sides]
    rows, marked = [], []
    for situation in situations(results):
        ranked = _ranked(results, situation)
        for method in results.methods:
            condition = (name_situation(results, situation),) if results.conditions else ()
            rows.append((*condition, *_best_row(results, method, situation)))
            marked.append(len(ranked) > 1 and method == ranked[0][0])
    return f"<h2>Best settings</h2>{grid('Best settings', Table(tuple(heads), rows), marked)}"


def _best_row(results: Results, method: str, situation: Situation) -> tuple[str, ...]:
    top = best(results, method, situation)
    pairs = zip(results.tuned, neighbours(results, method, situation), strict=False)
    beside = [(cell, place) for place, pair in pairs for cell in pair]
    others = [f"{percent(cell)} ({cell.setting[place]})" if cell else "-" for cell, place in beside]
    lacking = ["-"] * (2 * len(results.tuned) - len(others))
    values = setting(results, top).removeprefix(" with ") if top else "-"
    return printable(method, LONGEST_NAME), percent(top), values, *others, *lacking


def _all_table(results: Results) -> str:
    """The accuracy at every setting: a row for each setting, or for each method where a row would be too long."""
    methods = results.methods
    by_method = {method: {c.setting: c for c in cells(results, method, "final_accuracy")} for method in methods}
    settings = list(dict.fromkeys(setting for own in by_method.values() for setting in own))
    keys = ", ".join(axis[0].rpartition(".")[2] for axis in results.axes)
    names = [printable(method, LONGEST_NAME) for method in methods]
    places = [", ".join(map(str, place)) for place in settings]
    texts = [[percent(by_method[method].get(place)) for method in methods] for place in settings]
    if len(methods) > max(_MOST_COLUMNS, len(settings)):
        heads = ("method", *(f"{keys} {place}".strip() or "final accuracy" for place in places))
        rows = [(name, *own) for name, *own in zip(names, *texts, strict=True)]
        return grid("All settings", Table(heads, rows))
    return grid(
        "All settings", Table((keys, *names), [(place, *own) for place, own in zip(places, texts, strict=True)])
    )
