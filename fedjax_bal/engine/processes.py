"""Agreement between the processes of a run, which `jax.distributed` joins.

Every process runs the same host code on the same numbers, and its devices do their share of every round. Decisions that
depend on the machine or on timing must not differ between processes, so they are made here.
"""

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

T = TypeVar("T")


class ProcessGroup(NamedTuple):
    """The processes of a run, as seen from one of them.

    Every method waits for the other processes, so all processes must call the same methods in the same order.

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
        """Returns the values of all processes, by index; a value must be representable in JSON."""
        if self.count == 1:
            return [value]
        content = json.dumps(value).encode()
        lengths = np.ravel(multihost_utils.process_allgather(np.array([len(content)], np.int32)))
        # An all-gather needs one shape on all processes, so the lengths are exchanged first. They are rounded up to a
        # power of two, because jax compiles a program for every length.
        room = np.zeros(1 << int(max(lengths) - 1).bit_length(), np.uint8)
        room[: len(content)] = np.frombuffer(content, np.uint8)
        rows = multihost_utils.process_allgather(room)
        return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]

    def any(self, flag: bool) -> bool:
        """Returns whether the flag is set on any process."""
        return any(self.share(flag))

    def least(self, number: int | None) -> int | None:
        """Returns the smallest of the processes' numbers, or None if a process has none."""
        numbers = self.share(number)
        return None if None in numbers else min(numbers)

    def agree(self, facts: Mapping[str, str]) -> None:
        """Raises a ValueError that names the facts that differ between processes, if there are such facts."""
        lines = differing_facts(self.share(dict(facts)))
        if lines:
            raise ValueError(
                "the processes of a run must all have the same, but they differ in\n  " + "\n  ".join(lines[:8])
            )

    def from_first(self, make: Callable[[], T]) -> T:
        """Returns the first process's value on all processes; pickled, because a run's processes trust each other."""
        if self.count == 1:
            return make()
        packed = pickle.dumps(make()) if self.first else b""
        row = np.zeros(self.share(len(packed))[0], np.uint8)
        if self.first:
            row[:] = np.frombuffer(packed, np.uint8)
        return pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(row)).tobytes())


def processes() -> ProcessGroup:
    """Returns the processes of this run; without `jax.distributed`, this process alone, without starting jax."""
    if not jax.distributed.is_initialized():
        return ProcessGroup(0, 1)
    return ProcessGroup(jax.process_index(), jax.process_count())


def differing_facts(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describes each fact that differs between processes: process 0's value, and the first value that differs."""
    lines = []
    for name in sorted(set().union(*facts)):
        values = [of_process.get(name, "nothing") for of_process in facts]
        other = next((index for index, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            lines.append(f"{name}: {values[0]} on process 0, {values[other]} on process {other}")
    return lines
