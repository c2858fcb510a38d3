"""Checks on arguments; each message names the value received and the values allowed."""

import difflib
import math
from collections.abc import Iterable
from typing import Any

LARGEST = 3.4028235e38
"""The largest finite number in 32 bits, the precision of the devices."""


def finite_number(name: str, value: Any, low: float = 0.0, high: float = math.inf) -> float:
    """Returns a finite number of a closed range as a float; raises `ValueError` otherwise.

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
    """Returns an integer of at least `low`; raises `ValueError` otherwise, also for True and for 2.0.

    Example:
        >>> whole_number("rounds", 0)
        Traceback (most recent call last):
        ValueError: rounds: received 0, must be a whole number of at least 1
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name}: received {value!r}, must be a whole number of at least {low}")
    return value


def one_of(name: str, value: Any, allowed: Iterable[str]) -> str:
    """Returns one of the allowed names; raises `ValueError`, which suggests the nearest, for any other value.

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
    """Returns True or False; raises `ValueError` for anything else, also for 0 and 1."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: received {value!r}, must be true or false")
    return value


def is_number(value: Any) -> bool:
    """Tells whether a value is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
