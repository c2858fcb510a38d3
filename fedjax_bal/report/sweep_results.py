"""Reads a sweep's table: its axes, the runs of each method at each setting, and each method's best setting."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_bal.config import SEED_LISTS, ConfigError, name_in_results, parse_yaml
from fedjax_bal.lab import SweepFolder, shortest_ends
from fedjax_bal.metrics import LARGEST_SHOWN, METRICS, MethodSummary, SeededDraw, is_imbalanced, spread_of_draws
from fedjax_bal.report.comparison import summarise
from fedjax_bal.report.reading import NO_NAMES, entries, labels_of, section, with_labels
from fedjax_bal.report.tables import flat
from fedjax_bal.validate import is_number

LEAD = "last5_accuracy"
NOT_SWEPT = "A method that sets a swept key itself has one result for all values of the key."
VALIDATION = "validation_accuracy"
_LARGEST_DRAWN = 1e18  # largest value drawn on the axis of a figure
COSTS = ("client_updates_per_s", "device_bytes")
# Sections that describe the federation and the task. Methods are compared at each value of their keys, and no value is
# chosen as the best.
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
_SEEDS = {"seed", *SEED_LISTS}
_OF_RUN = ("method", "seed", "round")

SweepSetting = tuple[Any, ...]
"""The value of each axis of a sweep."""
Condition = Mapping[int, Any]
"""Values of some axes, by axis index."""
_ANY: Condition = {}
SeededRun = dict[str, Any]
"""A run as `metrics.compare` takes it: its seed is a `SeededDraw`, and only a finished run has numbers."""


class SweptAxis(NamedTuple):
    """An axis of a sweep.

    Attributes:
        keys: the keys that change together along it.
        shown: the first of these keys that distinguish its values and therefore name them, of those that all methods
            follow; all keys if these don't distinguish them; never keys of a paper's results.
        names: the shortest suffixes of `shown` that no other axis shows: alpha for partition.alpha, model for
            model.name.
    """

    keys: tuple[str, ...]
    shown: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def is_condition(self) -> bool:
        """True if the federation or the task changes along the axis, so that no value can be the best."""
        keys = [re.sub(r"^methods\.\d+\.", "", key) for key in self.keys]  # of one method, too
        return any(f"{key}.".startswith(f"{section}.") for key in keys for section in _CONDITIONS)

    @property
    def name(self) -> str:
        """The names of the shown keys, joined."""
        return "+".join(self.names)

    def value(self, row: Mapping[str, Any]) -> Any:
        """Returns the axis's value in a row: that of its only shown key, or a text for several keys."""
        if len(self.shown) == 1:
            return row[self.shown[0]]
        return ", ".join(f"{name} {readable(row[key])}" for name, key in zip(self.names, self.shown, strict=True))

    def format_value(self, value: Any) -> str:
        """Formats a value with its key; without the key for a section or for several keys."""
        single = len(self.shown) == 1 and not str(value).startswith("{")
        return f"{self.name} {readable(value)}" if single else readable(value)


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """The table of a sweep.

    Attributes:
        name: the sweep's name.
        axes: the axes except those of seeds, over which means are taken.
        rows: the rows of `results.csv`; values are numbers, texts or None.
        text: the text of `sweep.yaml`.
        sheet: the content of `sweep.yaml`.
        draws: for each row the seed of its partition (None if not known) and its other seeds.
        summary: the summary of the first point that has one; empty if none has.
        labels: the methods' names in reports, which `rows` have, by their names in results.
        other_points: the names of the folder's points that have no rows.
    """

    name: str
    axes: tuple[SweptAxis, ...]
    rows: list[dict[str, Any]]
    text: str
    sheet: Mapping[str, Any]
    draws: tuple[SeededDraw, ...]
    summary: Mapping[str, Any]
    labels: Mapping[str, str]
    other_points: Sequence[str]

    @cached_property
    def methods(self) -> list[str]:
        """The methods, in order."""
        return list(dict.fromkeys(row["method"] for row in self.rows))

    @cached_property
    def runs(self) -> dict[tuple[str, SweepSetting], list[SeededRun]]:
        """The runs of each method at each setting, in table order; the last row of a repeated run counts."""
        names = (*(metric.name for metric in METRICS.values() if metric.of_run), *COSTS)
        by_setting: dict[tuple[str, SweepSetting], dict[SeededDraw, SeededRun]] = {}
        for row, draw in zip(self.rows, self.draws, strict=True):
            done = row["status"] == "done"
            numbers = {name: row[name] if done and _are_numbers([row.get(name)]) else None for name in names}
            runs = by_setting.setdefault((row["method"], self.setting(row)), {})
            runs[draw] = {**row, **numbers, "seed": draw}
        return {key: list(runs.values()) for key, runs in by_setting.items()}

    @cached_property
    def values(self) -> list[list[Any]]:
        """The values of each axis: numbers in ascending order, others in the sweep's order."""
        every = [list(dict.fromkeys(axis.value(row) for row in self.rows)) for axis in self.axes]
        return [sorted(values) if _are_numbers(values, _LARGEST_DRAWN) else values for values in every]

    @cached_property
    def selection_metric(self) -> str:
        """The column by which settings are selected.

        The accuracy on validation images if all finished runs have it; otherwise the accuracy on the test images, which
        is an optimistic choice.
        """
        done = [run for runs in self.runs.values() for run in runs if run["status"] == "done"]
        return VALIDATION if done and all(run[VALIDATION] is not None for run in done) else LEAD

    @cached_property
    def by_class_mean(self) -> bool:
        """True if a test set is imbalanced, so that methods are compared by their mean over classes."""
        return is_imbalanced([run for runs in self.runs.values() for run in runs])

    @property
    def condition_axes(self) -> tuple[int, ...]:
        """The indices of the axes that are conditions."""
        return tuple(place for place, axis in enumerate(self.axes) if axis.is_condition)

    @property
    def tuned(self) -> tuple[int, ...]:
        """The indices of the other axes, for which each method may have its best value."""
        return tuple(place for place, axis in enumerate(self.axes) if not axis.is_condition)

    @cached_property
    def own_values(self) -> dict[tuple[str, int], dict[str, tuple[Any, ...]]]:
        """The keys of each axis that don't change a method, by method and index of the axis, see `_own_values`."""
        found = {}
        for name, own in _own_values(self.sheet, [axis.keys for axis in self.axes]):
            found |= {(self.labels.get(name, name), place): values for place, values in enumerate(own) if values}
        return found

    @cached_property
    def unswept(self) -> dict[tuple[str, int], str]:
        """The labels of the axes none of whose keys changes a method, by method and index of the axis."""
        names = {}
        for (method, place), own in self.own_values.items():
            axis = self.axes[place]
            if len(own) == len(axis.keys):
                words = ", ".join(readable(str(value)) for values in own.values() for value in values) or "unchanged"
                names[method, place] = f"{axis.name} {words} (not swept)"
        return names

    def name_value(self, method: str, place: int, setting: SweepSetting) -> str:
        """Formats the value of an axis in a method's setting, by the keys that the method has."""
        axis, own = self.axes[place], self.own_values.get((method, place), {})
        if len(own) == len(axis.keys):
            return self.unswept[method, place]
        if not own:
            return axis.format_value(setting[place])
        row, *_ = self.runs[method, setting]
        values = {
            name: f"{readable(str(own[key][0]))} (not swept)" if key in own else readable(row[key])
            for name, key in zip(axis.names, axis.shown, strict=True)
            if own.get(key) != ()
        }
        return ", ".join(f"{name} {value}" for name, value in values.items())

    @property
    def target(self) -> float | None:
        """The target accuracy; None if there is none, or several."""
        value = section(self.sheet, "evaluation").get("target_accuracy")
        swept = any(key.startswith("evaluation.target") for axis in self.axes for key in axis.keys)
        return value if isinstance(value, float) and 0 < value < 1 and not swept else None

    @property
    def asked(self) -> int | None:
        """The number of runs in the whole sweep; None if methods or seeds are swept, or the sheet is damaged."""
        axes = self.sheet["sweep"]
        stated = [self.sheet.get("methods"), self.sheet.get("seeds", [0])]
        lists = [next(iter(axis.values())) for axis in axes] + stated
        swept = any(key in ("methods", "seeds") for axis in axes for key in axis)
        return None if swept or not all(isinstance(entries, list) for entries in lists) else math.prod(map(len, lists))

    def setting(self, row: Mapping[str, Any]) -> SweepSetting:
        """Returns the value of each axis in a row."""
        return tuple(axis.value(row) for axis in self.axes)

    def is_numeric(self, place: int) -> bool:
        """Returns whether an axis has several values, all of them numbers."""
        return len(self.values[place]) > 1 and _are_numbers(self.values[place], _LARGEST_DRAWN)

    def is_at_edge(self, method: str, setting: SweepSetting) -> bool:
        """Returns whether a tuned value is the lowest or highest of its axis, so that a better one may be outside."""
        return any(
            setting[place] in (self.values[place][0], self.values[place][-1])
            for place in self.tuned
            if self.is_numeric(place) and (method, place) not in self.unswept
        )


def read_results(folder: Path, names: Mapping[str, str] = NO_NAMES) -> Results:
    """Reads a sweep's folder, with the methods' names in reports; `names` has other ones, by the names in results.

    Raises:
        FolderError: a file is missing or damaged.
    """
    sweep = SweepFolder(folder)
    sheet, text = sweep.read_sheet()
    every = [tuple(map(str, axis)) for axis in sheet["sweep"]]
    rows = sweep.read_results([key for axis in every for key in axis])
    labels = {name: names.get(name, label) for name, label in labels_of(with_labels(sheet, names)).items()}
    for row in rows:
        row["method"] = labels.setdefault(row["method"], names.get(row["method"], row["method"]))

    # The first keys of an axis that distinguish its values, of those that all methods follow, if they can.
    partly = [{key for _, own in _own_values(sheet, every) if len(own[place]) < len(keys) for key in own[place]}
              for place, keys in enumerate(every)]  # fmt: skip
    shown = {}
    of_seeds = []
    for keys, unfollowed in zip(every, partly, strict=True):
        if {key.rpartition(".")[2] for key in keys} <= _SEEDS:
            of_seeds += keys
            continue
        named = tuple(key for key in keys if key.partition(".")[0] != "paper") or keys
        distinct = lambda names: len({tuple(row[key] for key in names) for row in rows})
        common = tuple(key for key in named if key not in unfollowed)
        firsts = [common[:count] for count in range(1, len(common) + 1)]
        shown[keys] = next((names for names in firsts if distinct(names) == distinct(named)), named)
    columns = [key for named in shown.values() for key in named]
    headings = dict(zip(columns, shortest_ends([key.removesuffix(".name") for key in columns]), strict=True))
    axes = tuple(SweptAxis(keys, named, tuple(headings[key] for key in named)) for keys, named in shown.items())

    draws = []
    own_seeds = {} if any("methods" in keys for keys in every) else _own_seeds(sheet, of_seeds, labels)
    for row in rows:
        # `partition_seeds` are in the order of `seeds`.
        lists = [parsed({**sheet, **row}.get(key)) for key in SEED_LISTS]
        seeds, partitions = (value if isinstance(value, list) else [] for value in lists)
        by_seed: dict[Any, Any] = dict(zip([seed for seed in seeds if isinstance(seed, int)], partitions, strict=False))
        # A method doesn't follow an axis of a seed that its entry sets: its runs are the same at all values.
        followed = {**row, **own_seeds.get(row["method"], {})}
        partition = by_seed.get(row.get("seed"), followed.get("partition.seed"))
        partition = partition if isinstance(partition, int) else None
        # Values of an axis such as `[0], [0, 1]` repeat runs, which the seed and the partition identify.
        others = [followed[key] for key in of_seeds if key not in ("partition.seed", *SEED_LISTS)]
        draws.append(SeededDraw(partition, (*others, row.get("seed"))))
    summary = next(filter(None, (point.read_summary() for point in sweep.points())), {})
    name = str(sheet.get("name") or folder.name)
    without_rows = sweep.other_points({row["point"] for row in rows})
    return Results(name, axes, rows, text, sheet, tuple(draws), summary, labels, without_rows)


def _own_seeds(sheet: Mapping[str, Any], keys: Sequence[str], labels: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Returns a method's values of swept seeds, by method and key; None for a key of another method's entry."""
    seeds: dict[str, dict[str, Any]] = {}
    for index, entry in enumerate(entries(sheet, "methods")):
        name = name_in_results(entry)
        for key in keys:
            override = _own_value(entry, index, key)
            if override is not None:
                seeds.setdefault(labels.get(name, name), {})[key] = next(iter(override), None)
    return seeds


def _own_values(
    sheet: Mapping[str, Any], axes: Sequence[Sequence[str]]
) -> Iterator[tuple[str, list[dict[str, tuple[Any, ...]]]]]:
    """Yields each method's name in results, and for each axis the keys that it doesn't follow, see `_own_value`."""
    if any("methods" in keys for keys in axes):
        return
    for index, entry in enumerate(entries(sheet, "methods")):
        values = [{key: _own_value(entry, index, key) for key in keys} for keys in axes]
        yield (
            name_in_results(entry),
            [{key: value for key, value in own.items() if value is not None} for own in values],
        )


def _own_value(entry: Any, index: int, key: str) -> tuple[Any, ...] | None:
    """Returns the value that a method's entry gives a swept key, () if the key is another entry's; None for neither.

    None for a section, too: an axis changes those of its keys that the entry lacks.
    """
    first, *rest = key.split(".")
    if first == "methods":
        return () if rest[:1] != [str(index)] else None
    value = entry
    for part in (first, *rest):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return None if isinstance(value, dict) else (value,)


def parsed(value: Any) -> Any:
    """Returns a value of the table, with the text of a list or mapping parsed."""
    try:
        return parse_yaml(value, "value") if isinstance(value, str) and value[:1] in ("[", "{") else value
    except ConfigError:
        return value


@lru_cache(1000, typed=True)
def readable(value: Any) -> str:
    """Formats the value of a key for people, a number with thousands separators or at most four digits."""
    value = parsed(value)
    if not is_number(value):
        return flat(value)
    short = f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
    return str(value) if isinstance(value, float) and float(short) == value else short


def _are_numbers(values: Sequence[Any], largest: float = LARGEST_SHOWN) -> bool:
    return all(is_number(value) and abs(value) <= largest for value in values)


class Cell(NamedTuple):
    """A metric of a method at one setting.

    Attributes:
        setting: the value of each axis.
        mean: mean over finished runs; None if there are none.
        deviation: sample standard deviation; None with fewer than two runs.
        count: number of finished runs.
        asked: number of planned runs.
    """

    setting: SweepSetting
    mean: float | None
    deviation: float | None
    count: int
    asked: int = 0


def cells(results: Results, method: str, figure: str, condition: Condition = _ANY) -> list[Cell]:
    """Returns a method's mean of a metric, such as `last5_accuracy`, at each setting under a condition, in order."""
    found = []
    for (of, setting), runs in results.runs.items():
        if of == method and all(setting[place] == value for place, value in condition.items()):
            known = {run["seed"]: run[figure] for run in runs if run[figure] is not None}
            mean, deviation, _ = spread_of_draws(known)
            found.append(Cell(setting, mean, deviation, len(known), len(runs)))
    return found


def list_conditions(results: Results, without: int | None = None) -> list[Condition]:
    """Lists the sweep's conditions in order, optionally without one axis; a single empty one if there are none."""
    places = [place for place in results.condition_axes if place != without]
    every = dict.fromkeys(tuple(setting[place] for place in places) for _, setting in results.runs)
    rank = lambda values: [results.values[place].index(value) for place, value in zip(places, values, strict=True)]
    return [dict(zip(places, values, strict=True)) for values in sorted(every, key=rank)]


def name_condition(results: Results, condition: Condition) -> str:
    """Formats the conditions with their values."""
    return ", ".join(results.axes[place].format_value(value) for place, value in condition.items())


def name_tuned(results: Results, method: str, setting: SweepSetting) -> str:
    """Formats a method's values of the tuned axes."""
    return ", ".join(results.name_value(method, place, setting) for place in results.tuned)


def best(results: Results, method: str, condition: Condition = _ANY) -> Cell | None:
    """Returns a method's accuracy at its best setting by `selection_metric`; settings with more finished runs first."""
    top = _best_of(cells(results, method, results.selection_metric, condition))
    return top and {cell.setting: cell for cell in cells(results, method, LEAD)}[top.setting]


def _best_of(candidates: Sequence[Cell]) -> Cell | None:
    # A setting at which some runs diverged must not win by the remaining ones.
    known = [cell for cell in candidates if cell.mean is not None]
    return max(known, key=lambda cell: (cell.count / max(cell.asked, 1), cell.mean or 0.0), default=None)


def best_runs(results: Results, condition: Condition) -> list[SeededRun]:
    """Lists the runs of the methods at their best settings (at the first setting if no run is finished)."""
    chosen = []
    for method in results.methods:
        top = best(results, method, condition) or next(iter(cells(results, method, LEAD, condition)), None)
        chosen += results.runs[method, top.setting] if top else []
    return chosen


def summarise_condition(results: Results, condition: Condition) -> list[MethodSummary]:
    """Summarises the methods at their best settings, against the first method."""
    return summarise(best_runs(results, condition), by_class_mean=results.by_class_mean)


def comparable(results: Results) -> list[tuple[str, list[list[MethodSummary]]]]:
    """Lists the tables of a sweep: the condition, and the methods in groups that share data.

    There is one table per condition; a sweep of a single method has one table for all conditions.
    """
    every = [(name_condition(results, here), summarise_condition(results, here)) for here in list_conditions(results)]
    if len(results.methods) > 1 or len(every) == 1:
        return [(name, [group]) for name, group in every]
    return [("", [[row._replace(method=f"{row.method}, {name}")] for name, group in every for row in group])]


def along(results: Results, axis: int, method: str, figure: str, condition: Condition = _ANY) -> list[Cell]:
    """Returns a metric at each value of an axis, with the other axes at the method's best setting for that value."""
    figures = {cell.setting: cell for cell in cells(results, method, figure)}
    accuracies = cells(results, method, results.selection_metric, condition)
    tops = [_best_of([cell for cell in accuracies if cell.setting[axis] == value]) for value in results.values[axis]]
    return [cell for top in tops if top is not None and (cell := figures[top.setting]).mean is not None]


def without_result(results: Results, axis: int) -> list[tuple[str, Any]]:
    """Lists the methods and values of an axis for which no run has finished."""
    every = {(method, setting[axis]): False for method, setting in results.runs}
    for (method, setting), runs in results.runs.items():
        every[method, setting[axis]] |= any(run[LEAD] is not None for run in runs)
    return [key for key, ended in every.items() if not ended]


def sweep_curves(results: Results, folder: SweepFolder) -> list[dict[str, Any]]:
    """Builds a row for each evaluated round of each run: swept keys, point, method, seed, round, and metrics.

    pandas, R and spreadsheets can group and plot this long format directly; `point`, `method` and `seed` join it with
    `results.csv`. Lists, and metrics that no run has, are left out.
    """
    # Only the sweep's own point folders are read, whatever names the table contains.
    points = {point.path.name: point for point in folder.points()}
    swept = {row["point"]: dict(takewhile(lambda item: item[0] != "point", row.items())) for row in results.rows}
    lines = [
        ({**values, "point": label}, line)
        for label, values in swept.items()
        if label in points
        for line in points[label].read_metrics()
    ]
    every = (*(metric.name for metric in METRICS.values() if metric.of_round), "wall_s")
    names = [name for name in every if any(is_number(line.get(name)) for _, line in lines)]
    rows = []
    for of_point, line in lines:
        numbers = {name: line[name] if is_number(line.get(name)) else None for name in names}
        rows.append({**of_point, **{key: line[key] for key in _OF_RUN}, **numbers})
    return rows


def how_tuned(results: Results) -> str:
    """Says by which rows each method's setting was selected; empty if none was."""
    if not results.tuned:
        return ""
    if results.selection_metric == VALIDATION:
        return "Each method has its best setting, selected by accuracy on the validation rows."
    return "Each method has its best setting, selected by accuracy on the test rows, which is optimistic."
