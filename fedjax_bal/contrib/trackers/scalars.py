"""The numbers of a line of metrics, each under a name of its own."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedjax_bal.validate import is_number

_IDENTITY = ("method", "seed", "round")


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a line of `metrics.jsonl` by name, those of a list by name and position.

    The line's method, seed and round, and values that are not numbers, are left out.

    Example:
        >>> scalars({"method": "fedavg", "seed": 0, "round": 4, "test_accuracy": 0.5, "per_class_accuracy": [1, None]})
        {'test_accuracy': 0.5, 'per_class_accuracy/0': 1.0}
    """
    named = ((name, value) for name, value in line.items() if name not in _IDENTITY)
    return {name: float(value) for name, value in _leaves(named) if is_number(value)}


def _leaves(items: Any) -> Iterator[tuple[str, Any]]:
    for name, value in items:
        if isinstance(value, Mapping):
            yield from _leaves((f"{name}/{key}", below) for key, below in value.items())
        elif isinstance(value, list | tuple):
            yield from _leaves((f"{name}/{position}", below) for position, below in enumerate(value))
        else:
            yield name, value
