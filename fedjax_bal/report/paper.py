"""Files for a paper: figures of a column's width as PDF and PNG, and a table of chosen metrics in LaTeX."""

import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_bal.config import nearest_choices
from fedjax_bal.files import write_atomically
from fedjax_bal.lab import FolderError, SweepFolder, writing
from fedjax_bal.metrics import (
    METRICS,
    NOTHING,
    SHARE,
    TEXT,
    Metric,
    apply_holm,
    paired_difference,
    seed_values,
    spread_of_draws,
)
from fedjax_bal.report import sweep_results as sweeps
from fedjax_bal.report.comparison import compare_runs
from fedjax_bal.report.reading import NO_NAMES, SO_FAR, ReportedRuns, check_names, class_samples, labels_of, read_runs
from fedjax_bal.report.tables import BOOKTABS, Latex, Table, encoded, plural, points, printable, to_latex
from fedjax_bal.validate import is_number

# Matplotlib is imported late, with the gallery: importing it takes longer than most commands run.

_DOTS_PER_INCH = 300
_BOLD = "Bold: the best mean of runs on the same data."
_UNDERLINED = "Underlined: not significantly different from it (5\\%, paired t test, Holm's correction)."
_DIFFERENCES = "Differences from {}: paired by seed, with 95% intervals{}."
_STAR = "; * p < 0.05 with Holm's correction"

_PRINTED = {
    "accuracy": "final_accuracy",
    "class mean": "balanced_accuracy",
    "f1": "macro_f1",
    "worst": "worst_class_accuracy",
    "mb": "traffic_bytes",
    "to target": "rounds_to_target",
}
"""Names of metrics in the terminal's table, and what users call them."""
RunGroup = Sequence[Mapping[str, Any]]
"""Runs that share their data."""


def write_figures(
    folders: Sequence[Path],
    directory: Path,
    width: float,
    names: Mapping[str, str] = NO_NAMES,
    only: Sequence[str] = (),
    note: Callable[[str], object] = warnings.warn,
) -> list[Path]:
    """Writes each figure of a run, of a sweep, or of a comparison of 2 to 20 runs, as PDF and PNG.

    Args:
        folders: the folder of the run or sweep, or those of the runs.
        directory: the output folder; created if needed, and files with the same names are replaced.
        width: width of the figures in inches. Figures are laid out for this width, with text of at least 7 points.
        names: as in `read_runs`.
        only: the names of figures to write, with or without a number at the end; empty for all.
        note: called with a message for each character of labels that no font has.

    Returns:
        The PDF files, in page order.

    Raises:
        FolderError: a folder can't be read, the folders can't be compared, or the files can't be written.
        ValueError: there is no figure of a name in `only`.
    """
    from fedjax_bal.report.gallery import run_figures, sweep_figures
    from fedjax_bal.report.plots import as_wide_as, to_pdf, to_png

    read = _read(folders, names)
    if isinstance(read, ReportedRuns):
        figures = run_figures(read)
    else:
        figures = sweep_figures(read, sweeps.sweep_curves(read, SweepFolder(folders[0])))
    files = []
    with as_wide_as(width):
        drawn = {name: figure for name, _, _, figure in figures}  # drawn here, one by one
    short = {name: re.sub(r"-\d+$", "", name) for name in drawn}
    for name in only:
        if name not in {*short, *short.values()}:
            raise ValueError(f"--only: received {name!r:.80}; {nearest_choices(name, dict.fromkeys(short.values()))}")
    with writing(directory, "choose another folder with --figures"), as_wide_as(width), _noting_warnings(note):
        directory.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn.items():
            if only and not {name, short[name]} & {*only}:
                continue
            files.append(directory / f"{name}.pdf")
            write_atomically(files[-1], to_pdf(figure))
            write_atomically(directory / f"{name}.png", to_png(figure, _DOTS_PER_INCH))
    return files


def write_partition_picture(
    file: Path,
    counts: np.ndarray,
    clients: Sequence[str],
    classes: Sequence[str],
    title: str,
    note: Callable[[str], object] = warnings.warn,
) -> None:
    """Draws the clients' samples of each class, `Int[M, C]`, into a `.png` or `.svg` file.

    `note` is called with a message for each character of labels of a `.png` file that no font has.
    """
    from fedjax_bal.report.gallery import partition
    from fedjax_bal.report.plots import to_png, to_svg

    figure = partition([(title, counts, clients)], classes)
    if file.suffix.lower() == ".png":
        with _noting_warnings(note):
            write_atomically(file, to_png(figure))
    else:
        write_atomically(file, to_svg(figure, title).encode())


@contextlib.contextmanager
def _noting_warnings(note: Callable[[str], object]) -> Iterator[None]:
    """Passes warnings on once each: those of matplotlib about characters of labels that no font has."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        note(f"warning: {text} Set font.family in your matplotlibrc to a font that has it, or change names by --names.")


def write_table(
    folders: Sequence[Path],
    metrics: Sequence[str],
    *,
    bold: bool = False,
    names: Mapping[str, str] = NO_NAMES,
    against: str | None = None,
) -> Path:
    """Writes `table.tex` into the first folder: chosen metrics of a run, a sweep, or a comparison of runs, for a paper.

    Args:
        folders: the folder of the run or sweep, or those of the runs.
        metrics: names of metrics, as in `find_metrics`.
        bold: prints in bold the best mean of each column, and underlines those that don't clearly differ from it.
        names: as in `read_runs`.
        against: a method, with each metric's difference from it beside the metric.

    Raises:
        FolderError: a folder can't be read, the folders can't be compared, or the file can't be written.
        ValueError: a metric or a method's name is unknown, or no run has a metric of evaluated rounds.
    """
    text = latex_table(_read(folders, names), metrics, bold=bold, against=against, folder=folders[0])
    file = folders[0] / "table.tex"
    with writing(file, "make the folder writable"):
        write_atomically(file, encoded(text))
    return file


def latex_table(
    read: ReportedRuns | sweeps.Results,
    metrics: Sequence[str],
    *,
    bold: bool = False,
    against: str | None = None,
    folder: Path = Path(),
    arguments: tuple[str, str] = ("--table", "--against"),
) -> str:
    """Formats chosen metrics of runs or a sweep for a paper; arguments are those of `write_table`.

    Args:
        read: the runs, or the sweep.
        metrics: names of metrics.
        bold: as in `write_table`.
        against: as in `write_table`.
        folder: the folder of the results.
        arguments: what `metrics` and `against` were given as, for messages.

    Raises:
        FolderError: no run is over yet.
        ValueError: a metric or a method's name is unknown, or no run has a metric of evaluated rounds.
    """
    chosen = find_metrics(metrics, arguments[0])
    remark = ""
    if isinstance(read, ReportedRuns):
        name = "Comparison of runs" if read.joined else read.record.summary["name"]
        compared = compare_runs(read)
        conditions = [("", compared.runs)]
        remark = " ".join(compared.warnings)
        labels = {key: label for config in read.configs.values() for key, label in labels_of(config).items()}
        summary = read.record.summary
    else:
        name = read.name
        conditions = [
            (sweeps.name_condition(read, here), [sweeps.best_runs(read, here)]) for here in sweeps.list_conditions(read)
        ]
        labels = read.labels
        summary = {} if read.condition_axes else read.summary
        remark = sweeps.how_tuned(read)
    every = [run for _, groups in conditions for runs in groups for run in runs]
    if all(SO_FAR in run for run in every):
        raise FolderError(f"{folder}: no run has ended yet, so there is no table")
    if against is not None:
        methods = {run["method"] for run in every}
        if against not in methods and labels.get(against) not in methods:
            raise ValueError(f"{arguments[1]}: received {against!r:.80}; {nearest_choices(against, methods)}")
        against = against if against in methods else labels[against]
    of_rounds = [metric for metric in chosen if metric.of_round and any(run.get(metric.name) is None for run in every)]
    if of_rounds:
        lines = read.record.lines if isinstance(read, ReportedRuns) else _lines(read, folder)
        conditions = [
            (here, [_with_last_evaluation(runs, lines, of_rounds) for runs in groups]) for here, groups in conditions
        ]
        every = [run for _, groups in conditions for runs in groups for run in runs]
    for metric in of_rounds:
        if not any(is_number(run[metric.name]) for run in every):
            raise ValueError(
                f"{arguments[0]}: received {metric.name!r}; no run has a number for it at its last evaluation"
            )
    return paper_table(
        conditions, chosen, bold=bold, name=name, data=_describe_data(summary), remark=remark, against=against
    )


def _describe_data(summary: Mapping[str, Any]) -> str:
    """Counts training rows without copies, classes and clients; empty if they are unknown or differ between methods."""
    parts = summary.get("partitions", ())
    rows = class_samples(parts)
    counts = {part["clients"] for part in parts}
    if rows is None or len(counts) != 1:
        return ""
    (clients,) = counts
    return f"{int(rows.sum()):,} training rows of {len(summary['class_names'])} classes on {plural(clients, 'client')}"


def _lines(results: sweeps.Results, folder: Path) -> list[dict[str, Any]]:
    """Reads the metrics of a sweep's evaluated rounds, with the methods' names in reports."""
    lines = sweeps.sweep_curves(results, SweepFolder(folder))
    return [{**line, "method": results.labels.get(line["method"], line["method"])} for line in lines]


def _with_last_evaluation(
    runs: RunGroup, lines: Sequence[Mapping[str, Any]], metrics: Sequence[Metric]
) -> list[dict[str, Any]]:
    """Adds metrics of evaluated rounds that runs lack, their values at the last evaluation, unless a run has failed."""
    ordered = sorted(lines, key=lambda line: line["round"])
    last = {(line.get("point"), line["method"], line["seed"]): line for line in ordered}
    filled = []
    for run in runs:
        seed = run["seed"]
        while isinstance(seed, tuple):  # a `SeededDraw` ends with the run's seed
            seed = seed[-1]
        ended = run.get("status", "done") == "done" and not run.get("failure") and SO_FAR not in run
        line = last.get((run.get("point"), run["method"], seed), {}) if ended else {}
        known = {metric.name: run.get(metric.name) for metric in metrics}
        filled.append({**run, **{name: line.get(name) if value is None else value for name, value in known.items()}})
    return filled


def _read(folders: Sequence[Path], names: Mapping[str, str]) -> ReportedRuns | sweeps.Results:
    if len(folders) > 1 or not SweepFolder(folders[0]).exists():
        return read_runs(folders, names)
    results = sweeps.read_results(folders[0], names)
    check_names(names, results.labels)
    return results


def find_metrics(names: Sequence[str], argument: str = "--table") -> list[Metric]:
    """Finds metrics by their names, with or without `_accuracy` and `_bytes`, or by their headings in tables.

    Args:
        names: the names.
        argument: what they were given as, for messages.

    Raises:
        ValueError: a name is unknown.

    Example:
        >>> [metric.name for metric in find_metrics(["final", "macro f1", "Mean of last 5", "class mean"])]
        ['final_accuracy', 'macro_f1', 'last5_accuracy', 'balanced_accuracy']
    """

    def plain(text: str) -> str:
        with_target = re.sub(r"\bto [\d.]+ ?%", "to target", text.lower().replace("_", " "))
        return " ".join(re.findall(r"[^\W\d]+|\d+", with_target))

    known = {name: metric for name, metric in METRICS.items() if metric.unit is not TEXT}
    short = {re.sub("_(accuracy|bytes)$", "", name): metric for name, metric in known.items()}
    headings = {metric.column.heading: metric for metric in known.values() if metric.column}
    printed = {name: known[of] for name, of in _PRINTED.items()}
    by_name = {plain(name): metric for name, metric in {**headings, **short, **known, **printed}.items()}
    for name in names:
        if plain(name) not in by_name:
            also = {text: metric.name for text, metric in {**headings, **printed}.items()}
            raise ValueError(f"{argument}: received {name!r:.80}; {nearest_choices(name, short, also, kind='metrics')}")
    return [by_name[plain(name)] for name in names]


def paper_table(
    conditions: Sequence[tuple[str, Sequence[RunGroup]]],
    metrics: Sequence[Metric],
    *,
    bold: bool,
    name: str,
    data: str = "",
    remark: str = "",
    against: str | None = None,
) -> str:
    r"""Formats a table with a row for each method and, under each condition, a column for each metric.

    Args:
        conditions: the name of each condition (empty for a single one), and its runs in groups that share their data.
        metrics: the columns.
        bold: prints in bold, in each column and group, the best mean, and underlines those that don't clearly differ
            from it.
        name: the results' name, with which the caption starts.
        data: what the caption says about the data.
        remark: the end of the caption.
        against: the method from which each metric has a column of differences; None for none.
    """
    runs = [run for _, groups in conditions for group in groups for run in group]
    methods = list(dict.fromkeys(run["method"] for run in runs))
    headings = ["Method"]
    above = [""]
    columns = []
    for condition, groups in conditions:
        for metric in metrics:
            headings.append(_heading(metric))
            columns.append({})
            for group in groups:
                columns[-1] |= _cells(group, metric, bold=bold)
            if against is not None:
                unit = "points" if metric.unit is SHARE else metric.unit.symbol
                headings.append(f"vs {printable(against)}" + f" ({unit})" * bool(unit))
                columns.append({})
                for group in groups:
                    columns[-1] |= _differences(group, metric, against)
        above += [condition] * (len(headings) - len(above))
    rows = [[printable(method), *(column.get(method, NOTHING) for column in columns)] for method in methods]

    seeds = Counter((place, run["method"]) for place, (_, groups) in enumerate(conditions) for g in groups for run in g)
    least, most = min(seeds.values()), max(seeds.values())
    counted = plural(most, "seed") if least == most else f"{least} to {most} seeds"
    caption = [f"{printable(name)}: mean ± standard deviation over {counted}" + f"; {data}" * bool(data) + "."]
    if against is not None and most > 1:
        caption.append(_DIFFERENCES.format(printable(against), _STAR * (len(methods) > 2)))
    caption = [to_latex(text) for text in caption]
    if bold:
        caption += [_BOLD, _UNDERLINED] if most > 1 else [_BOLD]
    caption.append(to_latex(remark))
    table = Table(printable(name), headings, rows)
    return BOOKTABS + table.latex(Latex(" ".join(caption).strip()), above if len(conditions) > 1 else ())


def _heading(metric: Metric) -> str:
    heading = metric.column.heading if metric.column else metric.name.replace("_", " ").capitalize()
    return f"{heading} ({metric.unit.symbol})" if metric.unit.symbol else heading


def _cells(runs: RunGroup, metric: Metric, *, bold: bool) -> dict[str, str]:
    """Formats a metric of each method of runs that share their data."""
    by_seed = seed_values(runs, metric.name)
    asked = Counter(run["method"] for run in runs)
    complete = {method: values for method, values in by_seed.items() if len(values) == max(asked.values())}
    best, close = _best_and_close(complete, highest=metric.unit is SHARE) if bold else (set(), set())
    cells = {}
    for method, values in by_seed.items():
        part = f" ({len(values)} of {asked[method]})" * (0 < len(values) < asked[method])
        cell = to_latex(metric.unit.show(spread_of_draws(values)) + part)
        mark = "\\textbf" if method in best else "\\underline" if method in close else ""
        cells[method] = Latex(f"{mark}{{{cell}}}") if mark else cell
    return cells


def _differences(runs: RunGroup, metric: Metric, against: str) -> dict[str, str]:
    """Formats the difference of each other method from one; empty if it isn't among the runs."""
    by_seed = seed_values(runs, metric.name)
    baseline = by_seed.pop(against, None)
    if baseline is None:
        return {}
    differences = apply_holm([paired_difference(values, baseline) for values in by_seed.values()])
    star = len(differences) > 1
    return {method: points(value, metric.unit, star=star) for method, value in zip(by_seed, differences, strict=True)}


def _best_and_close(by_seed: Mapping[str, Mapping[Any, float]], *, highest: bool) -> tuple[set[str], set[str]]:
    """Returns the methods with the best mean, and the others that don't differ from it significantly.

    `by_seed` are those that have a value for each seed: others, such as methods that reach a target in some runs only,
    aren't comparable with them.
    """
    means = {method: spread_of_draws(values).mean or 0.0 for method, values in by_seed.items()}
    top = (max if highest else min)(means.values(), default=None)
    best = {method for method, mean in means.items() if mean == top}
    others = [method for method in by_seed if method not in best]
    leads = apply_holm([paired_difference(by_seed[min(best)], by_seed[method]) for method in others])
    close = {method for method, lead in zip(others, leads, strict=True) if lead.p is not None and not lead.significant}
    return best, close
