"""The page of a sweep: `sweep.html`."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedjax_bal.report.curves import sweep_curves
from fedjax_bal.report.markup import command, document, encoded, figures, folded, note
from fedjax_bal.report.page import curves_first, methods_table, tables_with_notes
from fedjax_bal.report.published import Beside, beside_of_sweep, paper_tables, paper_verdict
from fedjax_bal.report.sweep_cells import best, comparable, name_situation, name_tuned, situations, summarise_situation
from fedjax_bal.report.sweep_results import VALIDATION, Results, read_results
from fedjax_bal.report.sweep_tables import all_settings, best_settings, comparisons, sweep_tables
from fedjax_bal.report.wording import averaged_in_words, lead, plural, verdict
from fedjax_bal.runs import FolderError, SweepFolder, as_csv

if TYPE_CHECKING:
    from fedjax_bal.report.svg import Picture

MOST_TOLD = 6
_ON_TEST = " Settings were selected on the test set, so all of them are optimistic."
_ON_VALIDATION = " Settings were selected by accuracy on the validation images."


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
    lines, beside = sweep_curves(results, own, note), beside_of_sweep(results)
    curves = encoded(as_csv(lines))
    pictures = to_pictures(sweep_figures(results, lines))
    html = encoded(page(results, beside, pictures))
    try:
        documents = {picture.name: picture.document for picture in pictures}
        return own.write_page(html, documents, curves, sweep_tables(results, beside))
    except OSError as error:
        raise FolderError(f"{folder}: the page can't be written there ({error.strerror})") from error


def page(results: Results, beside: Beside, pictures: Sequence["Picture"]) -> str:
    """The page as HTML."""
    curves, others = curves_first(pictures)
    found, paper = answer(results).replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"), paper_verdict(beside)
    parts = [
        f"<p class=kicker>{escape(_kicker(results))}</p>",
        f"<h1>{escape(results.name)}</h1>",
        _lacking(results),
        f"<p class=verdict>{escape(found)}</p>",
        f"<p>{escape(paper)}</p>" if paper else "",
        tables_with_notes(paper_tables(beside), level=2),
        figures("Curves", curves),
        "<h2>Comparison</h2>",
        *_comparisons(results),
        tables_with_notes(best_settings(results)),
        figures("Figures", others),
        tables_with_notes([all_settings(results)]) if results.axes else "",
        "<h2>How to reproduce</h2>",
        command(["fedjax-bal", "sweep", "sweep.yaml"], results.sheet, results.command),
        folded("sweep.yaml", f"<pre>{escape(results.text)}</pre>"),
    ]
    return document(f"{results.name}: federated learning sweep", parts)


def answer(results: Results) -> str:
    """The result of the sweep in a few sentences: what a run's report says, or of each condition who leads there."""
    told = lambda situation: name_situation(results, situation).replace(" ", "\N{NO-BREAK SPACE}")
    found = [(told(own), summarise_situation(results, own)) for own in situations(results)]
    known = [(name, group) for name, group in found if any(own.last5.mean is not None for own in group)]
    if not known:
        return "No run is finished yet."
    how = (_ON_VALIDATION if results.judge == VALIDATION else _ON_TEST) if results.tuned else ""
    if results.conditions:
        each = "; ".join(f"{name}: {lead(group)}" for name, group in known[:MOST_TOLD])
        more = f"; and {len(known) - MOST_TOLD} more below" if len(known) > MOST_TOLD else ""
        what = "Accuracy" if len(results.methods) == 1 else "Highest accuracy"
        when = averaged_in_words(results.averaged)
        return f"{what} over the {when} at each condition: {each}{more}.{how}"
    return verdict(known[0][1]) + _picked(results) + how


def _picked(results: Results) -> str:
    """The best settings of a few methods, as a sentence; empty where nothing is tuned, or the table below must do."""
    if not results.tuned or len(results.methods) > MOST_TOLD:
        return ""
    tops = [(method, best(results, method)) for method in results.methods]
    told = [f"{method} {name_tuned(results, top.setting)}" for method, top in tops if top is not None]
    return f" Best settings: {', '.join(told)}."


def _comparisons(results: Results) -> list[str]:
    """The comparison of methods at each condition, folded where there are many, above the notes on all of them."""
    titled = lambda name, table: f"<h3>{escape(name)}</h3>{table}" if name else table
    tables = [(name, methods_table(groups, results.target, [], name)) for name, groups in comparable(results)]
    shown = [titled(name, table) for name, table in tables[:MOST_TOLD]]
    return [*shown, *(folded(name, table) for name, table in tables[MOST_TOLD:]), note(comparisons(results)[-1].note)]


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
