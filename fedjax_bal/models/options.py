"""The options of networks: declared once, in the signature of what builds a network."""

import difflib
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedjax_bal.validate import is_number, switch


class Allowed(NamedTuple):
    """What the value of an option may be; stands in the annotation of a builder's parameter, `Annotated[..., Allowed]`.

    Attributes:
        wanted: the rule in words, to complete "must be ...".
        read: gives the value as the network takes it; raises ValueError or TypeError for one that is not allowed.
    """

    wanted: str
    read: Callable[[Any], Any]


class Option(NamedTuple):
    """One option of a network.

    Attributes:
        default: its value where it is not given.
        allowed: what its value may be.
    """

    default: Any
    allowed: Allowed


def options_of(builder: Callable[..., Any]) -> dict[str, Option]:
    """The options that a builder offers: its parameters that are annotated with an `Allowed`, or with `bool`.

    Args:
        builder: `builder(convolve, **options)`, a function or a network's class.

    Returns:
        The options by name.

    Example:
        >>> def build(convolve, wide: bool = False): ...
        >>> options_of(build)["wide"].default, options_of(build)["wide"].allowed.wanted
        (False, 'true or false')
    """
    found = {}
    for name, parameter in inspect.signature(builder).parameters.items():
        known = (*getattr(parameter.annotation, "__metadata__", ()), _SWITCH if parameter.annotation is bool else None)
        allowed = next((item for item in known if isinstance(item, Allowed)), None)
        if allowed is not None:
            found[name] = Option(parameter.default, allowed)
    return found


def read_options(name: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given options as a network takes them.

    Args:
        name: the model, for messages.
        options: those that it has.
        given: what was received.

    Returns:
        The values of those that were given.

    Raises:
        ValueError: the model has no such option, or a value is not allowed.

    Example:
        >>> read_options("mlp", {"hidden": Option((64,), sizes())}, {"hidden": [32]})
        {'hidden': (32,)}
    """
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
    """Layers' widths, as a list or tuple.

    Example:
        >>> sizes().read([200, 100])
        (200, 100)
    """
    return Allowed("a list of one or more whole numbers of at least 1", _read_sizes)


def shares(count: int) -> Allowed:
    """Shares that dropout drops: one for all places where a network has it, or one for each.

    Args:
        count: how many places there are.

    Example:
        >>> shares(3).wanted, shares(3).read(0.1)
        ('a number in [0, 1), or a list of 3 of them', (0.1, 0.1, 0.1))
    """

    def read(value: Any) -> tuple[float, ...]:
        given = tuple(value) if isinstance(value, list | tuple) else (value,) * count
        if len(given) != count or not all(is_number(share) and 0 <= share < 1 for share in given):
            raise ValueError
        return tuple(map(float, given))

    return Allowed("a number in [0, 1)" + (f", or a list of {count} of them" if count > 1 else ""), read)


def _read_sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value or any(isinstance(units, bool) for units in value):
        raise ValueError
    units = tuple(map(operator.index, value))
    if min(units) < 1:
        raise ValueError
    return units


_SWITCH = Allowed("true or false", lambda value: switch("", value))
