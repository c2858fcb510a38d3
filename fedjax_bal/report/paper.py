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
from fedjax_bal.metrics import METRICS, NOTHING, SHARE, TEXT, Metric, paired_difference, spread_of_draws
from fedjax_bal.report import sweep_results as sweeps
from fedjax_bal.report.comparison import AVERAGED, compare_runs
from fedjax_bal.report.reading import NO_NAMES, ReportedRuns, check_names, read_runs
from fedjax_bal.report.tables import BOOKTABS, Latex, Table, encoded, plural, printable, to_latex

# Matplotlib is imported late, with the gallery: importing it takes longer than most commands run.

_DOTS_PER_INCH = 300
_BOLD = "Bold: the best mean of runs on the same data."
_UNDERLINED = "Underlined: not clearly different from it (the paired 95\\% interval includes 0)."
_TUNED_ON_VALIDATION = "Each method has its best setting, selected by accuracy on the validation rows."
_TUNED_ON_TEST = "Each method has its best setting, selected by accuracy on the test rows."

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
    folders: Sequence[Path], metrics: Sequence[str], *, bold: bool = False, names: Mapping[str, str] = NO_NAMES
) -> Path:
    """Writes `table.tex` into the first folder: chosen metrics of a run, a sweep, or a comparison of runs, for a paper.

    Args:
        folders: the folder of the run or sweep, or those of the runs.
        metrics: names of metrics of whole runs; `_accuracy` and `_bytes` may be left out.
        bold: prints in bold the best mean of each column, and underlines those that don't clearly differ from it.
        names: as in `read_runs`.

    Raises:
        FolderError: a folder can't be read, the folders can't be compared, or the file can't be written.
        ValueError: a metric or a method's name is unknown.
    """
    chosen = find_metrics(metrics)
    read = _read(folders, names)
    remark = ""
    if isinstance(read, ReportedRuns):
        name = "Comparison of runs" if read.joined else read.record.summary["name"]
        conditions = [("", compare_runs(read).runs)]
    else:
        name = read.name
        conditions = [
            (sweeps.name_condition(read, here), [sweeps.best_runs(read, here)]) for here in sweeps.list_conditions(read)
        ]
        if read.tuned:
            remark = _TUNED_ON_VALIDATION if read.selection_metric == sweeps.VALIDATION else _TUNED_ON_TEST
    if not any(runs for _, groups in conditions for runs in groups):
        raise FolderError(f"{folders[0]}: no run has been evaluated yet, so there is no table")
    file = folders[0] / "table.tex"
    text = paper_table(conditions, chosen, bold=bold, name=name, remark=remark)
    with writing(file, "make the folder writable"):
        write_atomically(file, encoded(text))
    return file


def _read(folders: Sequence[Path], names: Mapping[str, str]) -> ReportedRuns | sweeps.Results:
    if len(folders) > 1 or not SweepFolder(folders[0]).exists():
        return read_runs(folders, names)
    results = sweeps.read_results(folders[0], names)
    check_names(names, results.labels)
    return results


def find_metrics(names: Sequence[str]) -> list[Metric]:
    """Finds metrics of whole runs; `_accuracy` and `_bytes` may be left out of a name.

    Raises:
        ValueError: a name is unknown.

    Example:
        >>> [metric.name for metric in find_metrics(["final", "rounds_to_target"])]
        ['final_accuracy', 'rounds_to_target']
    """
    of_run = {name: metric for name, metric in METRICS.items() if metric.of_run and metric.unit is not TEXT}
    short = {re.sub("_(accuracy|bytes)$", "", name): metric for name, metric in of_run.items()}
    for name in names:
        if name not in {*of_run, *short}:
            raise ValueError(f"--table: received {name!r:.80}; {nearest_choices(name, short, kind='metrics')}")
    return [of_run.get(name) or short[name] for name in names]


def paper_table(
    conditions: Sequence[tuple[str, Sequence[RunGroup]]],
    metrics: Sequence[Metric],
    *,
    bold: bool,
    name: str,
    remark: str = "",
) -> str:
    r"""Formats a table with a row for each method and, under each condition, a column for each metric.

    Args:
        conditions: the name of each condition (empty for a single one), and its runs in groups that share their data.
        metrics: the columns.
        bold: prints in bold, in each column and group, the best mean, and underlines those that don't clearly differ
            from it.
        name: the results' name, with which the caption starts.
        remark: the end of the caption.
    """
    runs = [run for _, groups in conditions for group in groups for run in group]
    methods = list(dict.fromkeys(run["method"] for run in runs))
    columns = []
    for _, groups in conditions:
        for metric in metrics:
            columns.append({})
            for group in groups:
                columns[-1] |= _cells(group, metric, bold=bold)
    headings = [_heading(metric) for metric in metrics] * len(conditions)
    above = ["", *(condition for condition, _ in conditions for _ in metrics)] if len(conditions) > 1 else []
    rows = [[printable(method), *(column.get(method, NOTHING) for column in columns)] for method in methods]

    seeds = Counter((place, run["method"]) for place, (_, groups) in enumerate(conditions) for g in groups for run in g)
    least, most = min(seeds.values()), max(seeds.values())
    counted = plural(most, "seed") if least == most else f"{least} to {most} seeds"
    caption = [to_latex(f"{printable(name)}: mean ± standard deviation over {counted}.")]
    if bold:
        caption += [_BOLD, _UNDERLINED] if most > 1 else [_BOLD]
    caption.append(to_latex(remark))
    table = Table(printable(name), ["Method", *headings], rows)
    return BOOKTABS + table.latex(Latex(" ".join(caption).strip()), above)


def _heading(metric: Metric) -> str:
    if metric.name == "last5_accuracy":
        return AVERAGED.replace(", %", " (%)")
    heading = metric.column.heading if metric.column else metric.name.replace("_", " ").capitalize()
    return f"{heading} ({metric.unit.symbol})" if metric.unit.symbol else heading


def _cells(runs: RunGroup, metric: Metric, *, bold: bool) -> dict[str, str]:
    """Formats a metric of each method of runs that share their data."""
    by_seed: dict[str, dict[Any, float]] = {run["method"]: {} for run in runs}
    for run in runs:
        if run.get(metric.name) is not None:
            by_seed[run["method"]][run["seed"]] = run[metric.name]
    best, close = _best_and_close(by_seed, highest=metric.unit is SHARE) if bold else (set(), set())
    cells = {}
    for method, values in by_seed.items():
        asked = sum(run["method"] == method for run in runs)
        part = f" ({len(values)} of {asked})" * (0 < len(values) < asked)
        cell = to_latex(metric.unit.show(spread_of_draws(values)) + part)
        mark = "\\textbf" if method in best else "\\underline" if method in close else ""
        cells[method] = Latex(f"{mark}{{{cell}}}") if mark else cell
    return cells


def _best_and_close(by_seed: Mapping[str, Mapping[Any, float]], *, highest: bool) -> tuple[set[str], set[str]]:
    """Returns the methods with the best mean, and the others whose paired difference from it may be 0.

    A method that lacks runs, such as those that reach the target, isn't comparable with the others.
    """
    most = max(map(len, by_seed.values()))
    known = {method: values for method, values in by_seed.items() if len(values) == most > 0}
    means = {method: spread_of_draws(values).mean or 0.0 for method, values in known.items()}
    top = (max if highest else min)(means.values(), default=None)
    best = {method for method, mean in means.items() if mean == top}
    leads = {method: paired_difference(known[min(best)], known[method]) for method in known if method not in best}
    close = {
        method
        for method, lead in leads.items()
        if lead.low is not None and lead.high is not None and lead.low <= 0 <= lead.high
    }
    return best, close
