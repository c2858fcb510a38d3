"""Groups the runs of a sweep into batches that are trained together."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.engine.host import Simulation, free_bytes, stacking_key
from fedjax_bal.types import size_in_bytes

_COPIES = 4  # of a stack's states: before, after, in the chains, and in their sums


class SweepRun(NamedTuple):
    """A run with rounds left to do."""

    point: int  # its point's number
    run: tuple[int, int]  # its method's number and its seed
    simulation: Simulation
    round: int  # rounds done


class SweepBatch(NamedTuple):
    """Runs that one program trains together."""

    program: int  # its number; batches with the same one differ at most in their number of runs
    tasks: tuple[SweepRun, ...]

    @property
    def state_bytes(self) -> int:
        """Bytes that the states of all its runs take on the devices."""
        return len(self.tasks) * size_in_bytes(self.tasks[0].simulation.state_shapes().state)


def batch_runs(tasks: Sequence[SweepRun], most: int | None = None, places: int = 1) -> list[SweepBatch]:
    """Groups runs with equal stacking keys into batches of at most `most`, in the order of their first runs.

    None for `most` stands for as many as fit into memory and leave none of the `places`, where batches are trained at a
    time, without a batch.
    """
    alike: dict[Any, list[SweepRun]] = {}
    for task in tasks:
        alike.setdefault(_key(task), []).append(task)
    sizes = [min(_most_in_memory(own[0].simulation), most or len(own)) for own in alike.values()]
    if most is None:
        sizes = _for_all(places, [len(own) for own in alike.values()], sizes)
    batches = []
    for number, (own, size) in enumerate(zip(alike.values(), sizes, strict=True)):
        # Batches of about equal sizes, so that the last one isn't left with a single run.
        pieces = np.array_split(np.arange(len(own)), -(-len(own) // size))
        batches += [SweepBatch(number, tuple(own[place] for place in piece)) for piece in pieces]
    return batches


def _for_all(places: int, runs: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The largest sizes of batches with which no place is left without one, or else single runs."""
    for largest in range(max(sizes, default=1), 1, -1):
        capped = [min(size, largest) for size in sizes]
        if sum(-(-count // size) for count, size in zip(runs, capped, strict=True)) >= places:
            return capped
    return [1 for _ in sizes]


def _most_in_memory(simulation: Simulation) -> int:
    """Number of runs like this one that fit into half of the free memory, at least 1."""
    free = free_bytes(simulation.setting.layout)
    state = max(size_in_bytes(simulation.state_shapes().state), 1)
    return max(1, free // (2 * _COPIES * state)) if free is not None else 10_000


def _key(task: SweepRun) -> Hashable:
    if task.simulation.keeps_memory_on_host:
        return task.point, task.run  # its clients' memory is gathered on the host for each dispatch
    return stacking_key(task.simulation), task.round
