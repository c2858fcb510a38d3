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

LEAD = "last5_accuracy"
VALIDATION = "validation_accuracy"
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
        """The runs of each method at each setting, in the order of the table; of a repeated run the last row counts."""
        names = (*(metric.name for metric in METRICS.values() if metric.of_run), *COSTS)
        by_setting: dict[tuple[str, Setting], dict[SeededDraw, Run]] = {}
        for row, draw in zip(self.rows, self.draws, strict=True):
            done = row["status"] == "done"
            numbers = {name: row[name] if done and _are_numbers([row.get(name)]) else None for name in names}
            runs = by_setting.setdefault((row["method"], self.setting(row)), {})
            runs[draw] = {**row, **numbers, "seed": draw}
        return {key: list(runs.values()) for key, runs in by_setting.items()}

    @cached_property
    def values(self) -> list[list[Any]]:
        """The values of each axis, numbers in rising order, others as the sweep has them."""
        every = [list(dict.fromkeys(axis.value(row) for row in self.rows)) for axis in self.axes]
        return [sorted(values) if _are_numbers(values, _LARGEST_DRAWN) else values for values in every]

    @cached_property
    def judge(self) -> str:
        """The column by which settings are selected.

        Accuracy on validation images where all finished runs have it; else that on the test images, which is
        optimistic.
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
        evaluation = self.sheet.get("evaluation")
        value = evaluation.get("target_accuracy") if isinstance(evaluation, dict) else None
        swept = any(key.startswith("evaluation.target") for axis in self.axes for key in axis.keys)
        return value if isinstance(value, float) and 0 < value < 1 and not swept else None

    @property
    def asked(self) -> int | None:
        """How many runs the sweep asks for; None where methods or seeds are swept, or the sheet is damaged."""
        axes = self.sheet["sweep"]
        lists = [next(iter(axis.values())) for axis in axes] + [self.sheet.get("methods"), self.sheet.get("seeds")]
        swept = any(key in ("methods", "seeds") for axis in axes for key in axis)
        return None if swept or not all(isinstance(entries, list) for entries in lists) else math.prod(map(len, lists))

    def setting(self, row: Mapping[str, Any]) -> Setting:
        """The value of each axis in a row."""
        return tuple(axis.value(row) for axis in self.axes)

    def is_numeric(self, place: int) -> bool:
        """Tells whether an axis has several values, all of them numbers."""
        return len(self.values[place]) > 1 and _are_numbers(self.values[place], _LARGEST_DRAWN)

    def is_at_end(self, place: int, value: Any) -> bool:
        """Tells whether a value is the lowest or highest of a numeric axis, so that a better one may lie beyond."""
        return self.is_numeric(place) and value in (self.values[place][0], self.values[place][-1])


def read_results(folder: Path) -> Results:
    """Reads a sweep's folder; raises `FolderError` where a file is missing or damaged."""
    sweep = SweepFolder(folder)
    sheet, text = sweep.read_sheet()
    every = [tuple(map(str, axis)) for axis in sheet["sweep"]]
    rows = sweep.read_results([key for axis in every for key in axis])

    # The first keys of an axis that distinguish its values name them.
    shown = {}
    of_seeds = []
    for keys in every:
        if {key.rpartition(".")[2] for key in keys} <= _SEEDS:
            of_seeds += keys
            continue
        named = tuple(key for key in keys if key.partition(".")[0] != "paper") or keys
        distinct = [len({tuple(row[key] for key in named[:count]) for row in rows}) for count in range(len(named) + 1)]
        count = next(count for count in range(1, len(named) + 1) if distinct[count] == distinct[-1])
        shown[keys] = named[:count]
    # Each goes by the shortest end that no other one has, without a last `name`.
    parts = {key: key.removesuffix(".name").split(".") for named in shown.values() for key in named}
    ends = {key: [part[-length:] for length in range(1, len(part) + 1)] for key, part in parts.items()}
    names = {
        key: ".".join(next((end for end in mine if sum(end in theirs for theirs in ends.values()) == 1), mine[-1]))
        for key, mine in ends.items()
    }
    axes = tuple(SweptAxis(keys, named, tuple(names[key] for key in named)) for keys, named in shown.items())

    draws = []
    for row in rows:
        # `partition_seeds` stand in the order of `seeds`.
        lists = [parsed({**sheet, **row}.get(key)) for key in ("seeds", "partition_seeds")]
        seeds, partitions = (value if isinstance(value, list) else [] for value in lists)
        by_seed: dict[Any, Any] = dict(zip([seed for seed in seeds if isinstance(seed, int)], partitions, strict=False))
        partition = by_seed.get(row.get("seed"), row.get("partition.seed"))
        partition = partition if isinstance(partition, int) else None
        draws.append(SeededDraw(partition, (*(row[key] for key in of_seeds), row.get("seed"))))
    command = next((point.read_summary().get("command") for point in sweep.points()), None)
    return Results(str(sheet.get("name") or folder.name), axes, rows, text, sheet, tuple(draws), command)


def parsed(value: Any) -> Any:
    """A value of the table; a list or mapping, which it has as text, is read."""
    try:
        return parse_yaml(value, "value") if isinstance(value, str) and value[:1] in ("[", "{") else value
    except ConfigError:
        return value


@lru_cache(1000, typed=True)
def readable(value: Any) -> str:
    """A value of a key in words."""
    return flat(parsed(value))


def _are_numbers(values: Sequence[Any], largest: float = LARGEST) -> bool:
    return all(is_number(value) and abs(value) <= largest for value in values)


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


def cells(results: Results, method: str, figure: str, situation: Situation = _ANY) -> list[Cell]:
    """A method's mean of a figure, such as `last5_accuracy`, at each setting under a condition, in order."""
    found = []
    for (of, setting), runs in results.runs.items():
        if of == method and all(setting[place] == value for place, value in situation.items()):
            known = {run["seed"]: run[figure] for run in runs if run[figure] is not None}
            mean, deviation, _ = spread_of_draws(known)
            found.append(Cell(setting, mean, deviation, len(known), len(runs)))
    return found


def situations(results: Results, apart_from: int | None = None) -> list[Situation]:
    """The conditions that the sweep has, in order, the values of one axis left out if asked; one empty without any."""
    places = [place for place in results.conditions if place != apart_from]
    every = dict.fromkeys(tuple(setting[place] for place in places) for _, setting in results.runs)
    rank = lambda values: [results.values[place].index(value) for place, value in zip(places, values, strict=True)]
    return [dict(zip(places, values, strict=True)) for values in sorted(every, key=rank)]


def name_situation(results: Results, situation: Situation) -> str:
    """The conditions with their values, as text."""
    return ", ".join(results.axes[place].tell(value) for place, value in situation.items())


def name_tuned(results: Results, setting: Setting) -> str:
    """The values of the axes that are tuned, as text."""
    return name_situation(results, {place: setting[place] for place in results.tuned})


def best(results: Results, method: str, situation: Situation = _ANY) -> Cell | None:
    """A method's accuracy where it does best by `Results.judge`, of the settings with most of their runs finished."""
    top = _best_of(cells(results, method, results.judge, situation))
    return top and {cell.setting: cell for cell in cells(results, method, LEAD)}[top.setting]


def _best_of(candidates: Sequence[Cell]) -> Cell | None:
    # A setting at which some runs diverged must not win by those that are left.
    known = [cell for cell in candidates if cell.mean is not None]
    return max(known, key=lambda cell: (cell.count / max(cell.asked, 1), cell.mean or 0.0), default=None)


def summarise_situation(results: Results, situation: Situation) -> list[MethodSummary]:
    """The methods, each at its best setting (the first without a finished run), over seeds and against the first."""
    chosen = []
    for method in results.methods:
        top = best(results, method, situation) or next(iter(cells(results, method, LEAD, situation)), None)
        chosen += results.runs[method, top.setting] if top else []
    return summarise_group(chosen)


def comparable(results: Results) -> list[tuple[str, list[list[MethodSummary]]]]:
    """The tables of a sweep: each one's condition, and its methods in groups that share their data.

    That is one table for each condition; of a single method one for all, as there is nothing to compare at each.
    """
    every = [(name_situation(results, here), summarise_situation(results, here)) for here in situations(results)]
    if len(results.methods) > 1 or len(every) == 1:
        return [(name, [group]) for name, group in every]
    return [("", [[row._replace(method=f"{row.method}, {name}")] for name, group in every for row in group])]


def along(results: Results, axis: int, method: str, figure: str, situation: Situation = _ANY) -> list[Cell]:
    """A figure at each value of an axis with a finished run, the other axes at the method's best setting for it."""
    figures = {cell.setting: cell for cell in cells(results, method, figure)}
    accuracies = cells(results, method, results.judge, situation)
    tops = [_best_of([cell for cell in accuracies if cell.setting[axis] == value]) for value in results.values[axis]]
    return [cell for top in tops if top is not None and (cell := figures[top.setting]).mean is not None]


def sweep_curves(
    results: Results, folder: SweepFolder, note: Callable[[str], object] = lambda text: None
) -> list[dict[str, Any]]:
    """A row for each evaluated round of each run: the swept keys, point, method, seed, round, and its numbers.

    A table of this long form is what pandas, R and spreadsheets group and plot as it is; `point`, `method` and `seed`
    join it with `results.csv`. Lists are left out, and metrics that no run has. `note` receives a message for damaged
    lines, which are skipped.
    """
    # Only folders among the sweep's own points are read, regardless of what the table names.
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
    rows = []
    for of_point, line in lines:
        numbers = {name: line[name] if is_number(line.get(name)) else None for name in names}
        rows.append({**of_point, **{key: line[key] for key in _OF_RUN}, **numbers})
    return rows
