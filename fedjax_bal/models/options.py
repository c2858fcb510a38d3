"""Options of networks, declared once: in the signature of a network's builder."""

import difflib
import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedjax_bal.validate import is_number


class Allowed(NamedTuple):
    """The allowed values of an option, for the annotation of a builder's parameter, `Annotated[..., Allowed]`.

    Attributes:
        wanted: the rule in words, to complete "must be ...".
        read: converts a value to what the network takes; raises ValueError or TypeError if it is not allowed.
    """

    wanted: str
    read: Callable[[Any], Any]


class Option(NamedTuple):
    """One option of a network: its default, `...` for none, and its allowed values."""

    default: Any
    allowed: Allowed


# What a builder is given, and flax's own fields.
_NO_OPTIONS = ("num_classes", "input_shape", "convolution", "convolve", "reductions", "parent", "name")


@functools.cache
def options_of(builder: Callable[..., Any]) -> dict[str, Option]:
    """Options of a builder, by name: its parameters whose annotations say which values are allowed."""
    options = {}
    for name, parameter in inspect.signature(builder).parameters.items():
        if name in _NO_OPTIONS:
            continue
        known = getattr(parameter.annotation, "__metadata__", ())
        allowed = next((item for item in known if isinstance(item, Allowed)), None) or _by_annotation(name, parameter)
        if allowed is not None:
            options[name] = Option(... if parameter.default is parameter.empty else parameter.default, allowed)
    return options


def _by_annotation(name: str, parameter: inspect.Parameter) -> Allowed | None:
    from fedjax_bal.annotations import check, checkable, wanted  # with pydantic

    kind = checkable(parameter.annotation, parameter.default)
    return None if kind is None else Allowed(wanted(kind), functools.partial(check, name, kind))


def read_options(name: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the given options of a model to what its network takes; raises `ValueError` for wrong ones."""
    for key in sorted(set(given) - set(options)):
        near = difflib.get_close_matches(key, options, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"model {name!r} has no option {key!r}; its options: {', '.join(options) or 'none'}{hint}")
    values = {}
    for key, value in given.items():
        try:
            values[key] = options[key].allowed.read(value)
        except (TypeError, ValueError):
            wanted = options[key].allowed.wanted
            raise ValueError(f"models.build({name!r}): {key}={value!r} must be {wanted}.") from None
    return values


def sizes() -> Allowed:
    """Widths of layers, as a list or tuple."""
    return Allowed("a list of one or more integers of at least 1", _read_sizes)


def shares(count: int) -> Allowed:
    """Shares dropped by dropout: one for all `count` places of a network, or one for each."""

    def read(value: Any) -> tuple[float, ...]:
        given = tuple(value) if isinstance(value, list | tuple) else (value,) * count
        if len(given) != count or not all(is_number(share) and 0 <= share < 1 for share in given):
            raise ValueError
        return tuple(map(float, given))

    return Allowed("a number in [0, 1)" + (f", or a list of {count} of them" if count > 1 else ""), read)


def choice(*names: str) -> Allowed:
    """One of some names."""

    def read(value: Any) -> str:
        if value not in names:
            raise ValueError
        return value

    return Allowed(" or ".join(names), read)


def _read_sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value or any(isinstance(units, bool) for units in value):
        raise ValueError
    units = tuple(map(operator.index, value))
    if min(units) < 1:
        raise ValueError
    return units
