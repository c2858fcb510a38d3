"""A sweep's table, read: its axes, the runs of each method at each setting, and the best setting of each method."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_bal.config import ConfigError, parse_yaml
from fedjax_bal.lab import LARGEST, SweepFolder
from fedjax_bal.metrics import METRICS, MethodSummary, SeededDraw, averaged, spread_of_draws
from fedjax_bal.report.tables import summarise_group
from fedjax_bal.report.wording import flat
from fedjax_bal.validate import is_number

LEAD, VALIDATION = "last5_accuracy", "validation_accuracy"
_LARGEST_DRAWN = 1e18  # on an axis of a figure
COSTS = ("client_updates_per_s", "device_bytes")
# Sections that describe the federation and the task. Methods are compared at each of their values; none is "best".
_CONDITIONS = (
    "dataset",
    "partition",
    "partition_seeds",
    "auxiliary",
    "model",
    "availability",
    "delivery",
    "speed",
    "evaluation",
    "paper",
    "training.rounds",
    "selection.clients_per_round",
)
_SEEDS = {"seed", "seeds", "partition_seeds"}
_OF_RUN = ("method", "seed", "round")

Setting = tuple[Any, ...]
"""The value of each axis of a sweep."""
Situation = Mapping[int, Any]
"""Values of some axes by their places."""
_ANY: Situation = {}
Run = dict[str, Any]
"""A run as `metrics.compare` takes it: its seed is a `SeededDraw`, and it has numbers only if it is done."""


class SweptAxis(NamedTuple):
    """An axis of a sweep.

    Attributes:
        keys: those that change together along it.
        shown: the first of them that tell its values apart, and so name these; never those of a paper's results.
        names: the shortest ends of these that no other axis shows: alpha for partition.alpha, model for model.name.
    """

    keys: tuple[str, ...]
    shown: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def is_condition(self) -> bool:
        """Whether the federation changes along it, so that no value of it can win."""
        return any(f"{key}.".startswith(f"{section}.") for key in self.keys for section in _CONDITIONS)

    @property
    def name(self) -> str:
        """The names of the keys shown."""
        return "+".join(self.names)

    def value(self, row: Mapping[str, Any]) -> Any:
        """Its value in a row: that of the only key shown, or all in words."""
        if len(self.shown) == 1:
            return row[self.shown[0]]
        return ", ".join(f"{name} {readable(row[key])}" for name, key in zip(self.names, self.shown, strict=True))

    def tell(self, value: Any) -> str:
        """A value with its key; a section, and what has several keys, without."""
        single = len(self.shown) == 1 and not str(value).startswith("{")
        return f"{self.name} {readable(value)}" if single else readable(value)


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """The table of a sweep.

    Attributes:
        name: of the sweep.
        axes: without those of seeds: what differs along these is chance, over which means are taken.
        rows: of `results.csv`, values as numbers, texts or None.
        text: `sweep.yaml`.
        sheet: its content.
        draws: of each row the seed of its partition, None where not known, and its other seeds.
        command: the options that repeat it, as a summary has them; None where not known.
    """

    name: str
    axes: tuple[SweptAxis, ...]
    rows: list[dict[str, Any]]
    text: str
    sheet: Mapping[str, Any]
    draws: tuple[SeededDraw, ...]
    command: Any = None

    @cached_property
    def methods(self) -> list[str]:
        """The methods, in order."""
        return list(dict.fromkeys(row["method"] for row in self.rows))

    @cached_property
    def runs(self) -> dict[tuple[str, Setting], list[Run]]:
        """The runs of each method at each setting, in the order of the table."""
        found: dict[tuple[str, Setting], dict[SeededDraw, Run]] = {}
        for row, draw in zip(self.rows, self.draws, strict=True):
            found.setdefault((row["method"], self.setting(row)), {})[draw] = _run(row, draw)
        return {place: list(runs.values()) for place, runs in found.items()}

    @cached_property
    def values(self) -> list[list[Any]]:
        """The values of each axis, numbers in rising order, others as the sweep has them."""
        every = [list(dict.fromkeys(axis.value(row) for row in self.rows)) for axis in self.axes]
        return [sorted(found) if _are_numbers(found, _LARGEST_DRAWN) else found for found in every]

    @cached_property
    def judge(self) -> str:
        """The column by which settings are picked.

        Accuracy on validation images where all finished runs have it; else that on the test images, which flatters.
        """
        done = [run for runs in self.runs.values() for run in runs if run["status"] == "done"]
        return VALIDATION if done and all(run[VALIDATION] is not None for run in done) else LEAD

    @cached_property
    def averaged(self) -> tuple[int, int]:
        """How many evaluations `last5_accuracy` is the mean of, the fewest and the most."""
        return averaged([run for runs in self.runs.values() for run in runs])

    @property
    def conditions(self) -> tuple[int, ...]:
        """The places of the axes that are conditions."""
        return tuple(place for place, axis in enumerate(self.axes) if axis.is_condition)

    @property
    def tuned(self) -> tuple[int, ...]:
        """The places of the other axes, of which a method may have its best value."""
        return tuple(place for place, axis in enumerate(self.axes) if not axis.is_condition)

    @property
    def target(self) -> float | None:
        """The accuracy that counts as reached; None where there is none, or several."""
        asked = self.sheet.get("evaluation")
        value = asked.get("target_accuracy") if isinstance(asked, dict) else None
        swept = any(key.startswith("evaluation.target") for axis in self.axes for key in axis.keys)
        return value if isinstance(value, float) and 0 < value < 1 and not swept else None

    @property
    def asked(self) -> int | None:
        """How many runs the sweep asks for; None where methods or seeds are swept, or the sheet is damaged."""
        axes = self.sheet["sweep"]
        lists = [next(iter(axis.values())) for axis in axes] + [self.sheet.get("methods"), self.sheet.get("seeds")]
        swept = any(key in ("methods", "seeds") for axis in axes for key in axis)
        return None if swept or not all(isinstance(own, list) for own in lists) else math.prod(map(len, lists))

    def setting(self, row: Mapping[str, Any]) -> Setting:
        """The value of each axis in a row."""
        return tuple(axis.value(row) for axis in self.axes)

    def is_numeric(self, place: int) -> bool:
        """Tells whether an axis has several values, all of them numbers."""
        return len(self.values[place]) > 1 and _are_numbers(self.values[place], _LARGEST_DRAWN)


def read_results(folder: Path) -> Results:
    """Reads a sweep's folder; raises `FolderError` where a file is missing or damaged."""
    own = SweepFolder(folder)
    sheet, text = own.read_sheet()
    every = [tuple(map(str, axis)) for axis in sheet["sweep"]]
    rows = own.read_results([key for axis in every for key in axis])
    of_seeds = [axis for axis in every if {key.rpartition(".")[2] for key in axis} <= _SEEDS]
    shown = {keys: _telling(keys, rows) for keys in every if keys not in of_seeds}
    names = _names([key for own in shown.values() for key in own])
    axes = tuple(SweptAxis(keys, own, tuple(names[key] for key in own)) for keys, own in shown.items())
    chance = [key for axis in of_seeds for key in axis]
    draws = (SeededDraw(_partition_seed(sheet, row), (*(row[key] for key in chance), row.get("seed"))) for row in rows)
    given = next((point.read_summary().get("command") for point in own.points()), None)
    return Results(str(sheet.get("name") or folder.name), axes, rows, text, sheet, tuple(draws), given)


@lru_cache(1000, typed=True)
def readable(value: Any) -> str:
    """A value of a key; a list or mapping, which a table has as text, in words."""
    try:
        return flat(parse_yaml(value, "value") if isinstance(value, str) and value[:1] in ("[", "{") else value)
    except ConfigError:
        return str(value)


def _run(row: Mapping[str, Any], draw: SeededDraw) -> Run:
    done = row["status"] == "done"
    fits = lambda value: done and _are_numbers([value])
    names = (*(metric.name for metric in METRICS.values() if metric.of_run), *COSTS)
    return {**row, **{key: row[key] if fits(row.get(key)) else None for key in names}, "seed": draw}


def _telling(keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    own = tuple(key for key in keys if key.partition(".")[0] != "paper") or tuple(keys)
    values = lambda count: len({tuple(row[key] for key in own[:count]) for row in rows})
    return next(own[:count] for count in range(1, len(own) + 1) if values(count) == values(len(own)))


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


def _names(keys: Sequence[str]) -> dict[str, str]:
    """The shortest end of each key that no other one has, without a last `name`."""
    whole = {key: key.removesuffix(".name").split(".") for key in keys}

    def shortest(own: list[str]) -> str:
        ends = (own[-length:] for length in range(1, len(own) + 1))
        return ".".join(next((end for end in ends if sum(o[-len(end) :] == end for o in whole.values()) == 1), own))

    return {key: shortest(own) for key, own in whole.items()}


def _are_numbers(found: Sequence[Any], largest: float = LARGEST) -> bool:
    return all(is_number(value) and abs(value) <= largest for value in found)


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


def sweep_curves(
    results: Results, folder: SweepFolder, note: Callable[[str], object] = lambda text: None
) -> list[dict[str, Any]]:
    """A row for each evaluated round of each run: the swept keys, point, method, seed, round, and its numbers.

    A table of this long form is what pandas, R and spreadsheets group and plot as it is; `point`, `method` and `seed`
    join it with `results.csv`. Metrics that no run has are left out, so are lists, and damaged
    lines, which `note` is told.
    """
    # Whatever the table names, only folders among the sweep's own points are read.
    points = {point.path.name: point for point in folder.points()}
    swept = {row["point"]: dict(takewhile(lambda item: item[0] != "point", row.items())) for row in results.rows}
    lines = [
        ({**values, "point": label}, line)
        for label, values in swept.items()
        if label in points
        for line in points[label].read_metrics(note)
    ]
    every = (*(metric.name for metric in METRICS.values() if metric.of_round), "wall_s")
    names = [name for name in every if any(is_number(line.get(name)) for _, line in lines)]
    number = lambda value: value if is_number(value) else None
    return [
        {**of_point, **{key: line[key] for key in _OF_RUN}, **{name: number(line.get(name)) for name in names}}
        for of_point, line in lines
    ]
