"""A sweep's table, read and summarised: what each method does along each axis, and where it does best."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.config import ConfigError, parse_yaml
from fedjax_bal.runs import SweepFolder

TEST, VALIDATION = "final_accuracy", "validation_accuracy"
# What a federation is like, rather than what a method is given: nobody picks the best of these.
_CONDITIONS = (
    "dataset",
    "partition",
    "partition_seeds",
    "auxiliary",
    "availability",
    "delivery",
    "speed",
    "evaluation",
)
_CONDITIONS += ("selection.clients_per_round",)


class Results(NamedTuple):
    """The table of a sweep.

    Attributes:
        name: of the sweep.
        axes: the keys of each axis; those of one axis change together. Axes of seeds are not among them: what differs
            along these is chance, over which means are taken.
        rows: of `results.csv`, values as numbers, texts or None.
        text: `sweep.yaml`.
        sheet: its content.
        asked: how many runs the sweep asks for; None where that is not known.
        partitions: the seed of the partition of each row; None where it is not known, or the same for all.
    """

    name: str
    axes: tuple[tuple[str, ...], ...]
    rows: list[dict[str, Any]]
    text: str
    sheet: Mapping[str, Any]
    asked: int | None = None
    partitions: tuple[int | None, ...] = ()

    @property
    def methods(self) -> list[str]:
        """The methods, in order."""
        return list(dict.fromkeys(row["method"] for row in self.rows))

    @property
    def target(self) -> float | None:
        """The accuracy that counts as reached; None where there is none, or several."""
        asked = (self.sheet.get("evaluation") or {}) if isinstance(self.sheet.get("evaluation"), dict) else {}
        value = asked.get("target_accuracy")
        return value if isinstance(value, float) and 0 < value < 1 else None

    @property
    def conditions(self) -> tuple[int, ...]:
        """The places of the axes along which the federation changes, so that no value of them can win."""
        return tuple(place for place, axis in enumerate(self.axes) if any(map(_is_condition, axis)))

    @property
    def tuned(self) -> tuple[int, ...]:
        """The places of the other axes, of which a method may have its best value."""
        return tuple(place for place in range(len(self.axes)) if place not in self.conditions)


Situation = Mapping[int, Any]
"""Values of some axes by their places."""
_ANY: Situation = {}


class Cell(NamedTuple):
    """A method at one setting.

    Attributes:
        setting: the value of the first key of each axis.
        mean: over its finished runs; None without any.
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
    """Reads a sweep's folder; raises `FolderError` where a file is missing or damaged."""
    own = SweepFolder(folder)
    sheet, text = own.read_sheet()
    every = [tuple(map(str, axis)) for axis in sheet["sweep"]]
    rows = own.read_results([key for axis in every for key in axis])
    seeds = {"seed", "seeds", "partition_seeds"}
    axes = tuple(axis for axis in every if not {key.rpartition(".")[2] for key in axis} <= seeds)
    partitions = tuple(_partition_seed(sheet, row) for row in rows)
    return Results(str(sheet.get("name") or folder.name), axes, rows, text, sheet, _asked(sheet), partitions)


def _partition_seed(sheet: Mapping[str, Any], row: Mapping[str, Any]) -> int | None:
    """The seed of a row's partition: that of `partition_seeds` in the place of its own seed, or `partition.seed`."""
    own = dict(zip(*(_seeds({**sheet, **row}.get(key)) for key in ("seeds", "partition_seeds")), strict=False))
    found = own.get(row.get("seed"), row.get("partition.seed"))
    return found if isinstance(found, int) else None


def _seeds(value: Any) -> list[int]:
    """A list of seeds, which a table has as text."""
    try:
        found = parse_yaml(value, "seeds") if isinstance(value, str) else value
    except ConfigError:
        return []
    return [seed for seed in found if isinstance(seed, int)] if isinstance(found, list) else []


def cells(results: Results, method: str, figure: str) -> list[Cell]:
    """A method's mean of a figure, such as `final_accuracy`, at each setting, in the order of the table."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for row in results.rows:
        if row["method"] == method:
            done = row["status"] == "done" and isinstance(row.get(figure), int | float)
            found.setdefault(setting_of(results, row), []).append(row[figure] if done else None)
    return [_cell(setting, values) for setting, values in found.items()]


def setting_of(results: Results, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The value of each axis: that of its only key, or all in one text."""
    return tuple(row[axis[0]] if len(axis) == 1 else ", ".join(str(row[key]) for key in axis) for axis in results.axes)


def judge(results: Results) -> str:
    """The column by which settings are picked.

    Accuracy on validation images where all finished runs have it; else that on the test images, which flatters.
    """
    done = [row for row in results.rows if row["status"] == "done"]
    validated = done and all(isinstance(row.get(VALIDATION), int | float) for row in done)
    return VALIDATION if validated else TEST


def situations(results: Results, apart_from: int | None = None) -> list[Situation]:
    """The conditions that the sweep has, in order, the values of one axis left out if asked; one empty without any."""
    places = [place for place in results.conditions if place != apart_from]
    found = dict.fromkeys(tuple(setting_of(results, row)[place] for place in places) for row in results.rows)
    ranks = {place: values(results, place) for place in places}
    rank = lambda own: [ranks[place].index(value) for place, value in zip(places, own, strict=True)]
    return [dict(zip(places, own, strict=True)) for own in sorted(found, key=rank)]


def name_situation(results: Results, situation: Situation) -> str:
    """The conditions with their values, as text."""
    return ", ".join(f"{_short(results.axes[place])} {value}" for place, value in situation.items())


def in_situation(found: Sequence[Cell], situation: Situation) -> list[Cell]:
    """The cells that have its values."""
    return [cell for cell in found if all(cell.setting[place] == value for place, value in situation.items())]


def best(results: Results, method: str, situation: Situation = _ANY) -> Cell | None:
    """A method's final accuracy where it does best by `judge`, of the settings with most of their runs finished."""
    top = _best_of(in_situation(cells(results, method, judge(results)), situation))
    return top and {cell.setting: cell for cell in cells(results, method, TEST)}[top.setting]


def _best_of(found: Sequence[Cell]) -> Cell | None:
    # A setting at which some runs diverged must not win by those that are left.
    known = [cell for cell in found if cell.mean is not None]
    return max(known, key=lambda cell: (cell.count / max(cell.asked, 1), cell.mean or 0.0), default=None)


def along(results: Results, axis: int, method: str, figure: str, situation: Situation = _ANY) -> list[Cell]:
    """A figure at each value of an axis with a finished run, the other axes at the method's best setting for it."""
    accuracies = in_situation(cells(results, method, judge(results)), situation)
    figures = {cell.setting: cell for cell in cells(results, method, figure)}
    tops = [_best_of([cell for cell in accuracies if cell.setting[axis] == value]) for value in values(results, axis)]
    found = [figures[top.setting] for top in tops if top is not None]
    return [cell for cell in found if cell.mean is not None]


def values(results: Results, axis: int) -> list[Any]:
    """The values of an axis, numbers in rising order, others as the sweep has them."""
    found = list(dict.fromkeys(setting_of(results, row)[axis] for row in results.rows))
    return sorted(found) if is_numeric(results, axis) else found


def neighbours(results: Results, method: str, situation: Situation = _ANY) -> list[tuple[Cell | None, Cell | None]]:
    """For each tuned axis the cells one value before and one after the method's best one; None at an end."""
    top = best(results, method, situation)
    if top is None:
        return []
    by_setting = {cell.setting: cell for cell in cells(results, method, TEST)}
    pairs = []
    for axis in results.tuned:
        along_it = values(results, axis)
        place = along_it.index(top.setting[axis])
        at = lambda other, axis=axis: by_setting.get((*top.setting[:axis], other, *top.setting[axis + 1 :]))
        before = at(along_it[place - 1]) if place else None
        pairs.append((before, at(along_it[place + 1]) if place + 1 < len(along_it) else None))
    return pairs


def is_numeric(results: Results, axis: int) -> bool:
    """Tells whether an axis has several values, all of them numbers."""
    found = {setting_of(results, row)[axis] for row in results.rows}
    return len(found) > 1 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)


def _short(axis: Sequence[str]) -> str:
    return "+".join(key.rpartition(".")[2] for key in axis)


def _is_condition(key: str) -> bool:
    return any(f"{key}.".startswith(f"{section}.") for section in _CONDITIONS)


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
