"""The page of a sweep: `sweep.html`."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedjax_bal.report.curves import sweep_curves
from fedjax_bal.report.markup import command, document, encoded, figures, grid
from fedjax_bal.report.sweep_results import (
    TEST,
    VALIDATION,
    Cell,
    Results,
    best,
    cells,
    is_numeric,
    judge,
    neighbours,
    read_results,
)
from fedjax_bal.report.sweep_tables import sweep_tables
from fedjax_bal.report.wording import LONGEST_NAME, Table, printable
from fedjax_bal.runs import FolderError, SweepFolder, as_csv

if TYPE_CHECKING:
    from fedjax_bal.report.svg import Picture

_NO_BREAK = "\N{NO-BREAK SPACE}"
_HOW_PICKED = {
    TEST: " Settings were picked on the test set itself, which flatters all of them.",
    VALIDATION: " Settings were picked by accuracy on the validation images.",
}


def build_sweep(folder: Path) -> Path:
    """Writes `sweep.html`, `plots/*.svg`, `curves.csv`, and `tables.csv`, `.md` and `.tex` into a sweep's folder.

    The sweep may be unfinished, which the page then says. Returns the page.

    Raises:
        FolderError: a file is missing or damaged, or the folder can't be written to.
    """
    from fedjax_bal.report.svg import to_pictures
    from fedjax_bal.report.sweep_plots import sweep_figures

    own, results = SweepFolder(folder), read_results(folder)
    curves = encoded(as_csv(sweep_curves(results, own)))
    pictures = to_pictures(sweep_figures(results))
    html = encoded(page(results, pictures))
    try:
        documents = {picture.name: picture.document for picture in pictures}
        return own.write_page(html, documents, curves, sweep_tables(results))
    except OSError as error:
        raise FolderError(f"{folder}: the page can't be written there ({error.strerror})") from error


def page(results: Results, pictures: Sequence["Picture"]) -> str:
    """The page as HTML."""
    parts = [
        f"<p class=kicker>{escape(_kicker(results))}</p>",
        f"<h1>{escape(results.name)}</h1>",
        _lacking(results),
        f"<p class=verdict>{escape(answer(results))}</p>",
        "<h2>Best settings</h2>",
        _best_table(results),
        figures(pictures),
        "<h2>All settings</h2>",
        _all_table(results),
        "<h2>How to reproduce</h2>",
        command("fedjax-bal sweep sweep.yaml", results.sheet),
        f"<details><summary>sweep.yaml</summary><pre>{escape(results.text)}</pre></details>",
    ]
    return document(f"{results.name}: federated learning sweep", parts)


def answer(results: Results) -> str:
    """The result of the sweep, in a sentence or two."""
    tops = [(method, best(results, method)) for method in results.methods]
    known = [(method, cell) for method, cell in tops if cell is not None]
    if not known:
        return "No run is finished yet."
    known.sort(key=lambda pair: -(pair[1].mean or 0.0))
    (first, cell), *others = known
    text = f"{printable(first, LONGEST_NAME)} does best: {percent(cell)}{setting(results, cell)}."
    if others:
        second, behind = others[0]
        text += f" Next is {printable(second, LONGEST_NAME)}: {percent(behind)}{setting(results, behind)}."
    return text + (_HOW_PICKED[judge(results)] if results.axes else "")


def percent(cell: Cell | None) -> str:
    """A cell's mean and spread over seeds, in percent."""
    if cell is None or cell.mean is None:
        return "-"
    spread = f"{_NO_BREAK}±{_NO_BREAK}{100 * cell.spread:.1f}" if cell.spread is not None else ""
    some = f" ({cell.count} of {cell.asked} runs)" if cell.count < cell.asked else ""
    return f"{100 * cell.mean:.1f}{spread}{_NO_BREAK}%{some}"


def setting(results: Results, cell: Cell) -> str:
    """The values of a cell, as the end of a sentence."""
    pairs = zip(results.axes, cell.setting, strict=True)
    values = [f"{'+'.join(key.rpartition('.')[2] for key in axis)} {value}" for axis, value in pairs]
    return f" with {', '.join(values)}" if values else ""


def _kicker(results: Results) -> str:
    seeds = len({row.get("seed") for row in results.rows})
    return f"Federated learning sweep · {len(results.rows)} runs · {len(results.methods)} methods · {seeds} seeds"


def _lacking(results: Results) -> str:
    lost = [row for row in results.rows if row["status"] != "done"]
    left = (results.asked or 0) - len(results.rows)
    unfinished = f"This sweep is not finished: {left} of its {results.asked} runs are not in the table yet."
    if not lost:
        return f'<p class=unfinished role="status">{unfinished}</p>' if left > 0 else ""
    reasons = [f"{row['point']}, {row['method']}, seed {row.get('seed')}: {_why(row)}" for row in lost[:20]]
    more = f"<li>and {len(lost) - 20} more</li>" if len(lost) > 20 else ""
    listed = "".join(f"<li>{escape(text)}</li>" for text in reasons)
    title = f"{len(lost)} of {len(results.rows)} runs have no result, and are in none of the means below:"
    title = f"{unfinished} {title}" if left > 0 else title
    return f'<div class=unfinished role="status">{escape(title)}<ul>{listed}{more}</ul></div>'


def _why(row: dict[str, str]) -> str:
    return f"{row['status']}: {row['failure']}" if row["failure"] else row["status"]


def _best_table(results: Results) -> str:
    heads = ["method", "final accuracy", "setting"]
    for place, axis in enumerate(results.axes):
        sides = ("one lower", "one higher") if is_numeric(results, place) else ("before it", "after it")
        heads += [f"{axis[0].rpartition('.')[2]} {sides[0]}", sides[1]]
    rows = []
    for method in results.methods:
        top = best(results, method)
        beside = [cell for pair in neighbours(results, method) for cell in pair]
        others = [f"{percent(cell)} ({cell.setting[place // 2]})" if cell else "-" for place, cell in enumerate(beside)]
        values = setting(results, top).removeprefix(" with ") if top else "-"
        rows.append((printable(method, LONGEST_NAME), percent(top), values, *others))
    return grid("Best settings", Table(tuple(heads), rows))


def _all_table(results: Results) -> str:
    methods = results.methods
    by_method = {method: {c.setting: c for c in cells(results, method, "final_accuracy")} for method in methods}
    settings = list(dict.fromkeys(setting for own in by_method.values() for setting in own))
    keys = ", ".join(axis[0].rpartition(".")[2] for axis in results.axes)
    rows = [
        (", ".join(map(str, place)), *(percent(by_method[method].get(place)) for method in methods))
        for place in settings
    ]
    return grid("All settings", Table((keys, *(printable(method, LONGEST_NAME) for method in methods)), rows))
