"""The plan of a sweep: its points, each a configuration of its own."""

import contextlib
import hashlib
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.config import (
    Config,
    ConfigError,
    KeyPath,
    Layers,
    apply_changes,
    build_config,
    completed_path,
    dotted_path,
    dump_yaml,
    left_out,
    parse_overrides,
    read_layers,
    with_absolute_paths,
    with_paper_setting,
)
from fedjax_bal.experiments.axes import Axis, combinations, path_of, read_axes

_LONGEST_LABEL = 100


class Point(NamedTuple):
    """One combination of the axes' values."""

    label: str  # also the name of its folder: clients=10,p=0.5
    values: dict[str, Any]  # of every swept key
    config: Config


class Sweep(NamedTuple):
    """A sweep, read and checked."""

    name: str
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]  # all combinations, in order
    text: str  # the whole sweep as YAML, with its base written out
    left_out: tuple[str, ...] = ()  # of the base, as other data are chosen

    @property
    def configs(self) -> dict[str, Config]:
        """The configurations of the points by their labels."""
        return {point.label: point.config for point in self.points}


def load_sweep(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Sweep:
    """Reads and checks a sweep file.

    It holds the keys of a configuration and the key `sweep`, a list of axes (see `read_axes`). `overrides` are changes
    for all points, as on the command line of `run`.

    Raises:
        ConfigError: anything is wrong, in any of its points; one problem a line.
    """
    source, layers = os.fspath(path), read_layers(path)
    if "sweep" not in layers.merged:
        wanted = "a list of axes such as [{training.rounds: [10, 20]}]"
        single = f"for a single configuration use `fedjax-bal run {shlex.quote(source)}`"
        raise ConfigError(f"{source}: lacks the key `sweep`, {wanted}: add it; {single}")
    axes, stated = read_axes(layers.merged["sweep"], source), "sweep" in layers.stated
    layers = Layers(*({key: layer[key] for key in layer if key != "sweep"} for layer in layers))
    axes = _with_whole_keys(axes, layers.merged, source)
    changes = parse_overrides(overrides)
    _refuse_swept(changes, axes, layers.merged, source)
    stale = _stale_keys(layers, changes, axes if stated else (), source)  # or else the base's own
    sheet = layers.without(stale).merged
    labels, folder = short_keys(axes), os.path.dirname(source)
    first = [(path_of(key), value) for key, value in next(iter(combinations(axes))).items()]
    data = with_paper_setting(sheet, apply_changes(sheet, changes, "command line"), first)
    points = [_point(data, values, labels, folder, source) for values in combinations(axes)]
    _refuse_repeats(points, source)
    plugins = {name: digest for point in points for name, digest in point.config.plugins.items()}
    text = dump_yaml(
        {
            **data,
            **({"plugins": plugins} if plugins else {}),
            "sweep": [dict(zip(axis.keys, map(list, axis.values), strict=True)) for axis in axes],
        }
    )
    dropped = left_out(layers.base, stale, data, points[0].config)
    return Sweep(points[0].config.name, tuple(axes), tuple(points), text, tuple(dropped))


def _stale_keys(
    layers: Layers, changes: Sequence[tuple[KeyPath, Any]], axes: Sequence[Axis], source: str
) -> list[KeyPath]:
    """The keys of the base that make no sense for at least one point; all points go without, as they are compared."""
    chosen = [apply_changes(layers.merged, changes, "command line")]
    for axis in axes:
        for values in zip(*axis.values, strict=True):
            own = [(path_of(key), value) for key, value in zip(axis.keys, values, strict=True)]
            with contextlib.suppress(ConfigError):  # raised again, with its place, when the point is made
                chosen.append(apply_changes(chosen[0], own, source))
    return list(dict.fromkeys(path for data in chosen for path in layers.stale(data)))


def _with_whole_keys(axes: Sequence[Axis], data: Mapping[str, Any], source: str) -> list[Axis]:
    """Axes with the whole paths of their keys, by which a report knows conditions: partition.alpha for alpha."""
    whole = [tuple(".".join(map(str, completed_path(path_of(key), None, data))) for key in axis.keys) for axis in axes]
    for key, times in Counter(key for keys in whole for key in keys).items():
        if times > 1:
            raise ConfigError(f"{source}: sweep: {key}: swept {times} times, by other names too; a key has one axis")
    return [Axis(keys, axis.values) for axis, keys in zip(axes, whole, strict=True)]


def _refuse_swept(
    changes: Sequence[tuple[KeyPath, Any]], axes: Sequence[Axis], data: Mapping[str, Any], source: str
) -> None:
    swept = [path_of(key) for axis in axes for key in axis.keys]
    for given, value in changes:
        path = completed_path(given, value, data)
        if any(path[: len(key)] == key for key in swept):
            raise ConfigError(
                f"command line: {dotted_path(given)}: is swept by {source}; change the axis there instead"
            )


def _refuse_repeats(points: Sequence[Point], source: str) -> None:
    places: dict[str, int] = {}
    for place, point in enumerate(points):
        if places.setdefault(point.label, place) != place:
            raise ConfigError(f"{source}: sweep: two points are called {point.label}; make their values differ")


def _point(
    data: Mapping[str, Any], values: dict[str, Any], labels: Mapping[str, str], folder: str, source: str
) -> Point:
    label = ",".join(f"{short}={shown(values[key])}" for key, short in labels.items())
    own = [(path_of(key), with_absolute_paths(value, folder, path_of(key))) for key, value in values.items()]
    config = build_config(data, own, f"{source} ({label})")
    return Point(_file_name(label), values, config)


def short_keys(axes: Sequence[Axis]) -> dict[str, str]:
    """The shortest end of each key that no other key has: rounds for training.rounds; none for a paper's results."""
    keys = [key for axis in axes for key in axis.keys if path_of(key)[0] != "paper"]

    def shortest(key: str) -> str:
        parts = key.split(".")
        ends = (".".join(parts[place:]) for place in range(len(parts) - 1, -1, -1))
        return next((end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1), key)

    return {key: shortest(key) for key in keys}


def shown(value: Any) -> str:
    """A value of an axis, in one line."""
    return repr(value) if isinstance(value, float) else dump_yaml(value).strip().removesuffix("...").strip()


def _file_name(label: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._=,+-]+", "_", label)
    if plain == label and len(plain) <= _LONGEST_LABEL:
        return plain
    return f"{plain[:_LONGEST_LABEL]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
