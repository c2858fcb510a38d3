"""Checks on what a caller hands in, each with a message that says what was received and what is allowed."""

import dataclasses
import difflib
import math
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

LARGEST = 3.4028235e38
"""The largest number of 32 bits: beyond it nothing is finite on a device."""


def finite_number(name: str, value: Any, low: float = 0.0, high: float = math.inf) -> float:
    """A finite number in a closed range.

    Args:
        name: what it is, for the message.
        value: what was received.
        low: the smallest allowed value.
        high: the largest allowed value.

    Returns:
        The value as a float.

    Raises:
        ValueError: it is something else.

    Example:
        >>> finite_number("mu", float("nan"))
        Traceback (most recent call last):
        ValueError: mu: received nan, must be a finite number of at least 0
    """
    if not is_number(value) or not abs(value) <= LARGEST or not low <= value <= high:
        at_least = f" of at least {low:g}" if math.isfinite(low) else ""
        bound = f" from {low:g} to {high:g}" if math.isfinite(high) else at_least
        raise ValueError(f"{name}: received {value!r}, must be a finite number{bound}")
    return float(value)


def whole_number(name: str, value: Any, low: int = 1) -> int:
    """An integer that is not too small.

    Args:
        name: what it is, for the message.
        value: what was received.
        low: the smallest allowed value.

    Returns:
        The value.

    Raises:
        ValueError: it is something else; True and 2.0 are.

    Example:
        >>> whole_number("rounds", 0)
        Traceback (most recent call last):
        ValueError: rounds: received 0, must be a whole number of at least 1
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name}: received {value!r}, must be a whole number of at least {low}")
    return value


def one_of(name: str, value: Any, allowed: Iterable[str]) -> str:
    """A name from a list.

    Args:
        name: what it is, for the message.
        value: what was received.
        allowed: the names.

    Returns:
        The value.

    Raises:
        ValueError: it is none of them; the message has the nearest.

    Example:
        >>> one_of("strategy", "vmpa", ["map", "vmap"])
        Traceback (most recent call last):
        ValueError: strategy: received 'vmpa'; allowed: map, vmap; did you mean 'vmap'?
    """
    names = list(allowed)
    if value not in names:
        near = difflib.get_close_matches(str(value), names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name}: received {value!r}; allowed: {', '.join(names)}{hint}")
    return value


def switch(name: str, value: Any) -> bool:
    """True or False, nothing like them.

    Args:
        name: what it is, for the message.
        value: what was received.

    Returns:
        The value.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name}: received {value!r}, must be true or false")
    return value


def is_number(value: Any) -> bool:
    """Whether a value is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class AtLeast(NamedTuple):
    """The smallest number that an option takes, in its annotation: `Annotated[int, AtLeast(1)]`."""

    low: float


class AllowedValues(NamedTuple):
    """The values that an option takes: numbers of a type (None for no numbers) from a smallest one on, words, None."""

    number: type | None
    low: float
    words: tuple[str, ...]
    optional: bool


def allowed_values(annotation: Any) -> AllowedValues | None:
    """Reads an annotation made of bool, int or float, `AtLeast`, `Literal` and None; None for any other one.

    Example:
        >>> allowed_values(Annotated[int, AtLeast(1)] | Literal["auto"])
        AllowedValues(number=<class 'int'>, low=1, words=('auto',), optional=False)
    """
    union = get_origin(annotation) in (Union, UnionType)
    members = set(get_args(annotation) if union else [annotation])
    literals = {member for member in members if get_origin(member) is Literal}
    words = tuple(word for literal in literals for word in get_args(literal))
    numbers = members - literals - {NoneType}
    number = numbers.pop() if numbers else None
    base, *bounds = get_args(number) if get_origin(number) is Annotated else (number,)
    if numbers or base not in (None, bool, int, float):
        return None
    return AllowedValues(base, bounds[0].low if bounds else -math.inf, words, NoneType in members)


def check_fields(options: Any, prefix: str = "") -> None:
    """Refuses a dataclass with a value that the annotation of its field doesn't allow; messages begin with the prefix.

    Raises:
        ValueError: a value that is not allowed.
    """
    for field in dataclasses.fields(options):
        allowed, value, name = allowed_values(field.type), getattr(options, field.name), prefix + field.name
        if (
            allowed is None
            or (value is None and allowed.optional)
            or (isinstance(value, str) and value in allowed.words)
        ):
            continue
        if allowed.number is None:
            one_of(name, value, allowed.words)
        elif allowed.number is bool:
            switch(name, value)
        elif allowed.number is int:
            whole_number(name, value, int(allowed.low))
        else:
            finite_number(name, value, allowed.low)
