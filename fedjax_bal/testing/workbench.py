"""Runs a recipe on the toy federation, with as few compiled programs as possible."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.engine.device import (
    Assignment,
    ChainClients,
    DispatchPlan,
    RoundInputs,
    Setting,
    State,
    broadcast,
    evaluate_model,
    init_state,
    matmul_precision,
    run_round,
    zero_result,
)
from fedjax_bal.engine.host import Simulation, assign, build
from fedjax_bal.optim import AnyOptimizer
from fedjax_bal.options import Execution, LocalTraining, Participation
from fedjax_bal.parts import Report
from fedjax_bal.recipes import Recipe
from fedjax_bal.testing import toy
from fedjax_bal.testing.draws import key_of
from fedjax_bal.testing.observers import Padding, ReportTotals
from fedjax_bal.types import Federation, Key, Model, Plan, PyTree

ROUNDS, SILENT = 4, 2
"""Number of rounds of a run, and the round in which nothing is delivered."""

SEEDS = (0, 1)
QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compiler options for programs that run for a millisecond."""
if jax.__version_info__ < (0, 11):  # later versions may not have the option
    QUICKLY["xla_cpu_use_fusion_emitters"] = False


class ScheduledRound(NamedTuple):
    """One round as the program takes it.

    Attributes:
        number: the round, from 0.
        plan: the chains, and the clients that deliver.
        assignment: assignment of chains to devices.
    """

    number: Any
    plan: Plan
    assignment: Assignment


class Observed(NamedTuple):
    """The results in which two runs are compared.

    Attributes:
        state: everything that is carried.
        train_loss: of each round, `Float[T]`.
        test_loss: of each round, `Float[T]`.
        probes: by slot, of each client in each round, leaves `[T, N, ...]`; 0 for clients that sent none.
    """

    state: State
    train_loss: Any
    test_loss: Any
    probes: Any


class ObservedRound(NamedTuple):
    """A round's results besides its state: losses, and probes by slot, leaves `[G, L, ...]`."""

    train_loss: Any
    test_loss: Any
    probes: Any


@dataclasses.dataclass
class Bench:
    """A recipe on the toy federation.

    Attributes:
        recipe: the recipe.
        tolerance: largest difference, in units of a leaf's largest number or 1, that rounding may make.
        model: the toy's, or another one.
        federation: the toy's, or another one.
        test: the toy's, or another one.
        local: None for the toy's.
        participation: None for the toy's.
        server_optimizer: None for the recipe's.
        traces: how often the program has been traced.
        differences: effects of variations that have been looked at.
    """

    recipe: Recipe
    tolerance: float = 2e-6
    model: Model = dataclasses.field(default_factory=toy.network)
    federation: Federation = dataclasses.field(default_factory=toy.federation)
    test: tuple[Any, Any] = dataclasses.field(default_factory=toy.test_set)
    local: LocalTraining | None = None
    participation: Participation | None = None
    server_optimizer: AnyOptimizer | None = None
    traces: int = 0
    differences: dict[tuple[str, ...], str | None] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def simulation(self) -> Simulation:
        """The recipe as any user would run it."""
        return build(
            self.recipe, self.model, self.federation, self.test, rounds=ROUNDS,
            local=self.local or toy.local_training(self.model),
            participation=self.participation or toy.participation(self.recipe),
            execution=Execution(strategy="map", devices=1), server_optimizer=self.server_optimizer,
        )  # fmt: skip

    @functools.cached_property
    def setting(self) -> Setting:
        """The simulation's setting, with the battery's own observing parts added."""
        setting = self.simulation.setting
        totals = (ReportTotals(),) if setting.parts_with(Report) else ()
        return dataclasses.replace(setting, parts=(Padding(), *setting.parts, *totals))

    @functools.cached_property
    def base(self) -> dict[int, Observed]:
        """The runs that all others must agree with, by seed."""
        return {seed: seen for seed, (_, seen) in self._runs.items()}

    @functools.cached_property
    def states(self) -> dict[int, list[State]]:
        """The states before each round of these runs and after the last one, by seed."""
        return {seed: states for seed, (states, _) in self._runs.items()}

    @functools.cached_property
    def _runs(self) -> dict[int, tuple[list[State], Observed]]:
        return {seed: self.run_with_states(self.plans(seed), seed) for seed in SEEDS}

    @functools.cached_property
    def _program(self) -> Any:
        def counted(*arguments: Any) -> tuple[State, ObservedRound]:
            self.traces += 1
            return one_round(*arguments)

        return compile_quickly(counted)

    @functools.cached_property
    def _first_state(self) -> Any:
        return compile_quickly(first_state)

    @functools.cached_property
    def data(self) -> tuple[Any, ...]:
        """The federation and the test set on the device."""
        return jax.device_put((self.simulation.federation, self.simulation.test))

    def plans(self, seed: int) -> list[Plan]:
        """The plan of each round; in one round nothing is delivered."""
        selector = self.simulation.selector
        state, plans = selector.init(seed, self.simulation.federation.num_clients), []
        for number in range(ROUNDS):
            plan, state = self.simulation.plan(seed, number, state)
            plans.append(plan._replace(delivered=plan.delivered & (number != SILENT)))
        return plans

    def steps(self, plan: Plan) -> np.ndarray:
        """Local steps per pass of each client that delivers, `Int[G, L]`; 0 for the others."""
        sizes = np.diff(self.simulation.federation.offsets)
        inside = np.minimum(plan.clients, len(sizes) - 1)
        return self.setting.local_steps(sizes[inside], plan.limits) * plan.delivered

    def start(self, seed: int = 0, setting: Setting | None = None) -> State:
        """The state before the first round."""
        return jax.device_get(self._first_state(setting or self.setting, key_of(seed), self.data[0]))

    def run(self, plans: Sequence[Plan], seed: int = 0, **changes: Any) -> Observed:
        """As `run_with_states`, without the states."""
        return self.run_with_states(plans, seed, **changes)[1]

    def run_with_states(
        self,
        plans: Sequence[Plan],
        seed: int = 0,
        *,
        setting: Setting | None = None,
        federation: Federation | None = None,
    ) -> tuple[list[State], Observed]:
        """Runs the one compiled program round by round, with other numbers in the setting or other data if given.

        Returns the states before each round and after the last one, and the results.
        """
        setting, data = setting or self.setting, (federation or self.data[0], self.data[1])
        states, shown = [self.start(seed, setting)], []
        for number, plan in enumerate(plans):
            row = self.row(setting, plan, number)
            state, seen = jax.device_get(self._program(setting, key_of(seed), states[-1], row, *data))
            states.append(state)
            shown.append(self.by_client(seen, plan))
        return states, Observed(states[-1], *stack(shown))

    def row(self, setting: Setting, plan: Plan, number: int) -> ScheduledRound:
        """A round as the program takes it, with the order of its chains unchanged."""
        dealt, _ = assign(setting.layout, setting.passes * self.steps(plan), plan.delivered.any(1))
        return ScheduledRound(np.int32(number), plan, dealt)

    def by_client(self, shown: ObservedRound, plan: Plan) -> ObservedRound:
        """Arranges probes by client: leaves `[G, L, ...]` to `[N, ...]`."""
        clients = self.simulation.federation.num_clients

        def one(leaf: np.ndarray) -> np.ndarray:
            found = np.zeros((clients + 1, *leaf.shape[2:]), leaf.dtype)
            found[plan.clients] = leaf
            return found[:-1]

        return shown._replace(probes=jax.tree.map(one, shown.probes))


def first_state(setting: Setting, key: Key, federation: Federation) -> State:
    """The state before the first round."""
    state = init_state(setting, key, federation)
    server = {
        slot: _no_reports(setting, key, state, federation) if slot == ReportTotals().slot else own
        for slot, own in state.server.items()
    }
    return state._replace(server=server)


def one_round(
    setting: Setting,
    key: Key,
    state: State,
    row: ScheduledRound,
    federation: Federation,
    test: Any,
    tested: bool = True,
) -> tuple[State, ObservedRound]:
    """A round and its evaluation: the state after it, and its results.

    The host runs the rounds one after another, because a loop around them would take twice as long to compile.
    """
    planned = DispatchPlan(row.number, True, tested, row.plan, row.plan.clients, row.assignment)
    with jax.default_matmul_precision(matmul_precision(setting.precision)):
        state, info = run_round(setting, key, state, planned, federation)
        loss = evaluate_model(setting, key, state, row.number, federation, test).loss if tested else jnp.zeros(())
    return state, ObservedRound(info.metrics["train_loss"], loss, info.probes)


def compile_quickly(function: Any) -> Any:
    """Compiles a function, and traces it again for each workbench, because a part's code may have changed."""

    def traced_again(*arguments: Any) -> Any:
        return function(*arguments)

    return jax.jit(traced_again, compiler_options=QUICKLY)


def _no_reports(setting: Setting, key: Key, state: State, federation: Federation) -> PyTree:
    """Zeros in the shapes of what a client reports."""
    return zero_result(setting, *one_client(setting, key, state, federation)).reports


def one_client(setting: Setting, key: Key, state: State, federation: Federation) -> tuple[RoundInputs, ChainClients]:
    """The inputs of the first client in the first round."""
    zero = jnp.zeros((), jnp.int32)
    shared = RoundInputs(key, zero, state.variables, broadcast(setting, key, zero, state, federation)[1], federation)
    return shared, ChainClients(zero, jnp.ones((), bool), jax.tree.map(lambda leaf: leaf[0], state.memory))


def stack(items: Sequence[PyTree]) -> PyTree:
    """Stacks trees of arrays along a new first axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *items)
