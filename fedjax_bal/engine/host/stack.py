"""Stacks of runs that differ in numbers alone: one compiled program trains all of them.

Each run keeps its own state on the host.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.engine.device import DispatchPlan, Layout, Setting, State, side_by_side
from fedjax_bal.engine.host.assignment import StepCounts, assign
from fedjax_bal.engine.host.executable import Program, compile_dispatch, compile_to_fit
from fedjax_bal.engine.host.memory import program_bytes
from fedjax_bal.engine.host.placement import replicate
from fedjax_bal.engine.host.planner import Dispatch
from fedjax_bal.engine.host.simulation import DispatchResult, Simulation, Snapshot
from fedjax_bal.engine.host.strategy import lay_out
from fedjax_bal.errors import DivergenceError
from fedjax_bal.types import PyTree, size_in_bytes


class Member(NamedTuple):
    """One run of a stack."""

    simulation: Simulation
    seed: int


def stacking_key(simulation: Simulation) -> Any:
    """A hashable value; runs with equal ones can be put into a `Stack`."""
    # Runs share a program if it would be traced alike for each of them: the same parts and static options, the same
    # shapes, the same images, and the same rounds in a dispatch. Numbers stay out, as they are arguments: those of
    # parts and optimizers, seeds, partitions, who is available. So does the size of the largest client, for which
    # `_common_setting` makes room, and the layout's width, which the stack chooses for all its chains.
    setting, federation, selector = simulation.setting, simulation.federation, simulation.selector
    layout = dataclasses.replace(setting.layout, width=1, lanes=False)
    flat = dataclasses.replace(setting.with_room(0, 1), layout=layout)
    leaves, structure = jax.tree.flatten(flat)
    auxiliary = tuple((name, len(rows)) for name, rows in sorted(federation.auxiliary.items()))
    return (
        structure,
        tuple(np.shape(leaf) for leaf in leaves),
        simulation.batch_size,
        (id(federation.images), id(federation.warp), id(simulation.test), federation.tests is None),
        (federation.num_clients, federation.num_classes, auxiliary),
        (selector.chains, selector.chain_length, selector.passes, selector.closed_loop),
        (simulation.rounds, simulation.rounds_per_dispatch),
        (simulation.participation.speed is None, _limits(simulation)),
        (simulation.execution.chunk, simulation.keeps_memory_on_host),
        id(simulation) if simulation.execution.debugs else None,  # one run after another
    )


def _limits(simulation: Simulation) -> bool:
    """True if a run's plans limit the steps of each client."""
    return simulation.any_dispatch(simulation.setting).schedule.plan.limits is not None


class Stack:
    """Runs that are trained together.

    Args:
        members: runs with the same stacking key, all at the same round.
        snapshots: their snapshots, not to be used afterwards.

    Raises:
        ValueError: the clients' memory is kept on the host or on disk, from where it is gathered for one run at a time.

    Attributes:
        members: the runs.
        snapshots: their snapshots now, without the devices' states.
        failures: the errors of runs that diverged; None for other runs.
        resting: True for a run that has diverged or was stopped, whose model stays as it is.
        compile_s: seconds that compiling took, 0 before.
    """

    def __init__(self, members: Sequence[Member], snapshots: Sequence[Snapshot]) -> None:
        if any(member.simulation.keeps_memory_on_host for member in members):
            places = sorted({member.simulation.memory_place for member in members})
            raise ValueError(
                f"Stack: received runs whose clients' memory is kept on {' and '.join(places)}, must be on device for "
                "runs that train together: set execution.client_memory to device, or train them one after another"
            )
        self.members = tuple(members)
        self.failures: list[DivergenceError | None] = [None] * len(members)
        self.resting = [False] * len(members)
        self.compile_s = 0.0
        self._simulations = [member.simulation for member in members]
        self.setting = _common_setting(self._simulations)
        self._data = _common_data(self._simulations, self.setting.layout)
        self._keys = _keys_of([member.seed for member in members])
        self._state: State = _stacked([snapshot.state for snapshot in snapshots])
        self.snapshots = [snapshot._replace(state=None) for snapshot in snapshots]
        self._compiled: Any = None

    def rest(self, place: int) -> None:
        """Stops a run: no client trains for it any more, so that its model stays as it is."""
        self.resting[place] = True

    @property
    def round(self) -> int:
        """Rounds done."""
        return max(int(snapshot.round) for snapshot in self.snapshots)

    @property
    def device_bytes(self) -> int:
        """Bytes that data, states and, once it is compiled, the program take on each device."""
        program = program_bytes(self._compiled) if self._compiled is not None else 0
        return size_in_bytes((self._data, self._state)) + program

    def snapshot(self, place: int) -> Snapshot:
        """A run's snapshot, with its state."""
        return self.snapshots[place]._replace(state=jax.tree.map(lambda leaf: leaf[place], self._state))

    def compile(self) -> float:
        """Compiles the program, once; returns the seconds that it took now. Raises ValueError if it doesn't fit."""
        if self._compiled is not None:
            return 0.0
        began, fixed = time.perf_counter(), self._simulations[0].execution.chunk != "auto"
        build = lambda setting: _stacked_program(self._simulations, setting, self._data)
        self.setting, self._compiled = compile_to_fit(self.setting, build, fixed=fixed)
        self.compile_s = time.perf_counter() - began
        return self.compile_s

    def advance(self) -> list[DispatchResult | None]:
        """Runs the next rounds of all runs, as many as one dispatch holds; None for runs that diverge now, or rest."""
        self.compile()
        before = jax.device_put(self._state, self.setting.layout.replicated)
        planned = [self._planned(place) for place in range(len(self.members))]
        schedule, works = _schedule(self._simulations, planned, self.setting)
        self._state, *shown = self._compiled(self.setting, self._keys, before, schedule, *self._data)
        info, evaluation = jax.device_get(tuple(shown))
        return [
            self._conclude(place, own._replace(work=work), *_of_run(place, (info, evaluation)))
            for place, (own, work) in enumerate(zip(planned, works, strict=True))
        ]

    def _conclude(self, place: int, planned: Dispatch, info: Any, evaluation: Any) -> DispatchResult | None:
        if self.resting[place]:
            return None
        try:
            result = self.members[place].simulation.conclude(self.snapshots[place], planned, info, evaluation)
        except DivergenceError as error:
            self.failures[place] = error
            self.rest(place)
            return None
        self.snapshots[place] = result.snapshot
        return result

    def _planned(self, place: int) -> Dispatch:
        simulation, seed = self.members[place]
        planned = simulation.planned(seed, self.round, self.snapshots[place].selector)
        if not self.resting[place]:
            return planned
        plans = [plan._replace(delivered=np.zeros_like(plan.delivered)) for plan in planned.plans]
        stacked = planned.schedule.plan._replace(delivered=np.zeros_like(planned.schedule.plan.delivered))
        return planned._replace(plans=plans, schedule=planned.schedule._replace(plan=stacked))


class StackOfOne:
    """A single run with the methods of a `Stack`, on its own program, as batching by one slows many operations down."""

    def __init__(self, member: Member, snapshot: Snapshot) -> None:
        (self.simulation, self.seed), self._snapshot = member, snapshot
        self.failures: list[DivergenceError | None] = [None]
        self.resting = [False]

    @property
    def setting(self) -> Setting:
        """The run's."""
        return self.simulation.setting

    def rest(self, place: int) -> None:
        """Stops the run."""
        self.resting[place] = True

    @property
    def round(self) -> int:
        """Rounds done."""
        return int(self._snapshot.round)

    @property
    def device_bytes(self) -> int:
        """Bytes that data, state and the program take on each device."""
        return self.simulation.device_bytes

    def compile(self) -> float:
        """Compiles the program, once; returns the seconds that it took now."""
        return self.simulation.compile()

    def snapshot(self, place: int) -> Snapshot:
        """The run's snapshot, with its state."""
        del place
        return self._snapshot

    def advance(self) -> list[DispatchResult | None]:
        """Runs the next rounds, as many as one dispatch holds; None if the run has diverged."""
        try:
            result = self.simulation.advance(self.seed, self._snapshot)
        except DivergenceError as error:
            self.failures[0] = error
            self.rest(0)
            return [None]
        self._snapshot = result.snapshot
        return [result]


def open_stack(members: Sequence[Member], snapshots: Sequence[Snapshot | None]) -> Stack | StackOfOne:
    """Starts or resumes runs with equal stacking keys, all at the same round.

    A run that hasn't started has no snapshot; the others' are not to be used afterwards.
    """
    starts = [
        member.simulation.init(member.seed) if snapshot is None else snapshot
        for member, snapshot in zip(members, snapshots, strict=True)
    ]
    return StackOfOne(members[0], starts[0]) if len(members) == 1 else Stack(members, starts)


def program_of(simulations: Sequence[Simulation]) -> Program | Callable:
    """The program that a stack of such runs asks for first, without their states; any thread may ask for it."""
    if len(simulations) == 1:
        return simulations[0].program(simulations[0].setting)
    setting = _common_setting(simulations)
    return _stacked_program(simulations, setting, _common_data(simulations, setting.layout))


def _stacked_program(simulations: Sequence[Simulation], setting: Setting, data: PyTree) -> Program:
    first, count = simulations[0], len(simulations)
    stacked = lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype)
    shapes = jax.tree.map(stacked, first.state_shapes().state)
    planned = [simulation.any_dispatch(simulation.setting) for simulation in simulations]
    schedule = _schedule(simulations, planned, setting)[0]
    return compile_dispatch(setting, shapes, schedule, data, keys=_keys_of([0] * count))


def _schedule(
    simulations: Sequence[Simulation], planned: Sequence[Dispatch], setting: Setting
) -> tuple[DispatchPlan, list[StepCounts]]:
    """The schedule of all runs, and each run's share of its work."""
    first = planned[0].schedule
    plan = jax.tree.map(lambda *leaves: np.stack(leaves, 1), *(own.schedule.plan for own in planned))
    seats = np.stack([own.schedule.seats for own in planned], 1)
    steps = [_steps(number, simulations, planned) for number in range(len(first.number))]
    arriving = plan.delivered.any(-1).reshape(len(steps), -1)
    assigned = [assign(setting.layout, own, on) for own, on in zip(steps, arriving, strict=True)]
    assignments, works = zip(*assigned, strict=True)
    schedule = first._replace(
        plan=plan, seats=seats, assignment=jax.tree.map(lambda *leaves: np.stack(leaves), *assignments)
    )
    computed = sum(work.computed for work, live in zip(works, first.live, strict=True) if live)
    return schedule, _shares(computed, simulations, planned)


def _shares(computed: int, simulations: Sequence[Simulation], planned: Sequence[Dispatch]) -> list[StepCounts]:
    pairs = zip(simulations, planned, strict=True)
    useful = [sum(int(simulation.steps_of(plan).sum()) for plan in own.plans) for simulation, own in pairs]
    return [StepCounts(own, round(computed * own / max(sum(useful), 1))) for own in useful]


def _steps(number: int, simulations: Sequence[Simulation], planned: Sequence[Dispatch]) -> np.ndarray:
    """Steps of each client of all runs in a round, `Int[S * G, L]`."""
    plans = [jax.tree.map(lambda leaf: leaf[number], own.schedule.plan) for own in planned]
    return np.concatenate([simulation.steps_of(plan) for simulation, plan in zip(simulations, plans, strict=True)])


def _keys_of(seeds: Sequence[int]) -> Any:
    return jax.random.wrap_key_data(jnp.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds]))


def _common_data(simulations: Sequence[Simulation], layout: Layout) -> PyTree:
    """Federation and test set of all runs, on the devices."""
    first = simulations[0]
    shared = side_by_side([simulation.federation for simulation in simulations])
    place = first.on_device[0] if shared is first.federation else replicate(shared, layout)
    return place, first.on_device[1]


def _common_setting(simulations: Sequence[Simulation]) -> Setting:
    """All settings in one, leaves `[S]`, with room for the largest client of any run."""
    settings = [simulation.setting for simulation in simulations]
    largest = max(setting.max_size for setting in settings)
    batch = max(setting.batch_size for setting in settings)
    layout = _layout(simulations)
    return _stacked([dataclasses.replace(own.with_room(largest, batch), layout=layout) for own in settings])


def _layout(simulations: Sequence[Simulation]) -> Layout:
    first = simulations[0]
    layout, selector = first.setting.layout, first.selector
    steps = np.concatenate([simulation.steps_of_clients for simulation in simulations])
    chunk = None if first.execution.chunk == "auto" else layout.width
    groups = len(simulations) * selector.chains
    return lay_out(
        layout.strategy, layout.devices, steps[steps > 0], groups, selector.chain_length, selector.passes, chunk
    )


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)


def _of_run(place: int, tree: PyTree) -> PyTree:
    """One run's part of leaves `[T, S, ...]`."""
    return jax.tree.map(lambda leaf: leaf[:, place], tree)
