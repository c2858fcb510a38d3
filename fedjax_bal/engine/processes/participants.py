"""The participants of a run: this process alone, or several in step.

Every process runs the same host code on the same numbers, and its devices do their part of every round. Decisions
that depend on the machine or on the moment must not differ between processes; they are made here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Processes(Protocol):
    """The processes of a run, seen from one of them."""

    @property
    def first(self) -> bool:
        """Whether this process reads and writes the run folder, and shows progress."""
        ...

    def share(self, text: str) -> list[str]:
        """Every process's text, in their order; waits for all of them."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        ...

    def least(self, number: int | None) -> int | None:
        """The least of the processes' numbers; None if any of them has none."""
        ...

    def agree(self, facts: Mapping[str, str]) -> None:
        """Refuses facts that differ between processes with a ValueError that names them."""
        ...

    def from_first(self, make: Callable[[], T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T]) -> T:
        """The first process's value, on all of them; `pack` and `unpack` turn it into bytes and back."""
        ...


class SingleProcess:
    """A run of one process.

    Example:
        >>> SingleProcess().share("ready"), SingleProcess().least(3), SingleProcess().any(False)
        (['ready'], 3, False)
    """

    first = True

    def share(self, text: str) -> list[str]:
        """The text alone."""
        return [text]

    def any(self, flag: bool) -> bool:
        """The flag itself."""
        return flag

    def least(self, number: int | None) -> int | None:
        """The number itself."""
        return number

    def agree(self, facts: Mapping[str, str]) -> None:
        """Accepts any facts."""

    def from_first(self, make: Callable[[], T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T]) -> T:
        """The value that `make` returns."""
        return make()


# As in jax itself: a process joins one group at most, until it ends.
_HERE: list[Processes] = [SingleProcess()]


def processes() -> Processes:
    """The processes of this run."""
    return _HERE[0]


def take_part(group: Processes) -> None:
    """Makes this process one of a group, seen from this process."""
    _HERE[0] = group


def differing_devices(facts: list[dict[str, Any]]) -> list[str]:
    """One line for each fact that differs between processes: the first value, and the first other one.

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
