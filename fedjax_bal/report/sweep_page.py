"""The page of a sweep: `sweep.html`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedjax_bal.lab import SweepFolder, as_csv, writing
from fedjax_bal.metrics import SHARE, Spread
from fedjax_bal.report import sweep_results as sweeps
from fedjax_bal.report.markup import Page, Picture, definitions, reproduction
from fedjax_bal.report.page import device_and_versions, setting_section
from fedjax_bal.report.published import (
    PaperComparison,
    paper_comparison_of_sweep,
    paper_tables,
    paper_verdict,
    published_by_metric,
)
from fedjax_bal.report.tables import Details, comparison, encoded, statistics
from fedjax_bal.report.wording import (
    LONGEST_NAME,
    Table,
    averaged_heading,
    averaged_in_words,
    join_some,
    lead,
    plural,
    printable,
    table_notes,
    three_digits,
    verdict,
)
from fedjax_bal.validate import is_number

_MOST_TOLD = 6
_MOST_LACKING = 20
_MOST_COLUMNS = 8  # columns for methods in a table


def build_sweep(folder: Path) -> Path:
    """Writes `sweep.html`, `plots/*.svg`, `curves.csv`, and `tables.csv` and `.tex` into a sweep's folder.

    If the sweep is unfinished, the page says so. Returns the page's path.

    Raises:
        FolderError: a file is missing or damaged, or the folder can't be written to.
    """
    from fedjax_bal.report.gallery import sweep_figures, to_pictures

    files = SweepFolder(folder)
    results = sweeps.read_results(folder)
    lines = sweeps.sweep_curves(results, files)
    page = page_of_sweep(results, paper_comparison_of_sweep(results), to_pictures(sweep_figures(results, lines)))
    with writing(folder, "make the folder writable, and let `plots` be a folder in it"):
        files.write_curves(encoded(as_csv(lines)))
        return files.write_page(page.html(), page.documents(), page.tables())


def page_of_sweep(results: sweeps.Results, paper: PaperComparison, pictures: Sequence[Picture] = ()) -> Page:
    """Builds the page of a sweep."""
    # Whether the runs of a setting use several partitions, and whether several runs share one.
    partitions = False
    crossed = False
    for runs in results.runs.values():
        draws = {run["seed"] for run in runs}
        count = len({draw.partition for draw in draws})
        partitions |= count > 1
        crossed |= len(draws) > count
    # Compares methods at each condition, each at its best setting there; only the last table has notes.
    found = sweeps.comparable(results)
    every = [summary for _, groups in found for group in groups for summary in group]
    notes = " ".join(table_notes(every, partitions=partitions, crossed=partitions and crossed))
    tables = [comparison(groups, results.target, "", name) for name, groups in found]
    tables[-1] = tables[-1]._replace(note=notes)

    lost = [row for row in results.rows if row["status"] != "done"]
    warnings = []
    left = (results.asked or 0) - len(results.rows)
    if left > 0:
        verb = "is" if left == 1 else "are"
        warnings.append(f"This sweep is not finished: {left} of its {results.asked} runs {verb} not in the table yet.")
    others = results.other_points
    if others and not left:  # points without rows of an unfinished sweep may be its own
        named = join_some(others, _MOST_TOLD)
        warnings.append(f"Earlier points of this folder that the sweep lacks, and the tables leave out: {named}.")
    if lost:
        has = "has" if len(lost) == 1 else "have"
        warnings.append(
            f"{len(lost)} of {len(results.rows)} runs {has} no result, and count in none of the means below:"
        )
        for row in lost[:_MOST_LACKING]:
            reason = f": {row['failure']}" if row["failure"] else ""
            warnings.append(f"{row['point']}, {row['method']}, seed {row.get('seed')}: {row['status']}{reason}")
        warnings += [f"and {len(lost) - _MOST_LACKING} more"] * (len(lost) > _MOST_LACKING)

    seeds = len({row.get("seed") for row in results.rows})
    counts = {"run": len(results.rows), "method": len(results.methods), "seed": seeds}
    return Page(
        tab=f"{results.name}: federated learning sweep",
        kicker=" · ".join(["Federated learning sweep", *(plural(count, noun) for noun, count in counts.items())]),
        heading=results.name,
        warnings=warnings,
        answers=[answer(results)],
        paper=paper_verdict(paper),
        published=paper_tables(paper),
        comparisons=tables,
        statistics=list(_statistics(results, paper)),
        details=best_settings(results),
        pictures=pictures,
        settings=[all_settings(results)] if results.axes else [],
        sections=[
            setting_section(_mark_swept(results)),
            ("Machine and speed", definitions([*device_and_versions(results.summary), *_speed(results)])),
            reproduction("sweep", "sweep.yaml", results.sheet, results.summary.get("command"), results.text),
        ],
    )


def _mark_swept(results: sweeps.Results) -> dict[str, Any]:
    """Returns the sweep's sheet with "swept" as the value of the swept keys that it has: points don't have the base's.

    What the axes are is in its key `sweep`.
    """
    sheet = dict(results.sheet)
    for path in (key.split(".") for axis in results.axes for key in axis.keys):
        *above, last = path
        section: Any = sheet
        for part in above:
            if not isinstance(section.get(part), dict):
                break
            section[part] = section = dict(section[part])
        else:
            if last in section and path[0] not in ("methods", "paper"):
                section[last] = "swept"
    return sheet


def _speed(results: sweeps.Results) -> Iterator[tuple[str, str]]:
    """Yields the costs of the compiled programs: the smallest and the largest of all programs."""
    for name, column, factor in (
        ("runs at a time", "runs_together", 1.0),
        ("client updates per second", "client_updates_per_s", 1.0),
        ("samples per second", "samples_per_s", 1.0),
        ("compilation, s", "compile_s", 1.0),
        ("memory on each device, MB", "device_bytes", 1e-6),
    ):
        known = [factor * row[column] for row in results.rows if is_number(row.get(column))]
        if known:
            low, high = map(three_digits, (min(known), max(known)))
            yield name, low if low == high else f"{low} to {high}"


def answer(results: sweeps.Results) -> str:
    """Summarises the sweep in a few sentences: the verdict of a run's report, or the leading method per condition."""
    known = []
    for condition in sweeps.list_conditions(results):
        summaries = sweeps.summarise_condition(results, condition)
        if any(summary.last5.mean is not None for summary in summaries):
            known.append((sweeps.name_condition(results, condition).replace(" ", "\N{NO-BREAK SPACE}"), summaries))
    if not known:
        return "No run is finished yet."
    how = ""
    if results.tuned:
        how = " Settings were selected on the test set, so all of them are optimistic."
        if results.selection_metric == sweeps.VALIDATION:
            how = " Settings were selected by accuracy on the validation images."
    how += f" {sweeps.name_unswept_seeds(results)}".rstrip()
    settings = _settings_in_words(results)
    if results.condition_axes:
        each = join_some([f"{name}: {lead(summaries)}" for name, summaries in known], _MOST_TOLD)
        what = "Accuracy" if len(results.methods) == 1 else "Highest accuracy"
        return f"{what} over the {averaged_in_words(results.evaluations)} at each condition: {each}.{settings}{how}"
    return f"{verdict(known[0][1])}{settings}{how}"


def _settings_in_words(results: sweeps.Results) -> str:
    """Names the methods' best settings in a sentence, at each condition if they differ; empty if no axis is tuned."""
    if not results.tuned:
        return ""
    named = {}
    for condition in sweeps.list_conditions(results):
        tops = {method: sweeps.best(results, method, condition) for method in results.methods}
        texts = {method: sweeps.name_tuned(results, method, top.setting) for method, top in tops.items() if top}
        named[sweeps.name_condition(results, condition)] = texts
    every = [text for texts in named.values() for text in texts.values()]
    if len(every) > 1 and len(set(every)) == 1:
        return f" Best settings: {every[0]} for all."
    if len(every) > _MOST_TOLD:
        return " The page has a table of the best settings."
    lists = [
        f"{name}: {listed}" if name else listed
        for name, texts in named.items()
        if (listed := ", ".join(f"{method} {text}" for method, text in texts.items()))
    ]
    return f" Best settings: {'; '.join(lists)}."


def best_settings(results: sweeps.Results) -> list[Details]:
    """Tables of each method's best setting at each condition; empty if no axis is tuned."""
    if not results.tuned:
        return []
    conditions = bool(results.condition_axes)
    rows = []
    for condition in sweeps.list_conditions(results):
        for method in results.methods:
            top = sweeps.best(results, method, condition)
            setting = sweeps.name_tuned(results, method, top.setting, ends="") if top else "-"
            if top and any(results.end_of_axis(place, top.setting[place], method) for place in results.tuned):
                setting += " *"
            row = (printable(method, LONGEST_NAME), setting, percent(top))
            rows.append((sweeps.name_condition(results, condition), *row) if conditions else row)
    heads = (*(("Condition",) if conditions else ()), "Method", "Setting", _heading(results))
    starred = any(row[-2].endswith(" *") for row in rows)
    note = "* is the lowest or highest value of a swept number: a better one may lie beyond." if starred else ""
    return [Details("Best settings", Table(heads, rows), note)]


def all_settings(results: sweeps.Results) -> Details:
    """A table of the accuracy at every setting: one row per setting, or one per method if rows would be too wide."""
    methods = results.methods
    by_method = [{cell.setting: cell for cell in sweeps.cells(results, method, sweeps.LEAD)} for method in methods]
    rank = lambda setting: [values.index(value) for values, value in zip(results.values, setting, strict=True)]
    settings = sorted({setting for known in by_method for setting in known}, key=rank)
    grid = [["Setting", *(printable(method, LONGEST_NAME) for method in methods)]]
    for setting in settings:
        name = sweeps.name_condition(results, dict(enumerate(setting))) or _heading(results)
        grid.append([name, *(percent(known.get(setting)) for known in by_method)])
    if len(methods) > max(_MOST_COLUMNS, len(settings)):
        grid = [list(column) for column in zip(*grid, strict=True)]
        grid[0][0] = "Method"
    heads, *rows = (tuple(row) for row in grid)
    note = f"Mean of the {averaged_in_words(results.evaluations)} of a run, %, over seeds."
    note = f"{note} {sweeps.name_unswept(results)}".rstrip()
    return Details("Accuracy at every setting", Table(heads, rows), note)


def _heading(results: sweeps.Results) -> str:
    return f"{averaged_heading(results.evaluations).capitalize()}, %"


def percent(cell: sweeps.Cell | None) -> str:
    """Formats a cell's mean and spread over seeds, in percent."""
    if cell is None or cell.mean is None:
        return "-"
    text = SHARE.show(Spread(cell.mean, cell.deviation, cell.count))
    return text + f" ({cell.count} of {cell.asked} runs)" * (cell.count < cell.asked)


def _statistics(results: sweeps.Results, paper: PaperComparison) -> Iterator[dict[str, Any]]:
    """Yields the statistics of each setting, after its swept keys."""
    keys = [key for axis in results.axes for key in axis.keys if key.partition(".")[0] != "paper"]
    for setting in dict.fromkeys(setting for _, setting in results.runs):
        runs = [run for (_, here), found in results.runs.items() if here == setting for run in found]
        condition = sweeps.name_condition(results, {place: setting[place] for place in results.condition_axes})
        swept = {key: runs[0][key] for key in keys}
        yield from ({**swept, **row} for row in statistics(runs, published_by_metric(paper, printable(condition))))
