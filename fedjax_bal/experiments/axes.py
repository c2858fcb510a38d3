"""The axes of a sweep: the swept keys, their values, and all combinations."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_bal.config import ConfigError, KeyPath, nearest_choices, received_value
from fedjax_bal.validate import is_number

MOST_POINTS = 10_000
_MOST_VALUES = 1000
_RANGE = ("from", "to", "steps", "scale")
_SCALES = ("linear", "log")


class Axis(NamedTuple):
    """Keys that change together, and each key's values, equally many."""

    keys: tuple[str, ...]  # dotted paths of a configuration
    values: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.values[0])


def read_axes(entries: Any, source: str) -> list[Axis]:
    """Reads the list of axes below `sweep`, a list of mappings.

    A mapping of several keys is one axis along which they change together. The values of a key are a list, or a range
    `{from: 0.01, to: 1, steps: 3, scale: log}`, whose ends belong to it. `source`, the file's name, is for messages.

    Raises:
        ConfigError: anything else; names the place, the value received and the rule.
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
    points = math.prod(map(len, axes))
    if points > MOST_POINTS:
        sizes = " x ".join(str(len(axis)) for axis in axes)
        raise ConfigError(f"{source}: sweep: {sizes} = {points} points; at most {MOST_POINTS} are allowed")
    return axes


def combinations(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """All combinations of the axes, the last axis changing fastest, each with the value of every key."""
    along = [[dict(zip(axis.keys, values, strict=True)) for values in zip(*axis.values, strict=True)] for axis in axes]
    return [{key: value for part in parts for key, value in part.items()} for parts in itertools.product(*along)]


def path_of(key: str) -> KeyPath:
    """A dotted key as a path."""
    return tuple(key.split("."))


def _axis(entry: Any, where: str) -> Axis:
    if not isinstance(entry, Mapping) or not entry:
        raise ConfigError(f"{where}: received {received_value(entry)}, must be a mapping of keys to their values")
    values = {key: _values(value, f"{where}: {key}") for key, value in entry.items()}
    for key in values:
        if not all(path_of(key)):
            raise ConfigError(
                f"{where}: received the key {received_value(key)}, must be a dotted path such as training.rounds"
            )
    lengths = {key: len(own) for key, own in values.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise ConfigError(f"{where}: {counts} values; keys of one axis change together and need equally many")
    together = list(zip(*values.values(), strict=True))
    twice = next((item for place, item in enumerate(together) if item in together[:place]), None)
    if twice is not None:
        value = received_value(twice[0] if len(twice) == 1 else list(twice))
        raise ConfigError(f"{where}: {', '.join(values)}: received {value} twice; give each value once")
    return Axis(tuple(values), tuple(map(tuple, values.values())))


def _values(value: Any, where: str) -> list[Any]:
    if isinstance(value, Mapping):
        return _range(value, where)
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_VALUES:
        wanted = f"must be a list of 1 to {_MOST_VALUES} values, or a range {{from: 0.01, to: 1, steps: 3, scale: log}}"
        raise ConfigError(f"{where}: received {received_value(value)}, {wanted}")
    return value


def _range(value: Mapping[str, Any], where: str) -> list[Any]:
    for key in value:
        if key not in _RANGE:
            raise ConfigError(f"{where}: {received_value(key)}: unknown key of a range; {nearest_choices(key, _RANGE)}")
    for key in ("from", "to"):
        number = value.get(key)
        if number is None or not is_number(number) or not math.isfinite(number):
            raise ConfigError(f"{where}: {key}: received {received_value(number)}, must be a finite number")
    steps, scale = value.get("steps"), value.get("scale", "linear")
    if type(steps) is not int or not 2 <= steps <= _MOST_VALUES:
        raise ConfigError(
            f"{where}: steps: received {received_value(steps)}, must be an integer from 2 to {_MOST_VALUES}"
        )
    if scale not in _SCALES:
        raise ConfigError(f"{where}: scale: received {received_value(scale)}; {nearest_choices(scale, _SCALES)}")
    low, high = value["from"], value["to"]
    if scale == "log" and min(low, high) <= 0:
        raise ConfigError(f"{where}: received from {low} to {high} with scale log, must be above 0")
    if low == high:
        raise ConfigError(f"{where}: received from {low} to {high}, must be two different numbers")
    return _spaced(low, high, steps, scale)


def _spaced(low: float, high: float, steps: int, scale: str) -> list[Any]:
    shares = [place / (steps - 1) for place in range(steps)]
    log = scale == "log"
    spaced = [low * (high / low) ** share if log else low + (high - low) * share for share in shares]
    # Six digits, so that a file name and a table show the value that is used.
    rounded = [low, *(float(f"{number:.6g}") for number in spaced[1:-1]), high]
    whole = isinstance(low, int) and isinstance(high, int) and all(float(number).is_integer() for number in rounded)
    return list(map(int if whole else float, rounded))
