"""A simulation on the host: plans some rounds, runs them as one program, reads their reports."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.engine.device import (
    DispatchPlan,
    Info,
    Setting,
    State,
    TestSet,
    closing_traffic_of,
    evaluated_model,
    init_state,
    padded,
    traffic_of,
)
from fedjax_bal.engine.host.assignment import StepCounts
from fedjax_bal.engine.host.client_memory import choose_memory_place, gather, move_to_disk, scatter, zeros_on_disk
from fedjax_bal.engine.host.compatibility import choose_rounds_per_dispatch, fit_variables
from fedjax_bal.engine.host.debug import debug_dispatch
from fedjax_bal.engine.host.executable import (
    Program,
    compile_dispatch,
    compile_to_fit,
    initial_state,
    lower_dispatch,
    place_state,
)
from fedjax_bal.engine.host.faults import fault_message, find_faults
from fedjax_bal.engine.host.memory import program_bytes
from fedjax_bal.engine.host.placement import divide, replicate
from fedjax_bal.engine.host.planner import Dispatch, Planner
from fedjax_bal.errors import DivergenceError
from fedjax_bal.metrics import LONG, Counts, Fault, FaultCounts, RoundResult, Traffic, count_round, record_round
from fedjax_bal.options import Execution, Participation
from fedjax_bal.parts import RoundsSoFar
from fedjax_bal.selection import LOSS, Selector, always
from fedjax_bal.types import EvaluationResult, Federation, Plan, PyTree, Variables, size_in_bytes


class Snapshot(NamedTuple):
    """The state of a run between two dispatches: all that has to be saved in order to resume."""

    round: Any  # rounds done, a Python or NumPy integer
    state: State  # on the devices
    selector: Any  # the selector's state
    counts: Counts  # since the last evaluation


class DispatchResult(NamedTuple):
    """Result of one dispatch.

    Attributes:
        snapshot: the run after it.
        records: a dict of metrics for each evaluated round.
        confusion: the confusion matrix of the last evaluated round; None if none was evaluated.
        chosen: the selected clients, round after round, `Int32[K]`.
        client_updates: local trainings of clients that delivered.
        samples: samples that they trained on, each as often as it was used.
        work: local steps of clients that delivered, left out or not, and all steps computed; the difference is the
            cost of padding.
        train_losses: mean training loss of every round, nan if no client delivered.
        faults: the clients that were left out or clipped, round after round.
    """

    snapshot: Snapshot
    records: list[dict[str, Any]]
    confusion: np.ndarray | None
    chosen: np.ndarray
    client_updates: int
    samples: int
    work: StepCounts
    train_losses: list[float]
    faults: tuple[Fault, ...] = ()


@dataclasses.dataclass(eq=False)
class Simulation:
    """One method on one federation, compiled once and run for any number of seeds.

    Attributes:
        setting: parts, optimizers, local training, evaluation.
        federation: the federation, on the host but for its images and labels, which may be on the devices.
        test: the test set, on the host or on the devices.
        rounds: number of rounds of a run.
        selector: selects the cohort: the recipe's, or that of `participation`.
        participation: which clients are available, which deliver, and how fast they are.
        execution: how the work is laid out, and how broken clients are handled.
        batch_size: B as requested; the setting's is no larger than the largest client.
        groups: masks over the classes by which accuracies are averaged, from `fedjax_bal.metrics.shot_groups`.
        compile_s: seconds spent on compiling, or on waiting for a thread that compiles; 0 before.
        rounds_per_dispatch: rounds in one program.
        on_device: federation and test set, on the devices.
        memory_place: where the clients' memory is kept, "device", "host" or "disk".
        scratch: the folder for memory on disk; by default the system's for temporary files.
    """

    setting: Setting
    federation: Federation
    test: TestSet
    rounds: int
    selector: Selector
    participation: Participation
    execution: Execution
    batch_size: int
    groups: Mapping[str, np.ndarray]
    compile_s: float = 0.0
    scratch: Path | None = None

    def __post_init__(self) -> None:
        # Whatever the number of rounds, so that a run that is made longer goes on with the same program.
        self.rounds_per_dispatch = choose_rounds_per_dispatch(self.execution.rounds_per_dispatch, self.selector)
        self._sizes = np.diff(self.federation.offsets)
        # A client that takes no local step returns what it received, whatever its number of rows: it is never selected.
        self._training = np.asarray(self.setting.steps_per_epoch(self._sizes)) > 0
        if not self._training.any():
            local = self.setting.local
            raise ValueError(
                f"batch_size: received {local.batch_size} with drop_last={local.drop_last}, with which "
                f"no client takes a single step (the largest has {self._sizes.max()} rows): use smaller batches"
            )
        layout = self.setting.layout
        self.on_device = (replicate(self.federation, layout), divide(padded(self.test, layout.devices), layout))
        shapes = jax.eval_shape(self.setting.traced(init_state), self.setting, jax.random.key(0), self.on_device[0])
        tested, wanted = self.federation.tests is not None, self.execution.client_memory
        self.memory_place = choose_memory_place(wanted, shapes, self.federation.num_clients, layout, tested)
        self._shapes: State = shapes
        self._compiled: Any = None
        self._ahead: tuple[Any, Dispatch] | None = None

    @property
    def keeps_memory_on_host(self) -> bool:
        """True if the clients' memory is gathered on the host for each dispatch, be it kept there or on disk."""
        return self.memory_place != "device"

    @property
    def stored(self) -> Federation:
        """The federation, on the devices."""
        return self.on_device[0]

    def init(self, seed: int, variables: Variables | None = None) -> Snapshot:
        """The snapshot before round 0; the seed, not negative, decides all random draws but the partition.

        `variables` take the place of a drawn model; raises ValueError if they aren't of the model's shapes.
        """
        given = None if variables is None else fit_variables(variables, self._shapes.variables, self.setting.model)
        zeros = {"device": None, "host": np.zeros, "disk": functools.partial(zeros_on_disk, folder=self.scratch)}
        place = zeros[self.memory_place]
        state = initial_state(self.setting, seed, self.on_device[0], zeros=place, variables=given)
        return Snapshot(0, state, self.selector.init(seed, self.federation.num_clients), self._no_counts)

    def compile(self) -> float:
        """Compiles the program, once; returns the seconds that it took now. Raises ValueError if it doesn't fit."""
        if self._compiled is not None:
            return 0.0
        if self.execution.debugs:
            self._compiled = self.program(self.setting)
            return 0.0
        began, fixed = time.perf_counter(), self.execution.chunk != "auto"
        self.setting, self._compiled = compile_to_fit(self.setting, self.program, fixed=fixed)
        self.compile_s = time.perf_counter() - began
        return self.compile_s

    def lower(self, setting: Setting) -> Any:
        """Lowers the program of a dispatch with this setting, for the devices that programs are compiled for."""
        return lower_dispatch(setting, *self._arguments(setting))

    def program(self, setting: Setting) -> Program | Callable:
        """The program of a dispatch with this setting, compiled but for debugging; any thread may ask for it."""
        if self.execution.debugs:
            return debug_dispatch
        return compile_dispatch(setting, *self._arguments(setting))

    def _arguments(self, setting: Setting) -> tuple[State, DispatchPlan, PyTree]:
        state, schedule = self._shapes, self.any_dispatch(setting).schedule
        if self.keeps_memory_on_host:
            seated = lambda leaf: jax.ShapeDtypeStruct((schedule.seats.size, *leaf.shape[1:]), leaf.dtype)
            state = state._replace(memory=jax.tree.map(seated, state.memory))
        return state, schedule, self.on_device

    def advance(self, seed: int, snapshot: Snapshot) -> DispatchResult:
        """Runs the next rounds of a run, as many as one dispatch holds.

        The snapshot's state is donated to the program. Raises DivergenceError if a client's update is broken, unless
        such clients are left out, or if the model isn't finite.
        """
        self.compile()
        if self.memory_place == "disk":  # a resumed run's was read into memory
            moved = move_to_disk(snapshot.state.memory, self.scratch)
            snapshot = snapshot._replace(state=snapshot.state._replace(memory=moved))
        planned = self.planned(seed, snapshot.round, snapshot.selector)
        state, info, evaluation = self._run(seed, snapshot.state, planned)
        done = snapshot.round + len(planned.plans)
        if done < self.rounds and not self.selector.closed_loop:
            # jax has only queued the program, and `device_get` below waits for it: until then the host plans the next
            # dispatch for free. A closed-loop selector can't, as its next choice depends on this dispatch's reports.
            self._ahead = (self._about(seed, done), self._planner().dispatch(seed, done, planned.selector))
        info, evaluation = jax.device_get((info, evaluation))
        result = self.conclude(snapshot, planned, info, evaluation)
        if planned.table is not None:
            state = state._replace(memory=scatter(snapshot.state.memory, planned.table, state.memory))
        return result._replace(snapshot=result.snapshot._replace(state=state))

    def conclude(
        self, snapshot: Snapshot, planned: Dispatch, info: Info, evaluation: EvaluationResult
    ) -> DispatchResult:
        """Reads a dispatch's reports, leaves `[T, ...]`, on the host, and lets the selector learn from them.

        Raises DivergenceError if a client's update is broken, unless such clients are left out, or if the model isn't
        finite.
        """
        self._check_sound(snapshot.round, planned, info)
        faults = ()
        selector = planned.selector
        if self.execution.excludes:
            faults = find_faults(snapshot.round, planned.plans, info.broken)
            # From here on a client that was left out is one that did not deliver.
            left = [
                plan._replace(delivered=plan.delivered & ((codes == 0) | (codes == LONG)))
                for plan, codes in zip(planned.plans, info.broken, strict=False)
            ]
            planned = planned._replace(plans=left)
        plans = planned.plans
        if self.selector.closed_loop:
            selector = self.selector.update(selector, plans[0], _probes(info))
        records, counts, confusion = self._read(snapshot, planned, faults, info, evaluation)
        updates = sum(int(plan.delivered.sum()) for plan in plans) * self.setting.passes
        after = snapshot._replace(round=snapshot.round + len(plans), selector=selector, counts=counts)
        losses = [float(loss) for loss in info.metrics["train_loss"][: len(plans)]]
        asked = np.concatenate([plan.clients[plan.clients < self.federation.num_clients] for plan in plans])
        return DispatchResult(
            after, records, confusion, asked, updates, self._samples(plans), planned.work, losses, faults
        )

    @property
    def device_bytes(self) -> int:
        """Bytes that data, state and, once it is compiled, the program take on each device."""
        program = 0 if self._compiled in (None, debug_dispatch) else program_bytes(self._compiled)
        return size_in_bytes(self.on_device) + size_in_bytes(self._shapes) + program

    def tested_model(self, seed: int, snapshot: Snapshot) -> Variables:
        """The global model as the test set sees it after a snapshot's last round."""
        state = replicate(snapshot.state._replace(optimizer=(), memory={}), self.setting.layout)
        number = np.int32(snapshot.round - 1)
        return jax.jit(self.setting.traced(evaluated_model))(
            self.setting, jax.random.key(seed), state, number, self.stored
        )

    def state_shapes(self) -> Snapshot:
        """The shapes of a run's snapshot, against which a checkpoint is checked."""
        selector = self.selector.init(0, self.federation.num_clients)
        return Snapshot(np.int64(0), self._shapes, selector, self._no_counts)

    def schedule(self, seed: int, first: int, selector: Any) -> tuple[DispatchPlan, Any, list[Plan]]:
        """The next dispatch's rounds, the selector's new state, and the plans of the rounds that are live."""
        return self._planner().dispatch(seed, first, selector)[:3]

    def plan(self, seed: int, number: int, selector: Any) -> tuple[Plan, Any]:
        """The plan of a round (from 0), and the selector's new state."""
        return self._planner().round(seed, number, selector)

    @property
    def _no_counts(self) -> Counts:
        return Counts(broken=FaultCounts() if self.execution.excludes else None)

    @functools.cached_property
    def _traffic(self) -> Traffic:
        return traffic_of(self.setting, self.federation, self._shapes, losses=LOSS in self.selector.needs)

    @functools.cached_property
    def _closing_traffic(self) -> Traffic:
        return closing_traffic_of(self.setting, self.federation, self._shapes)

    def _planner(self) -> Planner:
        return Planner(
            self.setting,
            self._sizes,
            self._training,
            self.selector,
            self.participation,
            self.rounds,
            self.rounds_per_dispatch,
            self.keeps_memory_on_host,
        )

    def any_dispatch(self, setting: Setting) -> Dispatch:
        """A dispatch with this setting, of the shapes that all have."""
        selector = self.selector.init(0, self.federation.num_clients)
        return dataclasses.replace(self._planner(), setting=setting).dispatch(0, 0, selector)

    @property
    def steps_of_clients(self) -> np.ndarray:
        """Steps of each client's local training, `Int[N]`."""
        return np.asarray(self.setting.local_steps(self._sizes))

    def steps_of(self, plan: Plan) -> np.ndarray:
        """Steps of each client of a plan in a round, `Int[G, L]`, 0 for a client that doesn't deliver."""
        return self._planner().steps(plan)

    def planned(self, seed: int, first: int, selector: Any) -> Dispatch:
        """The dispatch that starts at round `first` (from 0): the one planned ahead, if any, or a new one."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == self._about(seed, first):
            return ahead[1]
        return self._planner().dispatch(seed, first, selector)

    def _about(self, seed: int, first: int) -> tuple[Any, ...]:
        return seed, first, self.rounds, self.rounds_per_dispatch, self.setting.layout

    def _run(self, seed: int, state: State, planned: Dispatch) -> tuple[State, Info, EvaluationResult]:
        if planned.table is not None:
            state = state._replace(memory=gather(state.memory, planned.table))
        state = place_state(state, self.federation.num_clients, self.setting.layout)
        return self._compiled(self.setting, jax.random.key(seed), state, planned.schedule, *self.on_device)

    def _check_sound(self, first: int, planned: Dispatch, info: Info) -> None:
        for offset, plan in enumerate(planned.plans):
            codes = info.broken[offset]
            number = first + offset + 1
            if codes.any() and not self.execution.excludes:
                here = self.setting.optimizer.describe_rate(first + offset)
                raise DivergenceError(f"round {number}: {fault_message(self.execution, plan, codes, here)}")
            if not info.model_finite[offset]:
                raise DivergenceError(
                    f"round {number}: the global model is not finite after the server's step, though all "
                    "updates were; the usual cause is a server learning rate that is too "
                    f"high{self.setting.server.describe_rate(first + offset)}: lower it, or check what parts of your "
                    "own return"
                )

    def _read(
        self,
        snapshot: Snapshot,
        planned: Dispatch,
        faults: Sequence[Fault],
        info: Info,
        evaluation: EvaluationResult,
    ) -> tuple[list[dict[str, Any]], Counts, np.ndarray | None]:
        records, counts, confusion = [], snapshot.counts, None
        exact = self.setting.evaluation.traffic == "exact"
        costs = self.federation.num_clients, self.setting.passes, self._traffic, exact
        for offset, plan in enumerate(planned.plans):
            counts = count_round(counts, plan, *costs, planned.seconds[offset] if planned.seconds else 0.0)
            number = snapshot.round + offset + 1
            counts = counts.noted([fault for fault in faults if fault.round == number])
            if planned.schedule.evaluate[offset]:
                own, measured = _of_round(offset, (evaluation, dict(info.metrics)))
                counted = counts.closed(self.federation.num_clients, self._closing_traffic)
                reported = measured | counted.record(self.participation.speed is not None) | self._of_parts(number)
                result = RoundResult(self.federation, plan, own, reported, self.groups)
                records.append({"round": number, **record_round(result)})
                confusion = np.asarray(own.confusion)
                if number % self.setting.evaluation.every == 0:
                    # Not after an evaluation for the last round's sake: a run that is made longer doesn't have it.
                    counts = self._no_counts
        return records, counts, confusion

    def _of_parts(self, rounds: int) -> dict[str, float]:
        """The metrics that parts measure on the host (`Part.round_metrics`) after a number of rounds, by name."""
        clients, even = int(self._training.sum()), self.selector.even and self.participation.availability == always()
        most, length = min(self.selector.most, clients), self.selector.chain_length
        past = RoundsSoFar(rounds, clients, most, even, self.selector.closed_loop, length)
        return {name: value for part in self.setting.parts for name, value in part.round_metrics(past).items()}

    def _samples(self, plans: list[Plan]) -> int:
        samples = 0
        for plan in plans:
            sizes = self._sizes[plan.clients[plan.delivered]]
            limits = None if plan.limits is None else plan.limits[plan.delivered]
            samples += int(self.setting.samples(sizes, self.setting.local_steps(sizes, limits)).sum())
        return samples * self.setting.passes


def _probes(info: Info) -> dict[str, Any]:
    """The values that a selector may learn from, by slot, `[G, L, ...]`, of the only round of a dispatch."""
    return _of_round(0, {LOSS: info.losses, **info.probes})


def _of_round(place: int, tree: PyTree) -> PyTree:
    """One round's part of leaves `[T, ...]`."""
    return jax.tree.map(lambda leaf: leaf[place], tree)
