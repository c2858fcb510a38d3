"""A simulation on the host: plans some rounds, runs them as one program, reads their reports."""

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Mapping
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
    evaluated_memory,
    evaluated_model,
    exhibits,
    init_state,
    padded,
    traffic_of,
)
from fedjax_bal.engine.host import executable
from fedjax_bal.engine.host.assignment import StepCounts
from fedjax_bal.engine.host.compatibility import choose_rounds_per_dispatch, fit_variables
from fedjax_bal.engine.host.faults import fault_message, find_faults
from fedjax_bal.engine.host.memory import (
    bytes_on_device,
    choose_memory_place,
    gather,
    program_bytes,
    restore_rows,
    scatter,
    zeros_on_disk,
)
from fedjax_bal.engine.host.placement import divide, fetch, replicate
from fedjax_bal.engine.host.planner import PlannedDispatch, Planner
from fedjax_bal.engine.host.strategy import with_layout
from fedjax_bal.errors import DivergenceError
from fedjax_bal.metrics import LONG, Fault, FaultCounts, RoundCounts, RoundResult, Traffic, count_round, record_round
from fedjax_bal.options import Execution, Participation
from fedjax_bal.parts import RoundsSoFar, Server
from fedjax_bal.selection import LOSS, Selector, always
from fedjax_bal.types import EvaluationResult, Exhibit, Federation, Key, Plan, PyTree, Variables, size_in_bytes


class Snapshot(NamedTuple):
    """The state of a run between two dispatches: everything that must be saved in order to resume."""

    round: Any  # rounds done, a Python or NumPy integer
    state: State  # on the devices
    selector: Any  # the selector's state
    counts: RoundCounts  # since the last evaluation
    asked: Any  # whether each client was ever asked to train, Bool[N]


class DispatchResult(NamedTuple):
    """The result of one dispatch.

    Attributes:
        snapshot: the run after it.
        records: a dict of metrics for each evaluated round.
        confusion: the confusion matrix of the last evaluated round; None if none was evaluated.
        client_hits: of the same round, see `EvaluationResult`; None, too, without test rows of clients.
        chosen: the selected clients, round after round, `Int32[K]`.
        client_updates: local trainings of clients that delivered.
        samples: samples that they trained on, counting repeats.
        work: local steps of clients that delivered, including those left out, and all steps computed; the difference
            is the cost of padding.
        train_losses: mean training loss of every round, nan if no client delivered.
        faults: the clients that were left out or clipped, round after round.
    """

    snapshot: Snapshot
    records: list[dict[str, Any]]
    confusion: np.ndarray | None
    client_hits: np.ndarray | None
    chosen: np.ndarray
    client_updates: int
    samples: int
    work: StepCounts
    train_losses: list[float]
    faults: tuple[Fault, ...] = ()


# Compared and hashed by identity, because a simulation is a static field of the pytree `RoundFunction`.
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
        execution: how to lay out the work, and what to do with broken clients.
        batch_size: B as requested; the setting's is no larger than the largest client.
        groups: masks over the classes by which accuracies are averaged, from `fedjax_bal.metrics.shot_groups`.
        saves: whether checkpoints are written, which takes memory, too.
        cautions: why this run learns next to nothing, from `Part.caution`, and which clients never train.
        compile_s: seconds spent on compiling, or on waiting for a thread that compiles; 0 before.
        rounds_per_dispatch: number of rounds in one program.
        on_device: federation and test set, on the devices.
        memory_place: where the clients' memory is kept, "device", "host" or "disk".
        planner: plans its rounds.
        scratch: the folder for memory on disk; by default the system's folder for temporary files.
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
    saves: bool = False
    cautions: tuple[str, ...] = ()
    compile_s: float = 0.0
    scratch: Path | None = None

    def __post_init__(self) -> None:
        # Independent of `rounds`, so that extending a run reuses the compiled program.
        self.rounds_per_dispatch = choose_rounds_per_dispatch(self.execution.rounds_per_dispatch, self.selector)
        sizes = self.federation.sizes
        # A client that takes no local step returns the model that it received, so it is never selected.
        training = np.asarray(self.setting.steps_per_epoch(sizes)) > 0
        if not training.any():
            local = self.setting.local
            raise ValueError(
                f"batch_size: received {local.batch_size} with drop_last={local.drop_last}, with which "
                f"no client takes a single step (the largest has {sizes.max()} rows): use smaller batches"
            )
        layout = self.setting.layout
        # Placed once: all dispatches of all seeds use the same arrays. Arrays that the caller has placed this way, for
        # several simulations, aren't copied again.
        placed = replicate(self.federation.without_names(), layout)
        self.on_device = (placed, divide(padded(self.test, layout.devices), layout))
        shapes = jax.eval_shape(self.setting.traced(init_state), self.setting, jax.random.key(0), self.on_device[0])
        tested = self.federation.tests is not None and bool(evaluated_memory(self.setting, shapes.memory))
        wanted = self.execution.client_memory
        # Decided after the data is placed, so that the free memory doesn't include the data's.
        saved = self._saved_bytes(shapes)
        clients = self.federation.num_clients
        self.memory_place = choose_memory_place(wanted, shapes, clients, layout, tested, saved)
        self.planner = Planner(
            self.setting,
            sizes,
            training,
            self.selector,
            self.participation,
            self.rounds,
            self.rounds_per_dispatch,
            tables=self.keeps_memory_on_host,
        )
        self._shapes: State = shapes
        self._compiled: Any = None
        self._ahead: tuple[Any, PlannedDispatch] | None = None

    def set_strategy(self, strategy: str) -> None:
        """Changes how clients are executed, before the program is compiled."""
        sizes, limited = self.federation.sizes, self.participation.speed is not None
        self.setting = with_layout(self.setting, strategy, sizes, self.selector, limited=limited)

    @property
    def keeps_memory_on_host(self) -> bool:
        """True if the clients' memory is gathered on the host for each dispatch, from there or from disk."""
        return self.memory_place != "device"

    @property
    def federation_on_device(self) -> Federation:
        """The federation, on the devices."""
        return self.on_device[0]

    @property
    def device_bytes(self) -> int:
        """Bytes that data, state and, once it is compiled, the program take on each device."""
        unknown = self._compiled in (None, executable.debug_dispatch)
        size = 0 if unknown else program_bytes(self._compiled)
        return size_in_bytes(self.on_device) + size_in_bytes(self._shapes) + size

    @property
    def state_bytes(self) -> tuple[int, int]:
        """Bytes of a run's state on each device, and on the host, where the last checkpoint is fetched to."""
        saved = self._saved_bytes(self._shapes)
        layout = self.setting.layout
        if not self.keeps_memory_on_host:
            return bytes_on_device(self._shapes, self.federation.num_clients, layout), saved
        rows = size_in_bytes(self._arguments(self.setting)[0].memory)  # of a dispatch, gathered there
        kept = size_in_bytes(self._shapes.memory) if self.memory_place == "host" else 0
        return size_in_bytes(self._shapes._replace(memory={})) + rows, kept + saved + rows

    def _saved_bytes(self, shapes: State) -> int:
        """Bytes of the memory rows that a checkpoint after the last round has; 0 if none is written."""
        clients = self.federation.num_clients
        asked = min(self.rounds * self.selector.chains * self.selector.chain_length + 1, clients)
        return size_in_bytes(shapes.memory) * asked // clients if self.saves else 0

    @property
    def _zeros(self) -> Callable[..., np.ndarray] | None:
        """Makes arrays for the clients' memory; None if it is on the devices."""
        disk = functools.partial(zeros_on_disk, folder=self.scratch)
        return {"device": None, "host": np.zeros, "disk": disk}[self.memory_place]

    @property
    def _nobody(self) -> np.ndarray:
        return np.zeros(self.federation.num_clients, bool)

    @property
    def _no_counts(self) -> RoundCounts:
        return RoundCounts(broken=FaultCounts() if self.execution.excludes else None)

    def warn(self) -> None:
        """Warns the caller of a public function if something keeps the run from learning."""
        for text in self.cautions:
            warnings.warn(text, stacklevel=4)  # above that function and its decorator

    def init(self, seed: int, variables: Variables | None = None) -> Snapshot:
        """Makes the snapshot before round 0; the seed, at least 0, decides all random draws except the partition.

        `variables` replace the drawn model; raises ValueError if their names or shapes don't fit the model.
        """
        given = None if variables is None else fit_variables(variables, self._shapes.variables, self.setting.model)
        state = executable.initial_state(self.setting, seed, self.on_device[0], zeros=self._zeros, variables=given)
        selector = self.selector.init(seed, self.federation.num_clients)
        return Snapshot(0, state, selector, self._no_counts, self._nobody)

    def restore(self, snapshot: Snapshot) -> Snapshot:
        """Expands the memory of a saved snapshot, that of `rows_to_save`, to all clients."""
        places = executable.shardings(self._shapes, self.federation.num_clients, self.setting.layout).memory
        memory = restore_rows(snapshot.state.memory, snapshot.asked, places, self._zeros)
        return snapshot._replace(state=snapshot.state._replace(memory=memory))

    def state_shapes(self) -> Snapshot:
        """Returns the shapes of a run's snapshot, against which a checkpoint is checked."""
        selector = self.selector.init(0, self.federation.num_clients)
        return Snapshot(np.int64(0), self._shapes, selector, self._no_counts, self._nobody)

    def compile(self) -> float:
        """Compiles the program, once; returns the seconds spent in this call. Raises ValueError if it doesn't fit."""
        if self._compiled is not None:
            return 0.0
        if self.execution.debugs:
            self._compiled = executable.debug_dispatch
            return 0.0
        began = time.perf_counter()
        fixed = self.execution.chunk != "auto"
        self.setting, self._compiled = executable.compile_to_fit(self.setting, self.program, fixed=fixed)
        self.compile_s = time.perf_counter() - began
        return self.compile_s

    def lower(self, setting: Setting) -> Any:
        """Lowers the program of a dispatch with this setting, for the target devices."""
        return executable.lower_dispatch(setting, *self._arguments(setting))

    def program(self, setting: Setting) -> executable.Program | Callable:
        """Returns the program of a dispatch with this setting, compiled unless it is for debugging; thread-safe."""
        if self.execution.debugs:
            return executable.debug_dispatch
        return executable.compile_dispatch(setting, *self._arguments(setting))

    def _arguments(self, setting: Setting) -> tuple[State, DispatchPlan, PyTree, Key]:
        state = self._shapes
        rounds = self.example_dispatch(setting).rounds
        if self.keeps_memory_on_host:
            # The program receives a row for each seat of the dispatch, not for each client.
            seated = lambda leaf: jax.ShapeDtypeStruct((rounds.seats.size, *leaf.shape[1:]), leaf.dtype)
            state = state._replace(memory=jax.tree.map(seated, state.memory))
        # The kind of key is that of `jax_default_prng_impl`, which may change in a session.
        return state, rounds, self.on_device, jax.random.key(0)

    def example_dispatch(self, setting: Setting) -> PlannedDispatch:
        """Plans a dispatch with this setting for its shapes, which are those of all dispatches."""
        selector = self.selector.init(0, self.federation.num_clients)
        return self.planner.plan_dispatch(setting.layout, 0, 0, selector)

    def plan(self, seed: int, number: int, selector: Any) -> tuple[Plan, Any]:
        """Plans a round (from 0); returns the plan and the selector's new state."""
        return self.planner.round(seed, number, selector)

    def take_planned(self, seed: int, first: int, selector: Any) -> PlannedDispatch:
        """Returns the dispatch that starts at round `first` (from 0), planned ahead or now."""
        # Another run of this simulation may have come in between. Planning changes nothing but its result, so a
        # dispatch that doesn't fit is dropped.
        ahead = self._ahead
        self._ahead = None
        if ahead is not None and ahead[0] == (seed, first, self.setting.layout):
            return ahead[1]
        return self.planner.plan_dispatch(self.setting.layout, seed, first, selector)

    def advance(self, seed: int, snapshot: Snapshot) -> DispatchResult:
        """Runs the next rounds of a run, as many as one dispatch holds.

        The snapshot's state is donated to the program. Raises DivergenceError if a client's update is broken, unless
        such clients are left out, or if the model isn't finite.
        """
        self.compile()
        state = snapshot.state
        memory = state.memory
        planned = self.take_planned(seed, snapshot.round, snapshot.selector)
        # Clients without a seat in this dispatch keep their rows on the host, where the new rows go back below.
        if planned.table is not None:
            state = state._replace(memory=gather(memory, planned.table))
        state = executable.place_state(state, self.federation.num_clients, self.setting.layout)
        key = jax.random.key(seed)
        state, info, evaluation = self._compiled(self.setting, key, state, planned.rounds, *self.on_device)
        done = snapshot.round + len(planned.plans)
        if done < self.rounds and not self.selector.closed_loop:
            # jax has only queued the program, and `device_get` below waits for it: until then the host plans the next
            # dispatch at no cost. A closed-loop selector can't, as its next choice depends on this dispatch's reports.
            # Not ideal: with the memory on the host, the devices wait while rows are scattered and gathered again.
            layout = self.setting.layout
            self._ahead = ((seed, done, layout), self.planner.plan_dispatch(layout, seed, done, planned.selector))
        info, evaluation = jax.device_get((info, evaluation))
        result = self.process_results(snapshot, planned, info, evaluation)
        if planned.table is not None:
            state = state._replace(memory=scatter(memory, planned.table, state.memory))
        return result._replace(snapshot=result.snapshot._replace(state=state))

    def process_results(
        self, snapshot: Snapshot, planned: PlannedDispatch, info: Info, evaluation: EvaluationResult
    ) -> DispatchResult:
        """Processes a dispatch's reports, leaves `[T, ...]`, on the host, and lets the selector learn from them.

        Raises DivergenceError if a client's update is broken, unless such clients are left out, if the model isn't
        finite, or if its test loss is NaN.
        """
        clients = self.federation.num_clients
        passes = self.setting.passes
        every = self.setting.evaluation.every
        exact = self.setting.evaluation.traffic == "exact"
        plans = []
        faults = []
        records = []
        samples = 0
        counts = snapshot.counts
        confusion = client_hits = None
        for offset, plan in enumerate(planned.plans):
            number = snapshot.round + offset + 1
            codes = info.broken[offset]
            if codes.any() and not self.execution.excludes:
                here = self.setting.optimizer.describe_rate(number - 1)
                message = fault_message(self.execution, plan, codes, here, self.federation.client_name)
                raise DivergenceError(f"round {number}: {message}")
            if not info.model_finite[offset]:
                raise DivergenceError(
                    f"round {number}: the global model is not finite after the server's step, though all "
                    "updates were; the usual cause is a server learning rate that is too "
                    f"high{self.setting.server.describe_rate(number - 1)}: lower it, or check what your own parts "
                    "return"
                )
            broken = find_faults(number, plan, codes)
            faults += broken
            # From here on, a client that was left out counts as one that didn't deliver.
            plan = plan._replace(delivered=plan.delivered & ((codes == 0) | (codes == LONG)))
            plans.append(plan)
            sizes = self.planner.sizes[plan.clients[plan.delivered]]
            limits = None if plan.limits is None else plan.limits[plan.delivered]
            samples += passes * int(self.setting.samples(sizes, self.setting.local_steps(sizes, limits)).sum())
            seconds = planned.seconds[offset] if planned.seconds else 0.0
            counts = count_round(counts, plan, clients, passes, self._traffic, exact, seconds).noted(broken)
            if planned.rounds.evaluate[offset]:
                evaluated, measured = _of_round(offset, (evaluation, dict(info.metrics)))
                if np.isnan(evaluated.loss):  # the largest of logits that are NaN would be that of class 0
                    raise DivergenceError(
                        f"round {number}: the global model is finite, but its loss on the test rows is NaN, as with "
                        "token ids that have no embedding, or with weights so large that logits overflow"
                    )
                closed = counts.closed(clients, self._closing_traffic)
                counted = closed.record(self.participation.speed is not None, self.federation.client_names)
                result = RoundResult(
                    self.federation, plan, evaluated, measured | counted | self._of_parts(number), self.groups
                )
                records.append({"round": number, **record_round(result)})
                confusion = np.asarray(evaluated.confusion)
                client_hits = None if evaluated.client_hits is None else np.asarray(evaluated.client_hits)
                if number % every == 0:
                    # Not reset after an additional evaluation of the last round, which an extended run doesn't have.
                    counts = self._no_counts
        chosen = np.concatenate([plan.clients[plan.clients < clients] for plan in plans])
        asked = snapshot.asked.copy()
        asked[chosen] = True
        selector = planned.selector
        if self.selector.closed_loop:  # a dispatch of one round
            selector = self.selector.update(selector, plans[0], _of_round(0, {LOSS: info.losses, **info.probes}))
        return DispatchResult(
            snapshot=Snapshot(snapshot.round + len(plans), snapshot.state, selector, counts, asked),
            records=records,
            confusion=confusion,
            client_hits=client_hits,
            chosen=chosen,
            client_updates=sum(int(plan.delivered.sum()) for plan in plans) * passes,
            samples=samples,
            work=planned.work,
            train_losses=[float(loss) for loss in info.metrics["train_loss"][: len(plans)]],
            faults=tuple(faults),
        )

    @functools.cached_property
    def _traffic(self) -> Traffic:
        return traffic_of(
            self.setting, self.federation.without_names(), self._shapes, losses=LOSS in self.selector.needs
        )

    @functools.cached_property
    def _closing_traffic(self) -> Traffic:
        return closing_traffic_of(self.setting, self.federation.without_names(), self._shapes)

    def _of_parts(self, rounds: int) -> dict[str, float]:
        """Returns the metrics that parts measure on the host (`Part.round_metrics`) after `rounds` rounds, by name."""
        clients = int(self.planner.training.sum())
        even = self.selector.even and self.participation.availability == always()
        most = min(self.selector.most, clients)
        past = RoundsSoFar(rounds, clients, most, even, self.selector.closed_loop, self.selector.chain_length)
        return {name: value for part in self.setting.parts for name, value in part.round_metrics(past).items()}

    def tested_model(self, seed: int, snapshot: Snapshot) -> Variables:
        """Returns the global model as it is evaluated after a snapshot's last round."""
        # Without the optimizer's state, the memory and the downloads, which evaluation doesn't read and every device
        # would have to hold in full.
        state = replicate(snapshot.state._replace(optimizer=(), memory={}, downloads=()), self.setting.layout)
        number = np.int32(snapshot.round - 1)
        tested = jax.jit(self.setting.traced(evaluated_model))
        return tested(self.setting, jax.random.key(seed), state, number, self.federation_on_device)


def _of_round(number: int, tree: PyTree) -> PyTree:
    """Selects one round from leaves `[T, ...]`."""
    return jax.tree.map(lambda leaf: leaf[number], tree)


def generated_images(simulation: Simulation, snapshot: Snapshot) -> np.ndarray | None:
    """Returns images from a part's generator, pixels `UInt8[c, S, H, W, K]`: S of each of the first c classes.

    None if no part has a generator, or none is trained yet.
    """
    images = [exhibit.images for exhibit in _exhibits(simulation, snapshot) if exhibit.images is not None]
    if not images:
        return None
    federation = simulation.federation
    pixels = (fetch(images[0]) * np.asarray(federation.std) + np.asarray(federation.mean)) * 255
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def shared_prototypes(simulation: Simulation, snapshot: Snapshot) -> tuple[Any, Any] | None:
    """Returns the classes' feature vectors that clients and server share, `Float[C, F]`, and which exist, `Bool[C]`.

    None if the method shares parameters only.
    """
    shared = [show.prototypes for show in _exhibits(simulation, snapshot) if show.prototypes is not None]
    return shared[0] if shared else None


def shares_prototypes(simulation: Simulation) -> bool:
    """Returns whether the method shares a feature vector of each class."""
    state = simulation.state_shapes().state
    shown = jax.eval_shape(
        exhibits, simulation.setting, jax.random.key(0), state, np.int32(0), simulation.federation_on_device
    )
    return any(exhibit.prototypes is not None for exhibit in shown.values())


def _exhibits(simulation: Simulation, snapshot: Snapshot) -> list[Exhibit]:
    """Returns the exhibits of the server parts that have begun."""
    begun = [part.slot for part in simulation.setting.parts_with(Server) if snapshot.round > part.first_round]
    state = snapshot.state._replace(optimizer=(), memory={}, downloads=())
    given = simulation.setting, jax.random.key(0), state, np.int32(snapshot.round - 1), simulation.federation_on_device
    shown = jax.jit(simulation.setting.traced(exhibits))(*given) if begun else {}
    return [shown[slot] for slot in begun]
