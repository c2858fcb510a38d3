"""Which runs of a sweep are trained together."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.engine.memory import free_bytes, size_in_bytes
from fedjax_bal.engine.simulation import Simulation
from fedjax_bal.engine.stack import kind

_COPIES = 4  # of a stack's states: before, after, what chains work on, and what their sums are


class Task(NamedTuple):
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


class Group(NamedTuple):
    """Runs that one program trains together.

    Attributes:
        program: a number; groups with the same one differ in how many runs they have at most.
        tasks: the runs.
    """

    program: int
    tasks: tuple[Task, ...]

    @property
    def rounds(self) -> int:
        """Rounds left to do, of all its runs."""
        return sum(task.simulation.rounds - task.round for task in self.tasks)

    @property
    def state_bytes(self) -> int:
        """What the states of all its runs take on the devices."""
        return len(self.tasks) * size_in_bytes(self.tasks[0].simulation.state_shapes().state)


def group(tasks: Sequence[Task], most: int | None = None) -> list[Group]:
    """Puts runs together that can be one program, as many as fit into memory.

    Args:
        tasks: the runs.
        most: how many at most; None for as many as fit.

    Returns:
        The groups, in the order of their first runs.
    """
    alike: dict[Any, list[Task]] = {}
    for task in tasks:
        alike.setdefault(_key(task), []).append(task)
    groups = []
    for number, own in enumerate(alike.values()):
        size = min(fitting(own[0].simulation), most or len(own))
        # Of about equal sizes, so that the last one isn't left with a single run.
        pieces = np.array_split(np.arange(len(own)), -(-len(own) // size))
        groups += [Group(number, tuple(own[place] for place in piece)) for piece in pieces]
    return groups


def fitting(simulation: Simulation) -> int:
    """How many runs like this one fit into half of the memory that is free, at least 1."""
    free = free_bytes(simulation.setting.layout)
    state = max(size_in_bytes(simulation.state_shapes().state), 1)
    return max(1, free // (2 * _COPIES * state)) if free is not None else 10_000


def _key(task: Task) -> Hashable:
    if task.simulation.keeps_memory_on_host:
        return task.point, task.run  # its memory is put together anew for each dispatch
    return kind(task.simulation), task.round


def steps_left(task: Task) -> float:
    """Local steps that a run has left, at the mean of its clients."""
    simulation = task.simulation
    steps = simulation.steps_of_clients
    per_round = simulation.selector.groups * simulation.selector.links * simulation.selector.passes * steps.mean()
    return float(per_round * (simulation.rounds - task.round))


def data_bytes(simulations: Sequence[Simulation]) -> int:
    """What images, partitions and test sets take on the devices, each counted once."""
    arrays = [simulation.on_device for simulation in simulations]
    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(arrays)}
    return size_in_bytes(list(leaves.values()))
