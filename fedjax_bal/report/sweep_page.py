"""The page of a sweep: `sweep.html`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedjax_bal.lab import SweepFolder, as_csv, writing
from fedjax_bal.metrics import NOTHING, SHARE, Spread, paired_difference
from fedjax_bal.report import sweep_results as sweeps
from fedjax_bal.report.comparison import (
    AVERAGED,
    CLASS_MEAN,
    comparison_table,
    leader,
    notes,
    ranked,
    remarks,
    statistics,
    verdict,
)
from fedjax_bal.report.page import Page, Picture, device_and_versions, reproduction, setting_of_sheet
from fedjax_bal.report.published import PaperComparison, paper_comparison_of_sweep
from fedjax_bal.report.tables import Table, encoded, join_some, plural, points, printable, three_digits
from fedjax_bal.validate import is_number

_MOST_NAMED = 6
_MOST_LOST = 20
_MOST_COLUMNS = 8  # columns for methods in a table
_NO_RESULT = "Some runs have no result, and the means below exclude them."
_OF_OTHER_POINTS = "The folder has earlier points that are not in this sweep or its tables: {}."
_STOPPED_EARLY = "{} of {} runs stopped early, the first after {} rounds."
_UNFINISHED = "This sweep is not finished: {} of its {} runs have ended."
_AT_EDGE = "* marks a best value at the edge of the sweep; consider extending it."
_ON_VALIDATION = "Settings were selected by accuracy on the validation rows."
_ON_TEST = "Settings were selected on the test set, so all of these accuracies are optimistic."
_LEADERS = (
    "Bold: all its leads are significant at 5%, with Holm's correction. Lead: over the method with the next highest "
    "accuracy."
)


def write_sweep_page(folder: Path) -> Path:
    """Writes `sweep.html`, `plots/*.svg`, `curves.csv`, and `tables.csv` and `.tex` into a sweep's folder.

    If the sweep is unfinished, the page says so. Returns the page's path.

    Raises:
        FolderError: a file is missing or damaged, or the folder can't be written to.
    """
    from fedjax_bal.report.gallery import sweep_figures, to_pictures

    files = SweepFolder(folder)
    results = sweeps.read_results(folder)
    lines = sweeps.sweep_curves(results, files)
    page = page_of_sweep(results, to_pictures(lambda: sweep_figures(results, lines)))
    with writing(folder, "make the folder writable, and let `plots` be a folder in it"):
        files.write_curves(encoded(as_csv(lines)))
        return files.write_page(page.html(), page.documents(), page.tables())


def page_of_sweep(results: sweeps.Results, pictures: Sequence[Picture] = ()) -> Page:
    """Gathers the page of a sweep."""
    warnings = unfinished(results)
    if not warnings and results.other_points:  # points without rows of an unfinished sweep may be its own
        warnings.append(_OF_OTHER_POINTS.format(join_some(results.other_points, _MOST_NAMED)))
    lost = [row for row in results.rows if row["status"] != "done"]
    first = leaders(results)
    if lost:
        warnings.append(_NO_RESULT)
        heads = ("Point", "Method", "Seed", "State", "Reason")
        cells = [(row["point"], row["method"], row.get("seed"), row["status"], row["failure"] or "") for row in lost]
        note = f"{len(lost)} of {len(results.rows)} runs; results.csv has all of them." * (len(lost) > _MOST_LOST)
        rows = [tuple(printable(str(cell)) for cell in row) for row in cells[:_MOST_LOST]]
        first.append(Table("Runs without a result", heads, rows, note))

    sheet = _mark_swept(results)
    setting, whole_setting = setting_of_sheet(sheet)
    paper = paper_comparison_of_sweep(results)
    seeds = len({row.get("seed") for row in results.rows})
    counts = {"run": len(results.rows), "method": len(results.methods), "seed": seeds}
    return Page(
        kind="Federated learning sweep",
        heading=results.name,
        facts=[plural(count, noun) for noun, count in counts.items()],
        warnings=warnings,
        first=first,
        verdicts=verdicts(results),
        paper=paper,
        comparisons=comparisons(results),
        statistics=list(_statistics(results, paper)),
        details=best_settings(results),
        pictures=pictures,
        settings=all_settings(results) if results.axes else None,
        setting=setting,
        whole_setting=whole_setting,
        machine=[*device_and_versions(results.summary), *_speed(results)],
        reproduction=reproduction("sweep", "sweep.yaml", results.sheet, results.summary.get("command"), results.text),
    )


def unfinished(results: sweeps.Results) -> list[str]:
    """Returns the warning that some runs of a sweep aren't over; empty if all are, as far as their number is known."""
    over = sum(row["status"] != "unfinished" for row in results.rows)
    asked = results.asked or len(results.rows)
    return [_UNFINISHED.format(over, asked)] if over < asked else []


def verdicts(results: sweeps.Results) -> list[str]:
    """Concludes and remarks on a sweep without conditions; a sweep over conditions has a table instead."""
    said = [sweeps.how_tuned(results)] if results.tuned else []
    stopped = [row["stopped_early"] for row in results.rows if row.get("stopped_early") is not None]
    if stopped:
        said.append(_STOPPED_EARLY.format(len(stopped), len(results.rows), min(stopped)))
    if results.condition_axes:
        return said
    methods = sweeps.summarise_condition(results, {})
    return [verdict(methods), *said, *remarks(methods, finished=not unfinished(results))]


def comparisons(results: sweeps.Results) -> list[Table]:
    """Tables of the methods at each condition, each at its best setting there; the last one has the notes."""
    comparable = sweeps.comparable(results)
    said = notes([group for _, groups in comparable for group in groups])
    last = len(comparable) - 1
    return [
        comparison_table(groups, results.target, said if place == last else "", name)
        for place, (name, groups) in enumerate(comparable)
    ]


def leaders(results: sweeps.Results) -> list[Table]:
    """Builds a table of the best method at each condition; none without conditions or with a single method."""
    if not results.condition_axes or len(results.methods) < 2:
        return []
    rows = []
    best = set()
    for condition in sweeps.list_conditions(results):
        methods = sweeps.summarise_condition(results, condition)
        first, second, *_ = *ranked(methods), None, None
        cells = (NOTHING, NOTHING, NOTHING)
        if first is not None:
            lead = paired_difference(first.headline_of_seeds, second.headline_of_seeds) if second else None
            cells = first.method, SHARE.show(first.headline), points(lead)
            if leader(methods):
                best.add(len(rows))
        rows.append((sweeps.name_condition(results, condition), *cells))
    accuracy = CLASS_MEAN if results.by_class_mean else AVERAGED
    heads = ("Condition", "Method", accuracy, "Lead, points [95% interval]")
    return [Table("Highest accuracy at each condition", heads, rows, _LEADERS, best)]


def best_settings(results: sweeps.Results) -> list[Table]:
    """Tables of each method's best setting at each condition; empty if no axis is tuned."""
    if not results.tuned:
        return []
    conditions = bool(results.condition_axes)
    rows = []
    at_edge = False
    for condition in sweeps.list_conditions(results):
        for method in results.methods:
            top = sweeps.best(results, method, condition)
            setting = sweeps.name_tuned(results, method, top.setting) if top else NOTHING
            if top and results.is_at_edge(method, top.setting):
                setting += " *"
                at_edge = True
            row = (printable(method), setting, percent(top))
            rows.append((sweeps.name_condition(results, condition), *row) if conditions else row)
    heads = (*(("Condition",) if conditions else ()), "Method", "Setting", AVERAGED)
    selected = _ON_VALIDATION if results.selection_metric == sweeps.VALIDATION else _ON_TEST
    return [Table("Best settings", heads, rows, f"{selected} {_AT_EDGE * at_edge}".strip())]


def all_settings(results: sweeps.Results) -> Table:
    """Builds a table of accuracies: a row per setting, or per method if rows would be too wide."""
    methods = results.methods
    by_method = [{cell.setting: cell for cell in sweeps.cells(results, method, sweeps.LEAD)} for method in methods]
    rank = lambda setting: [values.index(value) for values, value in zip(results.values, setting, strict=True)]
    settings = sorted({setting for known in by_method for setting in known}, key=rank)
    grid = [["Setting", *map(printable, methods)]]
    for setting in settings:
        name = sweeps.name_condition(results, dict(enumerate(setting))) or AVERAGED
        grid.append([name, *(percent(known.get(setting)) for known in by_method)])
    if len(methods) > max(_MOST_COLUMNS, len(settings)):
        grid = [list(column) for column in zip(*grid, strict=True)]
        grid[0][0] = "Method"
    heads, *rows = grid
    note = f"{AVERAGED}, over seeds. {sweeps.NOT_SWEPT * bool(results.unswept)}".strip()
    return Table("Accuracy at every setting", heads, rows, note)


def percent(cell: sweeps.Cell | None) -> str:
    """Formats a cell's mean and spread over seeds, in percent."""
    if cell is None or cell.mean is None:
        return NOTHING
    text = SHARE.show(Spread(cell.mean, cell.deviation, cell.count))
    return text + f" ({cell.count} of {cell.asked} runs)" * (cell.count < cell.asked)


def _mark_swept(results: sweeps.Results) -> dict[str, Any]:
    """Returns the sweep's sheet with "swept" as the value of the swept keys that it has: points don't have the base's.

    What the axes are is in its key `sweep`.
    """
    sheet = dict(results.sheet)
    for path in (str(key).split(".") for axis in results.sheet["sweep"] for key in axis):
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


def _statistics(results: sweeps.Results, paper: PaperComparison) -> Iterator[dict[str, Any]]:
    """Yields the statistics of each setting, after its swept keys."""
    keys = [key for axis in results.axes for key in axis.keys if key.partition(".")[0] != "paper"]
    for setting in dict.fromkeys(setting for _, setting in results.runs):
        runs = [run for (_, here), found in results.runs.items() if here == setting for run in found]
        condition = sweeps.name_condition(results, {place: setting[place] for place in results.condition_axes})
        swept = {key: runs[0][key] for key in keys}
        yield from ({**swept, **row} for row in statistics(runs, paper.by_metric(printable(condition))))
