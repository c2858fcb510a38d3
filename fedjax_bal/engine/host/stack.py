"""Stacks of runs that differ only in numbers: one compiled program trains all of them.

Each run has its own snapshot on the host.
"""

import abc
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.engine.device import DispatchPlan, Layout, Setting, State, stack_federations
from fedjax_bal.engine.host.assignment import StepCounts, assign
from fedjax_bal.engine.host.executable import Program, compile_dispatch, compile_to_fit
from fedjax_bal.engine.host.memory import program_bytes
from fedjax_bal.engine.host.placement import replicate
from fedjax_bal.engine.host.planner import PlannedDispatch
from fedjax_bal.engine.host.simulation import DispatchResult, Simulation, Snapshot
from fedjax_bal.engine.host.strategy import lay_out, most_at_a_time
from fedjax_bal.errors import DivergenceError
from fedjax_bal.types import PyTree, size_in_bytes


class Member(NamedTuple):
    """One run of a stack."""

    simulation: Simulation
    seed: int


class StackingKey(NamedTuple):
    """Everything that two runs must have in common for one program to train both.

    They share a program if tracing it gives the same for each of them: the same parts and static options, the same
    shapes, the same images, and the same rounds in a dispatch. Numbers aren't included, as they are arguments: those of
    parts and optimizers, seeds, partitions, availability. Nor is the size of the largest client, for which
    `_common_setting` makes room, or the layout's width, which the stack chooses for all its chains.
    """

    setting: Any  # its structure, with static options
    shapes: tuple[tuple[int, ...], ...]  # of its numbers
    batch_size: int
    images: int
    warp: int
    test: int
    has_client_tests: bool
    num_clients: int
    num_classes: int
    auxiliary: tuple[tuple[str, int], ...]
    chains: int
    chain_length: int
    passes: int
    closed_loop: bool
    rounds: int
    rounds_per_dispatch: int
    has_speeds: bool
    has_limits: bool  # plans limit the steps of each client
    chunk: int | str
    keeps_memory_on_host: bool
    debugged: int | None  # the identity of a run for debugging, which trains by itself


def stacking_key(simulation: Simulation) -> StackingKey:
    """Returns a hashable key; runs with equal keys can form a `Stack`."""
    setting = simulation.setting
    federation = simulation.federation
    selector = simulation.selector
    layout = dataclasses.replace(setting.layout, width=1, lanes=False, even=False)
    # Sizes and layout are replaced by constants, so that runs that differ in these have equal structures.
    leaves, structure = jax.tree.flatten(dataclasses.replace(setting.with_room(0, 1), layout=layout))
    return StackingKey(
        setting=structure,
        shapes=tuple(np.shape(leaf) for leaf in leaves),
        batch_size=simulation.batch_size,
        # By identity, because comparing the contents of two data sets would take longer than a round.
        images=id(federation.images),
        warp=id(federation.warp),
        test=id(simulation.test),
        has_client_tests=federation.tests is not None,
        num_clients=federation.num_clients,
        num_classes=federation.num_classes,
        auxiliary=tuple((name, len(rows)) for name, rows in sorted(federation.auxiliary.items())),
        chains=selector.chains,
        chain_length=selector.chain_length,
        passes=selector.passes,
        closed_loop=selector.closed_loop,
        rounds=simulation.rounds,
        rounds_per_dispatch=simulation.rounds_per_dispatch,
        has_speeds=simulation.participation.speed is not None,
        has_limits=simulation.example_dispatch(setting).rounds.plan.limits is not None,
        chunk=simulation.execution.chunk,
        keeps_memory_on_host=simulation.keeps_memory_on_host,
        debugged=id(simulation) if simulation.execution.debugs else None,
    )


class Stack(abc.ABC):
    """Runs that are trained together.

    Args:
        members: runs with the same stacking key, all at the same round.
        snapshots: their snapshots, which can't be used afterwards.

    Attributes:
        members: the runs.
        snapshots: their current snapshots; `StackedRuns` keeps the states elsewhere, see `snapshot`.
        failures: the errors of runs that diverged; None for other runs.
        resting: True for a run that has diverged or was stopped, whose model stays as it is.
    """

    def __init__(self, members: Sequence[Member], snapshots: Sequence[Snapshot]) -> None:
        self.members = tuple(members)
        self.snapshots = list(snapshots)
        self.failures: list[DivergenceError | None] = [None] * len(members)
        self.resting = [False] * len(members)

    @property
    @abc.abstractmethod
    def setting(self) -> Setting:
        """The runs' common setting."""

    @property
    @abc.abstractmethod
    def device_bytes(self) -> int:
        """Bytes that data, states and, once it is compiled, the program take on each device."""

    @abc.abstractmethod
    def snapshot(self, number: int) -> Snapshot:
        """Returns a run's snapshot, with its state."""

    @abc.abstractmethod
    def compile(self) -> float:
        """Compiles the program, once; returns the seconds spent in this call. Raises ValueError if it doesn't fit."""

    @abc.abstractmethod
    def advance(self) -> list[DispatchResult | None]:
        """Runs the next rounds of all runs, as many as a dispatch holds; None for runs that diverge in it, or rest."""

    @property
    def round(self) -> int:
        """Rounds done."""
        return max(int(snapshot.round) for snapshot in self.snapshots)

    def rest(self, number: int) -> None:
        """Stops a run: its clients don't train any more, so its model stays as it is."""
        self.resting[number] = True

    def _finish(self, number: int, process: Callable[[], DispatchResult]) -> DispatchResult | None:
        """Returns the result of a run's dispatch, and keeps its snapshot; None if the run diverged in it."""
        try:
            result = process()
        except DivergenceError as error:
            self.failures[number] = error
            self.rest(number)
            return None
        self.snapshots[number] = result.snapshot
        return result


class SingleRun(Stack):
    """A run by itself, on its simulation's own program.

    As a stack of one it would be slower, by 10 to 15% of the processors' time for a tiny dense network and by less than
    1% for a convolutional one (two CPU cores), and the clients' memory could be on the devices alone.
    """

    @property
    def setting(self) -> Setting:
        """The run's setting."""
        return self.members[0].simulation.setting

    @property
    def device_bytes(self) -> int:
        """Bytes that data, state and, once it is compiled, the program take on each device."""
        return self.members[0].simulation.device_bytes

    def snapshot(self, number: int) -> Snapshot:
        """Returns the run's snapshot; `number` is 0."""
        return self.snapshots[number]

    def compile(self) -> float:
        """Compiles the program, as `Stack.compile`."""
        return self.members[0].simulation.compile()

    def advance(self) -> list[DispatchResult | None]:
        """Runs the next rounds, as `Stack.advance`."""
        simulation, seed = self.members[0]
        return [self._finish(0, functools.partial(simulation.advance, seed, self.snapshots[0]))]


class StackedRuns(Stack):
    """Several runs, trained by one program with an axis of runs; their states stay on the devices in one piece.

    Raises:
        ValueError: the clients' memory is kept on the host or on disk, from where it is gathered for one run at a time.
    """

    def __init__(self, members: Sequence[Member], snapshots: Sequence[Snapshot]) -> None:
        super().__init__(members, [snapshot._replace(state=None) for snapshot in snapshots])
        self._simulations = [member.simulation for member in members]
        if any(simulation.keeps_memory_on_host for simulation in self._simulations):
            places = sorted({simulation.memory_place for simulation in self._simulations})
            raise ValueError(
                f"stack: received runs whose clients' memory is kept on {' and '.join(places)}, must be on device for "
                "runs that train together: set execution.client_memory to device, or train them one after another"
            )
        self._setting = _common_setting(self._simulations)
        self._data = _common_data(self._simulations, self._setting.layout)
        self._keys = _keys_of([member.seed for member in members])
        self._state: State = _stacked([snapshot.state for snapshot in snapshots])
        self._compiled: Any = None

    @property
    def setting(self) -> Setting:
        """The runs' common setting."""
        return self._setting

    @property
    def device_bytes(self) -> int:
        """Bytes that data, states and, once it is compiled, the program take on each device."""
        program = program_bytes(self._compiled) if self._compiled is not None else 0
        return size_in_bytes((self._data, self._state)) + program

    def snapshot(self, number: int) -> Snapshot:
        """Returns a run's snapshot, with its state."""
        return self.snapshots[number]._replace(state=jax.tree.map(lambda leaf: leaf[number], self._state))

    def compile(self) -> float:
        """Compiles the program, as `Stack.compile`."""
        if self._compiled is not None:
            return 0.0
        began = time.perf_counter()
        fixed = self._simulations[0].execution.chunk != "auto"
        build = lambda setting: _stacked_program(self._simulations, setting, self._data)
        self._setting, self._compiled = compile_to_fit(self._setting, build, fixed=fixed)
        return time.perf_counter() - began

    def advance(self) -> list[DispatchResult | None]:
        """Runs the next rounds of all runs, as `Stack.advance`."""
        self.compile()
        # States of resumed runs come from the host; those of the last dispatch are in place already.
        before = jax.device_put(self._state, self._setting.layout.replicated)
        # Not ideal: a single run plans its next dispatch while the devices work, a stack lets them wait for its plans.
        planned = []
        for number, (simulation, seed) in enumerate(self.members):
            dispatch = simulation.take_planned(seed, self.round, self.snapshots[number].selector)
            if self.resting[number]:
                # Shapes never change, so a resting run keeps its chains, but none of them delivers.
                plans = [plan._replace(delivered=np.zeros_like(plan.delivered)) for plan in dispatch.plans]
                stacked = dispatch.rounds.plan._replace(delivered=np.zeros_like(dispatch.rounds.plan.delivered))
                dispatch = dispatch._replace(plans=plans, rounds=dispatch.rounds._replace(plan=stacked))
            planned.append(dispatch)
        rounds, works = _joint_rounds(self._simulations, planned, self._setting)
        self._state, *reports = self._compiled(self._setting, self._keys, before, rounds, *self._data)
        reports = jax.device_get(tuple(reports))
        results = []
        for number, simulation in enumerate(self._simulations):
            dispatch = planned[number]._replace(work=works[number])
            info, evaluation = jax.tree.map(lambda leaf, run=number: leaf[:, run], reports)
            process = functools.partial(simulation.process_results, self.snapshots[number], dispatch, info, evaluation)
            results.append(None if self.resting[number] else self._finish(number, process))
        return results


def open_stack(members: Sequence[Member], snapshots: Sequence[Snapshot | None]) -> Stack:
    """Starts or resumes runs with equal stacking keys, all at the same round.

    A run that hasn't started has no snapshot; those of the others are as they were saved, and can't be used afterwards.
    """
    starts = [
        member.simulation.init(member.seed) if snapshot is None else member.simulation.restore(snapshot)
        for member, snapshot in zip(members, snapshots, strict=True)
    ]
    return SingleRun(members, starts) if len(members) == 1 else StackedRuns(members, starts)


def program_of(simulations: Sequence[Simulation]) -> Program | Callable:
    """Compiles the first program that a stack of these runs will use, without their states; thread-safe."""
    if len(simulations) == 1:
        return simulations[0].program(simulations[0].setting)
    setting = _common_setting(simulations)
    return _stacked_program(simulations, setting, _common_data(simulations, setting.layout))


def _stacked_program(simulations: Sequence[Simulation], setting: Setting, data: PyTree) -> Program:
    first = simulations[0]
    count = len(simulations)
    stacked = lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype)
    shapes = jax.tree.map(stacked, first.state_shapes().state)
    planned = [simulation.example_dispatch(simulation.setting) for simulation in simulations]
    rounds, _ = _joint_rounds(simulations, planned, setting)
    return compile_dispatch(setting, shapes, rounds, data, _keys_of([0] * count))


def _joint_rounds(
    simulations: Sequence[Simulation], planned: Sequence[PlannedDispatch], setting: Setting
) -> tuple[DispatchPlan, list[StepCounts]]:
    """Makes the rounds of all runs, and each run's share of its work."""
    first = planned[0].rounds
    plan = jax.tree.map(lambda *leaves: np.stack(leaves, 1), *(dispatch.rounds.plan for dispatch in planned))
    seats = np.stack([dispatch.rounds.seats for dispatch in planned], 1)
    assignments = []
    computed = 0
    for number, live in enumerate(first.live):
        # The chains of all runs are assigned together, so that a lane may train chains of several runs.
        rows = [jax.tree.map(lambda leaf, at=number: leaf[at], dispatch.rounds.plan) for dispatch in planned]
        steps = [simulation.planner.steps(row) for simulation, row in zip(simulations, rows, strict=True)]
        arriving = np.concatenate([row.delivered.any(1) for row in rows])
        assignment, work = assign(setting.layout, np.concatenate(steps), arriving)
        assignments.append(assignment)
        computed += work.computed if live else 0
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *assignments)
    useful = [
        sum(int(simulation.planner.steps(plan).sum()) for plan in dispatch.plans)
        for simulation, dispatch in zip(simulations, planned, strict=True)
    ]
    # Padding belongs to no run, so the computed steps are divided in proportion to the useful ones.
    works = [StepCounts(steps, round(computed * steps / max(sum(useful), 1))) for steps in useful]
    return first._replace(plan=plan, seats=seats, assignment=stacked), works


def _keys_of(seeds: Sequence[int]) -> Any:
    return jax.random.wrap_key_data(jnp.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds]))


def _common_data(simulations: Sequence[Simulation], layout: Layout) -> PyTree:
    """Returns the federation and test set of all runs, on the devices."""
    first = simulations[0]
    shared = stack_federations([simulation.federation for simulation in simulations])
    federation = first.on_device[0] if shared is first.federation else replicate(shared, layout)
    return federation, first.on_device[1]


def _common_setting(simulations: Sequence[Simulation]) -> Setting:
    """Stacks all settings, leaves `[S]`, with room for the largest client of all runs."""
    first = simulations[0]
    settings = [simulation.setting for simulation in simulations]
    largest = max(setting.max_size for setting in settings)
    batch = max(setting.batch_size for setting in settings)
    layout = first.setting.layout
    selector = first.selector
    steps = np.concatenate([each.setting.local_steps(each.planner.sizes) for each in simulations])
    layout = lay_out(
        layout.strategy,
        layout.devices,
        steps[steps > 0],
        len(simulations) * selector.chains,
        selector.chain_length,
        selector.passes,
        chunk=None if first.execution.chunk == "auto" else layout.width,
        most=most_at_a_time(first.setting),
        limited=first.participation.speed is not None,
    )
    return _stacked([dataclasses.replace(setting.with_room(largest, batch), layout=layout) for setting in settings])


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)
