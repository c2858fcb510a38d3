"""The runs of a sweep summarised by method and setting, and the best setting of each method."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.metrics import MethodSummary, spread_of_draws
from fedjax_bal.report.sweep_results import LEAD, Results, Run, Setting
from fedjax_bal.report.table_files import summarise_group

Situation = Mapping[int, Any]
"""Values of some axes by their places."""
_ANY: Situation = {}


class Cell(NamedTuple):
    """A figure of a method at one setting.

    Attributes:
        setting: the value of each axis.
        mean: over its finished runs; None without any.
        deviation: sample standard deviation; None with fewer than two.
        count: finished runs.
        asked: runs that were asked for.
    """

    setting: Setting
    mean: float | None
    deviation: float | None
    count: int
    asked: int = 0


def cells(results: Results, method: str, figure: str) -> list[Cell]:
    """A method's mean of a figure, such as `last5_accuracy`, at each setting, in the order of the table."""
    return [_cell(setting, runs, figure) for (own, setting), runs in results.runs.items() if own == method]


def _cell(setting: Setting, runs: Sequence[Run], figure: str) -> Cell:
    known = {run["seed"]: run[figure] for run in runs if run[figure] is not None}
    mean, deviation, _ = spread_of_draws(known)
    return Cell(setting, mean, deviation, len(known), len(runs))


def situations(results: Results, apart_from: int | None = None) -> list[Situation]:
    """The conditions that the sweep has, in order, the values of one axis left out if asked; one empty without any."""
    places = [place for place in results.conditions if place != apart_from]
    found = dict.fromkeys(tuple(setting[place] for place in places) for _, setting in results.runs)
    rank = lambda own: [results.values[place].index(value) for place, value in zip(places, own, strict=True)]
    return [dict(zip(places, own, strict=True)) for own in sorted(found, key=rank)]


def name_situation(results: Results, situation: Situation) -> str:
    """The conditions with their values, as text."""
    return ", ".join(results.axes[place].tell(value) for place, value in situation.items())


def name_tuned(results: Results, setting: Setting) -> str:
    """The values of the axes that are tuned, as text."""
    return name_situation(results, {place: setting[place] for place in results.tuned})


def in_situation(found: Sequence[Cell], situation: Situation) -> list[Cell]:
    """The cells that have its values."""
    return [cell for cell in found if all(cell.setting[place] == value for place, value in situation.items())]


def best(results: Results, method: str, situation: Situation = _ANY) -> Cell | None:
    """A method's accuracy where it does best by `Results.judge`, of the settings with most of their runs finished."""
    top = _best_of(in_situation(cells(results, method, results.judge), situation))
    return top and {cell.setting: cell for cell in cells(results, method, LEAD)}[top.setting]


def _best_of(found: Sequence[Cell]) -> Cell | None:
    # A setting at which some runs diverged must not win by those that are left.
    known = [cell for cell in found if cell.mean is not None]
    return max(known, key=lambda cell: (cell.count / max(cell.asked, 1), cell.mean or 0.0), default=None)


def chosen_runs(results: Results, situation: Situation) -> list[Run]:
    """The runs of each method at its best setting; at its first one if none is finished."""
    chosen = []
    for method in results.methods:
        found = in_situation(cells(results, method, LEAD), situation)
        top = best(results, method, situation) or next(iter(found), None)
        chosen += results.runs[method, top.setting] if top else []
    return chosen


def summarise_situation(results: Results, situation: Situation) -> list[MethodSummary]:
    """The methods, each at its best setting, over seeds and against the first one."""
    return summarise_group(chosen_runs(results, situation))


def comparable(results: Results) -> list[tuple[str, list[list[MethodSummary]]]]:
    """The tables of a sweep: each one's condition, and its methods in groups that share their data.

    That is one table for each condition; of a single method one for all, as there is nothing to compare at each.
    """
    found = [(name_situation(results, own), summarise_situation(results, own)) for own in situations(results)]
    if len(results.methods) > 1 or len(found) == 1:
        return [(name, [group]) for name, group in found]
    return [("", [[own._replace(method=f"{own.method}, {name}")] for name, group in found for own in group])]


def along(results: Results, axis: int, method: str, figure: str, situation: Situation = _ANY) -> list[Cell]:
    """A figure at each value of an axis with a finished run, the other axes at the method's best setting for it."""
    accuracies = in_situation(cells(results, method, results.judge), situation)
    figures = {cell.setting: cell for cell in cells(results, method, figure)}
    tops = [_best_of([cell for cell in accuracies if cell.setting[axis] == value]) for value in results.values[axis]]
    found = [figures[top.setting] for top in tops if top is not None]
    return [cell for cell in found if cell.mean is not None]


def neighbours(results: Results, method: str, situation: Situation = _ANY) -> list[tuple[Cell | None, Cell | None]]:
    """For each tuned axis the cells one value before and one after the method's best one; None at an end."""
    top = best(results, method, situation)
    if top is None:
        return []
    by_setting = {cell.setting: cell for cell in cells(results, method, LEAD)}
    pairs = []
    for axis in results.tuned:
        values = results.values[axis]
        place = values.index(top.setting[axis])
        at = lambda other, axis=axis: by_setting.get((*top.setting[:axis], other, *top.setting[axis + 1 :]))
        before = at(values[place - 1]) if place else None
        pairs.append((before, at(values[place + 1]) if place + 1 < len(values) else None))
    return pairs
