"""Who takes part in a run: this process alone, or several that do the same in step.

Every process runs the same host code on the same numbers, and its devices do their part of every round. What must not
be decided by each for itself, because it depends on the machine or on the moment, is decided here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Processes(Protocol):
    """The processes of a run, seen from one of them."""

    @property
    def first(self) -> bool:
        """Whether this is the one that reads and writes the run folder, and shows what happens."""
        ...

    def share(self, text: str) -> list[str]:
        """What every process says, in their order; waits until all have said it."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether it is so on any process."""
        ...

    def least(self, number: int | None) -> int | None:
        """The least of the processes' numbers; None where any of them has none."""
        ...

    def agree(self, facts: Mapping[str, str]) -> None:
        """Refuses facts that differ between processes with a ValueError that names them."""
        ...

    def from_first(self, make: Callable[[], T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T]) -> T:
        """What the first process makes, on all of them; `pack` and `unpack` say how it travels."""
        ...


class SingleProcess:
    """A single process: everything is as it says.

    Example:
        >>> SingleProcess().share("ready"), SingleProcess().least(3), SingleProcess().any(False)
        (['ready'], 3, False)
    """

    first = True

    def share(self, text: str) -> list[str]:
        """Its own word."""
        return [text]

    def any(self, flag: bool) -> bool:
        """The flag."""
        return flag

    def least(self, number: int | None) -> int | None:
        """The number."""
        return number

    def agree(self, facts: Mapping[str, str]) -> None:
        """Nothing to compare with."""

    def from_first(self, make: Callable[[], T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T]) -> T:
        """What it makes."""
        return make()


_HERE: list[Processes] = [
    SingleProcess()
]  # as jax has it too: a process takes part in one group at most, until it ends


def processes() -> Processes:
    """Those that take part in this run."""
    return _HERE[0]


def take_part(group: Processes) -> None:
    """Makes this process one of several.

    Args:
        group: all of them, seen from this one.
    """
    _HERE[0] = group


def differing_devices(facts: list[dict[str, Any]]) -> list[str]:
    """The facts that are not the same for all, in words.

    Args:
        facts: of each process, by name.

    Returns:
        A line for each that differs, with the first process's value and that of the first one that has another.

    Example:
        >>> differing_devices([{"jax": "0.10.2"}, {"jax": "0.10.2"}, {"jax": "0.11.0"}])
        ['jax: 0.10.2 on process 0, 0.11.0 on process 2']
    """
    lines = []
    for name in sorted(set().union(*facts)):
        values = [own.get(name, "nothing") for own in facts]
        other = next((index for index, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            lines.append(f"{name}: {values[0]} on process 0, {values[other]} on process {other}")
    return lines
