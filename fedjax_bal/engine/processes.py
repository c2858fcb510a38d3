"""The processes that train one federation in step, joined by `jax.distributed`: what they tell each other.

Every process runs the same host code on the same numbers, and its devices do their part of every round. Decisions
that depend on the machine or on the moment must not differ between processes; they are made here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

T = TypeVar("T")


class ProcessGroup(NamedTuple):
    """The processes of a run, seen from one of them; all but `first` waits for all processes, in the same order.

    Attributes:
        index: this process's number, from 0.
        count: the number of processes.
    """

    index: int
    count: int

    @property
    def first(self) -> bool:
        """True on the process that reads and writes the run folder and shows progress."""
        return self.index == 0

    def share(self, value: Any) -> list[Any]:
        """Every process's value, in their order; it may be all that JSON can hold."""
        if self.count == 1:
            return [value]
        content = json.dumps(value).encode()
        lengths = np.ravel(multihost_utils.process_allgather(np.array([len(content)], np.int32)))
        # A power of two, as each length is a program of its own.
        room = np.zeros(1 << int(max(lengths) - 1).bit_length(), np.uint8)
        room[: len(content)] = np.frombuffer(content, np.uint8)
        rows = multihost_utils.process_allgather(room)
        return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]

    def any(self, flag: bool) -> bool:
        """True if the flag is set on any process."""
        return any(self.share(flag))

    def least(self, number: int | None) -> int | None:
        """The smallest of the processes' numbers; None if any process has none."""
        numbers = self.share(number)
        return None if None in numbers else min(numbers)

    def agree(self, facts: Mapping[str, str]) -> None:
        """Refuses facts that differ between processes with a ValueError that names them."""
        lines = differing_facts(self.share(dict(facts)))
        if lines:
            raise ValueError(
                "the processes of a run must all have the same, but they differ in\n  " + "\n  ".join(lines[:8])
            )

    def from_first(self, make: Callable[[], T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T]) -> T:
        """The first process's value, on all processes; `pack` and `unpack` turn it into bytes and back."""
        if not self.first:
            return unpack(self._broadcast(b""))
        value = make()
        if self.count > 1:
            self._broadcast(pack(value))
        return value

    def _broadcast(self, packed: bytes) -> bytes:
        """The first process's bytes, on all processes."""
        row = np.zeros(self.share(len(packed))[0], np.uint8)
        if self.first:
            row[:] = np.frombuffer(packed, np.uint8)
        return np.asarray(multihost_utils.broadcast_one_to_all(row)).tobytes() if len(row) else b""


def processes() -> ProcessGroup:
    """The processes of this run; without `jax.distributed` this one alone, and jax isn't started for it."""
    if not jax.distributed.is_initialized():
        return ProcessGroup(0, 1)
    return ProcessGroup(jax.process_index(), jax.process_count())


def differing_facts(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each fact that differs between processes: the first value, and the first other one."""
    lines = []
    for name in sorted(set().union(*facts)):
        values = [of_process.get(name, "nothing") for of_process in facts]
        other = next((index for index, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            lines.append(f"{name}: {values[0]} on process 0, {values[other]} on process {other}")
    return lines
