"""A sweep's table, read and summarised: what each method does along each axis, and where it does best."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.config import ConfigError, read_yaml
from fedjax_bal.files import read_bytes
from fedjax_bal.report.folder import ReportError

_LARGEST = 100_000_000
TEST, VALIDATION = "final_accuracy", "validation_accuracy"
_WORDS = ("point", "method", "status", "failure")
AGAIN = "run `fedjax-bal sweep` on its file again to write it anew"


class Results(NamedTuple):
    """What a sweep has found.

    Attributes:
        name: of the sweep.
        axes: the keys of each axis; those of one axis change together. Axes of seeds are not among them: what differs
            along these is chance, over which means are taken.
        rows: of `results.csv`, values as numbers, texts or None.
        text: `sweep.yaml`.
        asked: how many runs the sweep asks for; None where that is not known.
    """

    name: str
    axes: tuple[tuple[str, ...], ...]
    rows: list[dict[str, Any]]
    text: str
    asked: int | None = None

    @property
    def methods(self) -> list[str]:
        """The methods, in order."""
        return list(dict.fromkeys(row["method"] for row in self.rows))


class Cell(NamedTuple):
    """A method at one setting.

    Attributes:
        setting: the value of the first key of each axis.
        mean: over its finished runs; None where there is none.
        spread: sample standard deviation; None with fewer than two.
        count: finished runs.
        asked: runs that were asked for.
    """

    setting: tuple[Any, ...]
    mean: float | None
    spread: float | None
    count: int
    asked: int = 0


def read_results(folder: Path) -> Results:
    """Reads a sweep's folder.

    Args:
        folder: with `sweep.yaml` and `results.csv`.

    Returns:
        The results.

    Raises:
        ReportError: a file is missing or damaged.
    """
    sheet, text = _sheet(folder / "sweep.yaml")
    rows = _rows(folder / "results.csv")
    every = [tuple(map(str, axis)) for axis in sheet["sweep"]]
    axes = tuple(axis for axis in every if not all(key.rpartition(".")[2] in ("seed", "seeds") for key in axis))
    for key in (key for axis in every for key in axis):
        if rows and key not in rows[0]:
            raise ReportError(f"{folder / 'results.csv'}: has no column {key!r}, which sweep.yaml sweeps; {AGAIN}")
    return Results(str(sheet.get("name") or folder.name), axes, rows, text, _asked(sheet))


def cells(results: Results, method: str, figure: str) -> list[Cell]:
    """A method's mean of a figure at each setting, in the order of the table.

    Args:
        results: the results.
        method: its name.
        figure: a column, such as `final_accuracy`.

    Returns:
        A cell for each setting that was asked for.
    """
    found: dict[tuple[Any, ...], list[Any]] = {}
    for row in results.rows:
        if row["method"] == method:
            done = row["status"] == "done" and isinstance(row.get(figure), int | float)
            found.setdefault(_setting(results, row), []).append(row[figure] if done else None)
    return [_cell(setting, values) for setting, values in found.items()]


def _setting(results: Results, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The value of each axis: that of its only key, or all in one text."""
    return tuple(row[axis[0]] if len(axis) == 1 else ", ".join(str(row[key]) for key in axis) for axis in results.axes)


def judge(results: Results) -> str:
    """The column by which settings are picked.

    Accuracy on validation images where all finished runs have it; else that on the test images, which flatters.
    """
    done = [row for row in results.rows if row["status"] == "done"]
    validated = done and all(isinstance(row.get(VALIDATION), int | float) for row in done)
    return VALIDATION if validated else TEST


def best(results: Results, method: str) -> Cell | None:
    """A method's final accuracy where it does best by `judge`, of the settings with most of their runs finished.

    Args:
        results: the results.
        method: its name.

    Returns:
        The cell; None before anything is finished.
    """
    top = _best_of(cells(results, method, judge(results)))
    return top and {cell.setting: cell for cell in cells(results, method, TEST)}[top.setting]


def _best_of(found: Sequence[Cell]) -> Cell | None:
    # A setting at which some runs diverged must not win by those that are left.
    known = [cell for cell in found if cell.mean is not None]
    return max(known, key=lambda cell: (cell.count / max(cell.asked, 1), cell.mean or 0.0), default=None)


def along(results: Results, axis: int, method: str, figure: str) -> list[Cell]:
    """A figure along an axis, the other axes where the method does best by `judge` at that value.

    Args:
        results: the results.
        axis: its number.
        method: the method.
        figure: a column.

    Returns:
        A cell for each value of the axis at which a run is finished, in order.
    """
    accuracies = cells(results, method, judge(results))
    figures = {cell.setting: cell for cell in cells(results, method, figure)}
    tops = [_best_of([cell for cell in accuracies if cell.setting[axis] == value]) for value in values(results, axis)]
    found = [figures[top.setting] for top in tops if top is not None]
    return [cell for cell in found if cell.mean is not None]


def values(results: Results, axis: int) -> list[Any]:
    """The values of an axis, numbers in rising order, others as the sweep has them."""
    found = list(dict.fromkeys(_setting(results, row)[axis] for row in results.rows))
    return sorted(found) if is_numeric(results, axis) else found


def neighbours(results: Results, method: str) -> list[tuple[Cell | None, Cell | None]]:
    """For each axis the cells one value before and one after the method's best one; None at an end."""
    top = best(results, method)
    if top is None:
        return []
    by_setting = {cell.setting: cell for cell in cells(results, method, TEST)}
    pairs = []
    for axis in range(len(results.axes)):
        along_it = values(results, axis)
        place = along_it.index(top.setting[axis])
        at = lambda other, axis=axis: by_setting.get((*top.setting[:axis], other, *top.setting[axis + 1 :]))
        before = at(along_it[place - 1]) if place else None
        pairs.append((before, at(along_it[place + 1]) if place + 1 < len(along_it) else None))
    return pairs


def is_numeric(results: Results, axis: int) -> bool:
    """Whether an axis has numbers for values, and more than one."""
    found = {_setting(results, row)[axis] for row in results.rows}
    return len(found) > 1 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)


def _cell(setting: tuple[Any, ...], asked: Sequence[float | None]) -> Cell:
    known = [value for value in asked if value is not None]
    mean = float(np.mean(known)) if known else None
    spread = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Cell(setting, mean, spread, len(known), len(asked))


def _asked(sheet: Mapping[str, Any]) -> int | None:
    """How many runs a sweep asks for; None where methods or seeds are swept, or the sheet is damaged."""
    lists = [next(iter(axis.values())) for axis in sheet["sweep"]] + [sheet.get("methods"), sheet.get("seeds")]
    swept = any(key in ("methods", "seeds") for axis in sheet["sweep"] for key in axis)
    return None if swept or not all(isinstance(own, list) for own in lists) else math.prod(map(len, lists))


def _sheet(path: Path) -> tuple[dict[str, Any], str]:
    try:
        sheet = read_yaml(path, str(path))
        text = read_bytes(path, _LARGEST).decode()
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{error}; {AGAIN}") from error
    axes = sheet.get("sweep") if isinstance(sheet, dict) else None
    if not isinstance(axes, list) or not axes or not all(isinstance(axis, dict) and axis for axis in axes):
        raise ReportError(f"{path}: has no list of axes under `sweep`; {AGAIN}")
    return sheet, text


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = read_bytes(path, _LARGEST).decode()
    except OSError as error:
        raise ReportError(f"{path}: can't be read ({error.strerror}); {AGAIN}") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"{path}: not UTF-8 text; {AGAIN}") from error
    try:
        table = list(csv.DictReader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise ReportError(f"{path}: not CSV ({error}); {AGAIN}") from error
    if not table or any(key not in table[0] for key in _WORDS):
        raise ReportError(f"{path}: must have a line of headings with {', '.join(_WORDS)}, and rows; {AGAIN}")
    if any(None in row or None in row.values() for row in table):
        raise ReportError(f"{path}: has rows of other lengths than the line of headings; {AGAIN}")
    return [{key: value if key in _WORDS else _value(value) for key, value in row.items()} for row in table]


def _value(text: str) -> Any:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return (int(text) if text.lstrip("-").isdecimal() else number) if math.isfinite(number) else None
