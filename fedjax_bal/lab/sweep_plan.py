"""The plan of a sweep: its axes and its points, each of which is a configuration."""

import hashlib
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.config import (
    COMMAND_LINE,
    SEED_LISTS,
    Config,
    ConfigError,
    KeyPath,
    Sheet,
    build_config,
    completed_path,
    dump_yaml,
    nearest_choices,
    read_command,
    received_value,
    with_absolute_paths,
    with_changes,
    with_entries,
    with_paper_setting,
)
from fedjax_bal.validate import is_number

MOST_POINTS = 10_000
_MOST_VALUES = 1000
_RANGE = ("from", "to", "steps", "scale")
_SCALES = ("linear", "log")


class Axis(NamedTuple):
    """Keys that change together, and the values of each key; all keys have the same number of values."""

    keys: tuple[str, ...]  # dotted paths of a configuration
    values: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.values[0])


def read_axes(entries: Any, source: str) -> list[Axis]:
    """Reads the list of axes below `sweep`, a list of mappings.

    A mapping of several keys is one axis along which they change together. The values of a key are a list or a range
    `{from: 0.01, to: 1, steps: 3, scale: log}`, both ends included. `source`, the file's name, appears in messages.

    Raises:
        ConfigError: the list is invalid; the message names the place, the value and the rule.
    """
    if not isinstance(entries, list) or not entries:
        wanted = "must be a list of axes, for instance [{training.optimizer.learning_rate: [0.01, 0.1]}]"
        raise ConfigError(f"{source}: sweep: received {received_value(entries)}, {wanted}")
    axes = [_axis(entry, f"{source}: sweep.{place}") for place, entry in enumerate(entries)]
    seen: dict[str, int] = {}
    for place, axis in enumerate(axes):
        for key in axis.keys:
            if seen.setdefault(key, place) != place:
                raise ConfigError(f"{source}: sweep.{place}: {key}: already on axis {seen[key]}; a key has one axis")
    _check_size(axes, source)
    return axes


def _check_size(axes: Sequence[Axis], source: str) -> None:
    points = math.prod(map(len, axes))
    if points > MOST_POINTS:
        sizes = " x ".join(str(len(axis)) for axis in axes)
        raise ConfigError(f"{source}: sweep: {sizes} = {points} points; at most {MOST_POINTS} are allowed")


def combinations(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Combines the axes; each combination maps every key to a value, and the last axis changes fastest."""
    along = [[dict(zip(axis.keys, values, strict=True)) for values in zip(*axis.values, strict=True)] for axis in axes]
    return [{key: value for part in parts for key, value in part.items()} for parts in itertools.product(*along)]


def path_of(key: str) -> KeyPath:
    """Converts a dotted key to a path."""
    return tuple(key.split("."))


def _axis(entry: Any, where: str) -> Axis:
    if not isinstance(entry, Mapping) or not entry:
        raise ConfigError(f"{where}: received {received_value(entry)}, must be a mapping of keys to their values")
    wanted = f"must be a list of 1 to {_MOST_VALUES} values, or a range {{from: 0.01, to: 1, steps: 3, scale: log}}"
    values: dict[str, list[Any]] = {}
    for key, value in entry.items():
        values[key] = _range(value, f"{where}: {key}") if isinstance(value, Mapping) else value
        if not isinstance(values[key], list) or not 0 < len(values[key]) <= _MOST_VALUES:
            raise ConfigError(f"{where}: {key}: received {received_value(value)}, {wanted}")
        if not all(path_of(key)):
            raise ConfigError(
                f"{where}: received the key {received_value(key)}, must be a dotted path such as training.rounds"
            )
    lengths = {key: len(listed) for key, listed in values.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise ConfigError(f"{where}: {counts} values; keys of one axis change together, so they need the same number")
    together = list(zip(*values.values(), strict=True))
    twice = next((item for place, item in enumerate(together) if item in together[:place]), None)
    if twice is not None:
        value = received_value(twice[0] if len(twice) == 1 else list(twice))
        raise ConfigError(f"{where}: {', '.join(values)}: received {value} twice; give each value once")
    return Axis(tuple(values), tuple(map(tuple, values.values())))


def _choose_values(axes: Sequence[Axis], key: str, values: Sequence[Any], source: str) -> list[Axis]:
    """Restricts the axis of a key to some of its values; other values need an axis without further keys."""
    chosen = []
    for axis in axes:
        if key in axis.keys:
            column = axis.keys.index(key)
            rows = [row for row in zip(*axis.values, strict=True) if row[column] in values]
            if all(value in axis.values[column] for value in values):
                axis = Axis(axis.keys, tuple(zip(*rows, strict=True)))
            elif len(axis.keys) == 1:
                axis = _axis({key: with_absolute_paths(values, os.curdir, path_of(key))}, COMMAND_LINE)
            else:
                known = ", ".join(dict.fromkeys(map(shown, axis.values[column])))
                others = ", ".join(other for other in axis.keys if other != key)
                raise ConfigError(
                    f"{COMMAND_LINE}: {key}: received {', '.join(map(shown, values))}, must be some of {known}, "
                    f"because {others} change with it in {source}"
                )
        chosen.append(axis)
    return chosen


def _range(value: Mapping[str, Any], where: str) -> list[Any]:
    for key in value:
        if key not in _RANGE:
            raise ConfigError(f"{where}: {received_value(key)}: unknown key of a range; {nearest_choices(key, _RANGE)}")
    for key in ("from", "to"):
        number = value.get(key)
        if number is None or not is_number(number) or not math.isfinite(number):
            raise ConfigError(f"{where}: {key}: received {received_value(number)}, must be a finite number")
    steps = value.get("steps")
    scale = value.get("scale", "linear")
    if type(steps) is not int or not 2 <= steps <= _MOST_VALUES:
        raise ConfigError(
            f"{where}: steps: received {received_value(steps)}, must be an integer from 2 to {_MOST_VALUES}"
        )
    if scale not in _SCALES:
        raise ConfigError(f"{where}: scale: received {received_value(scale)}; {nearest_choices(scale, _SCALES)}")
    low = value["from"]
    high = value["to"]
    if scale == "log" and min(low, high) <= 0:
        raise ConfigError(f"{where}: received from {low} to {high} with scale log, must be above 0")
    if low == high:
        raise ConfigError(f"{where}: received from {low} to {high}, must be two different numbers")
    shares = [place / (steps - 1) for place in range(1, steps - 1)]
    spaced = [low * (high / low) ** share if scale == "log" else low + (high - low) * share for share in shares]
    # Few digits, so that file names and tables show the exact value.
    digits = 3 if scale == "log" else 6
    rounded = [low, *(float(f"{number:.{digits}g}") for number in spaced), high]
    whole = isinstance(low, int) and isinstance(high, int) and all(float(number).is_integer() for number in rounded)
    return list(map(int if whole else float, rounded))


_LONGEST_LABEL = 100


class Point(NamedTuple):
    """One combination of the axes' values."""

    label: str  # also the name of its folder, for example clients=10,p=0.5
    values: dict[str, Any]  # by swept key
    config: Config


class Sweep(NamedTuple):
    """A sweep after reading and checking."""

    name: str
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]  # all combinations, in order
    text: str  # the whole sweep as YAML, with its base expanded

    @property
    def configs(self) -> dict[str, Config]:
        """The configurations of the points, by label."""
        return {point.label: point.config for point in self.points}

    @property
    def runs(self) -> int:
        """The number of runs."""
        return sum(len(point.config.methods) * len(point.config.seeds) for point in self.points)

    @property
    def values(self) -> dict[str, list[Any]]:
        """The values of the points, by swept key."""
        values: dict[str, list[Any]] = {}
        for key, value in (item for point in self.points for item in point.values.items()):
            values.setdefault(key, []).extend([value] if value not in values.get(key, ()) else [])
        return values

    def part(self, part: tuple[int, int] | None) -> "Sweep":
        """Returns every n-th point from the i-th on, for a part (i, n); all points for None."""
        return self if part is None else self._replace(points=self.points[part[0] - 1 :: part[1]])


def load_sweep(path: str | os.PathLike[str] | None, overrides: Sequence[str] = ()) -> Sweep:
    """Reads and checks a sweep: the axes of a configuration, and of the command line.

    Args:
        path: a configuration; its key `sweep`, if it has one, is a list of axes (see `read_axes`). None for the
            quickstart.
        overrides: changes for all points, as on the command line of `run`, and axes, `lr=0.01,0.1`. One of a key that
            the file sweeps takes the place of its axis there, or is a selection of that axis' values.

    Raises:
        ConfigError: the file or one of its points is invalid; one problem per line.
    """
    return plan_sweep(read_command(path, overrides))


def plan_sweep(command: Sheet) -> Sweep:
    """Checks a command as a sweep; raises the errors of `load_sweep`."""
    source = command.source
    sheet = command.stated
    if not command.is_sweep:
        raise ConfigError(
            f"{source}: lacks the key `sweep`, a list of axes such as [{{training.rounds: [10, 20]}}]: add it, or give "
            "axes as changes, such as rounds=10,20"
        )
    axes = read_axes(command.file_axes, source) if command.file_axes is not None else []
    changes = list(command.changes)
    name = sheet.get("name")
    if not axes and isinstance(name, str) and ("name",) not in dict(changes):
        changes.append((("name",), f"{name}-sweep"))  # runs of the configuration have its own name

    # Axes get full key paths, such as partition.alpha for alpha, by which reports identify conditions.
    whole = lambda path, value, data: ".".join(map(str, completed_path(path, value, data)))
    for place, axis in enumerate(axes):
        keys = zip(axis.keys, axis.values, strict=True)
        axes[place] = Axis(tuple(whole(path_of(key), values[0], sheet) for key, values in keys), axis.values)

    # The command line chooses values of the file's axes, adds axes, and changes other keys.
    swept = [key for axis in axes for key in axis.keys]
    placed = next((key for key in swept if key.startswith("methods.")), None)
    if placed is not None and any(given == ("methods",) for given, _ in changes):
        raise ConfigError(
            f"{COMMAND_LINE}: methods: {source} sweeps {placed}, a method by its place in the file's list, which must "
            "stay as it is: change the list and the axis in a copy of the file"
        )
    for given, value in list(changes):
        key = whole(given, value, sheet)
        if key in swept:
            changes.remove((given, value))
            axes = _choose_values(axes, key, [value], source)
        elif key.startswith(tuple(f"{longer}." for longer in swept)):
            raise ConfigError(f"{COMMAND_LINE}: {key}: is swept by {source} as a whole; change the axis there instead")
    merged, _ = with_changes(sheet, with_entries(changes, sheet), COMMAND_LINE)
    single_values = {whole(given, value, sheet): value for given, value in command.changes}
    added = []
    for given, values in command.line_axes.items():
        key = whole(path_of(given), values[0], merged)
        if key in single_values:
            value = shown(single_values[key])
            raise ConfigError(
                f"{COMMAND_LINE}: {key}: received the axis {','.join(map(shown, values))} and the value {value}; "
                "give one of them"
            )
        if key in swept:
            axes = _choose_values(axes, key, values, source)
        else:
            added.append(_axis({key: with_absolute_paths(values, os.curdir, path_of(key))}, COMMAND_LINE))
    axes += added
    for key, times in Counter(key for axis in axes for key in axis.keys).items():
        if times > 1:
            raise ConfigError(f"{source}: sweep: {key}: swept {times} times, maybe by other names; a key has one axis")
    _check_size(axes, source)

    labels = short_keys(axes)
    folder = os.path.dirname(source)
    points: dict[str, Point] = {}
    for values in combinations(axes):
        by_label = {short: values[key] for key, short in labels.items()}
        along = [(path_of(key), with_absolute_paths(value, folder, path_of(key))) for key, value in values.items()]
        try:
            config = build_config(merged, along, f"{source} ({in_words(by_label)})")
        except ConfigError as error:
            raise ConfigError(f"{error}{_advise_together(merged, added, values)}") from None
        if not points:  # values that are swept, and differ between the points, are no change of a paper's setting
            noted = with_paper_setting(config, command.paper, merged, along).paper
        if config.paper is not None and noted is not None and noted.setting:
            config = config.model_copy(update={"paper": config.paper.model_copy(update={"setting": noted.setting})})
        point = Point(point_label(by_label), values, config)
        if points.setdefault(point.label, point) is not point:
            raise ConfigError(f"{source}: sweep: two points are called {point.label}; make their values differ")
    _refuse_repeated_seeds(points.values(), source)
    plugins = {name: digest for point in points.values() for name, digest in point.config.plugins.items()}
    absolute = lambda key, values: with_absolute_paths(list(values), folder, path_of(key))
    columns = [zip(axis.keys, axis.values, strict=True) for axis in axes]
    swept = [{key: absolute(key, values) for key, values in column} for column in columns]
    data = {key: merged[key] for key in sorted(merged, key=lambda key: key == "methods")}
    if noted is not None and noted.setting:
        data["paper"] = {**data["paper"], "setting": noted.setting}
    text = dump_yaml({**data, **({"plugins": plugins} if plugins else {}), "sweep": swept})
    config = next(iter(points.values())).config
    return Sweep(config.name, tuple(axes), tuple(points.values()), text)


def in_words(values: Mapping[str, Any]) -> str:
    """Lists values with their keys: `clients=10,p=0.5`."""
    return ",".join(f"{key}={shown(value)}" for key, value in values.items())


def point_label(values: Mapping[str, Any]) -> str:
    """Returns the label of a point with these values, by short key; it is short and safe as the name of a folder."""
    label = in_words(values)
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "_", label)
    if name != label or len(name) > _LONGEST_LABEL:
        name = f"{name[:_LONGEST_LABEL]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
    return name


def _refuse_repeated_seeds(points: Iterable[Point], source: str) -> None:
    """Refuses points that differ in their lists of seeds alone and have a run in common; it would count twice."""
    first: dict[str, Point] = {}
    for point in points:
        setting = {key: value for key, value in point.values.items() if key not in SEED_LISTS}
        swept = ", ".join(key for key in SEED_LISTS if key in point.values)
        partitions = point.config.partition_seeds or [None] * len(point.config.seeds)
        for seed, partition in zip(point.config.seeds, partitions, strict=True) if swept else ():
            other = first.setdefault(repr((setting, seed, partition)), point)
            if other is not point:
                received = " and ".join(
                    ", ".join(shown(values[key]) for key in SEED_LISTS if key in values)
                    for values in (other.values, point.values)
                )
                raise ConfigError(
                    f"{source}: sweep: {swept}: received {received}, which both train seed {seed}; a number is a count "
                    "of seeds (2 means [0, 1]), and a run may occur once: write `seeds: [1, 2]` outside `sweep`, or "
                    "lists without common seeds, [[1], [2]], on the axis"
                )


def _advise_together(data: Mapping[str, Any], axes: Sequence[Axis], values: Mapping[str, Any]) -> str:
    """Advises one axis, in a line, if the invalid `values` would be valid with some axes' keys changing together."""
    if len(axes) < 2 or len({len(axis) for axis in axes}) > 1:
        return ""
    together = {key: list(listed) for axis in axes for key, listed in zip(axis.keys, axis.values, strict=True)}
    for place in range(len(axes[0])):
        changed = {**values, **{key: listed[place] for key, listed in together.items()}}
        try:
            build_config(data, [(path_of(key), value) for key, value in changed.items()], "")
        except ConfigError:
            return ""
    axis = ", ".join(f"{key}: [{', '.join(map(shown, listed))}]" for key, listed in together.items())
    return f"\n{COMMAND_LINE}: axes are combined; keys that change together are one axis in a file: sweep: [{{{axis}}}]"


def short_keys(axes: Sequence[Axis]) -> dict[str, str]:
    """Shortens each key to its shortest unique suffix, such as rounds for training.rounds; skips a paper's results."""
    keys = [key for axis in axes for key in axis.keys if path_of(key)[0] != "paper"]
    return dict(zip(keys, shortest_ends(keys), strict=True))


def shortest_ends(keys: Sequence[str]) -> list[str]:
    """Shortens each key to its shortest suffix that no other one has, or not at all."""

    def shortest(key: str) -> str:
        parts = key.split(".")
        ends = (".".join(parts[place:]) for place in range(len(parts) - 1, -1, -1))
        return next((end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1), key)

    return [shortest(key) for key in keys]


def shown(value: Any) -> str:
    """Formats a value of an axis on one line."""
    return repr(value) if isinstance(value, float) else dump_yaml(value).strip().removesuffix("...").strip()
