"""Which runs of a sweep are trained together."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.engine.host import Simulation, free_bytes, stacking_key
from fedjax_bal.types import size_in_bytes

_COPIES = 4  # of a stack's states: before, after, what chains work on, and what their sums are


class SweepRun(NamedTuple):
    """A run that has something left to do.

    Attributes:
        point: its point's number.
        run: its method's number and its seed.
        simulation: its simulation.
        round: rounds done.
    """

    point: int
    run: tuple[int, int]
    simulation: Simulation
    round: int


class SweepBatch(NamedTuple):
    """Runs that one program trains together.

    Attributes:
        program: a number; groups with the same one differ in how many runs they have at most.
        tasks: the runs.
    """

    program: int
    tasks: tuple[SweepRun, ...]

    @property
    def rounds(self) -> int:
        """Rounds left to do, of all its runs."""
        return sum(task.simulation.rounds - task.round for task in self.tasks)

    @property
    def state_bytes(self) -> int:
        """What the states of all its runs take on the devices."""
        return len(self.tasks) * size_in_bytes(self.tasks[0].simulation.state_shapes().state)


def batch_runs(tasks: Sequence[SweepRun], most: int | None = None, places: int = 1) -> list[SweepBatch]:
    """Puts runs together that can be one program, as many as fit into memory.

    Args:
        tasks: the runs.
        most: how many at most; None for as many as fit, and leave no place without a group.
        places: how many groups are trained at a time.

    Returns:
        The groups, in the order of their first runs.
    """
    alike: dict[Any, list[SweepRun]] = {}
    for task in tasks:
        alike.setdefault(_key(task), []).append(task)
    sizes = [min(most_runs_together(own[0].simulation), most or len(own)) for own in alike.values()]
    if most is None:
        sizes = _for_all(places, [len(own) for own in alike.values()], sizes)
    groups = []
    for number, (own, size) in enumerate(zip(alike.values(), sizes, strict=True)):
        # Of about equal sizes, so that the last one isn't left with a single run.
        pieces = np.array_split(np.arange(len(own)), -(-len(own) // size))
        groups += [SweepBatch(number, tuple(own[place] for place in piece)) for piece in pieces]
    return groups


def _for_all(places: int, runs: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The largest sizes of groups with which no place is left without one, or else single runs.

    Example:
        >>> _for_all(3, [20], [20]), _for_all(4, [20, 2], [20, 2]), _for_all(9, [2], [2])
        ([9], [9, 2], [1])
    """
    for largest in range(max(sizes, default=1), 1, -1):
        capped = [min(size, largest) for size in sizes]
        if sum(-(-count // size) for count, size in zip(runs, capped, strict=True)) >= places:
            return capped
    return [1 for _ in sizes]


def most_runs_together(simulation: Simulation) -> int:
    """How many runs like this one fit into half of the memory that is free, at least 1."""
    free = free_bytes(simulation.setting.layout)
    state = max(size_in_bytes(simulation.state_shapes().state), 1)
    return max(1, free // (2 * _COPIES * state)) if free is not None else 10_000


def _key(task: SweepRun) -> Hashable:
    if task.simulation.keeps_memory_on_host:
        return task.point, task.run  # its memory is put together anew for each dispatch
    return stacking_key(task.simulation), task.round


def steps_left(task: SweepRun) -> float:
    """Local steps that a run has left, at the mean of its clients."""
    simulation = task.simulation
    steps = simulation.steps_of_clients
    per_round = (
        simulation.selector.chains * simulation.selector.chain_length * simulation.selector.passes * steps.mean()
    )
    return float(per_round * (simulation.rounds - task.round))


def data_bytes(simulations: Sequence[Simulation]) -> int:
    """What images, partitions and test sets take on the devices, each counted once."""
    arrays = [simulation.on_device for simulation in simulations]
    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(arrays)}
    return size_in_bytes(list(leaves.values()))
