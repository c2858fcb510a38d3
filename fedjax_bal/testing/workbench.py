"""Runs of a recipe on the toy federation, in many variations, with as few compiled programs as possible."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.engine.device import (
    Assignment,
    ChainClients,
    DispatchPlan,
    Layout,
    RoundInputs,
    Setting,
    State,
    broadcast,
    client_context,
    evaluate_model,
    init_state,
    matmul_precision,
    run_round,
    zero_result,
)
from fedjax_bal.engine.host import Simulation, assign, build
from fedjax_bal.optim import Optimizer
from fedjax_bal.options import Execution, LocalTraining, Participation
from fedjax_bal.parts import Memory, Refine, Report, Start
from fedjax_bal.recipes import Recipe
from fedjax_bal.testing import toy
from fedjax_bal.testing.compare import difference
from fedjax_bal.testing.draws import key_of
from fedjax_bal.testing.observers import Padding, ReportTotals
from fedjax_bal.testing.place import place
from fedjax_bal.testing.uncompiled import uncompiled
from fedjax_bal.types import Federation, Key, Model, Plan, PyTree

ROUNDS, SILENT = 4, 2
"""Number of rounds of a run, and the round in which nothing is delivered."""

SEEDS = (0, 1)
_QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compiler options for programs that run for a millisecond."""
if jax.__version_info__ < (0, 11):  # later versions may not have the option
    _QUICKLY["xla_cpu_use_fusion_emitters"] = False

VARIATIONS = ("seeds", "lanes", "length", "places", "devices")
"""Variations of a run that must not change its result.

Two seeds in one `vmap`; several clients at a time; room for far larger clients; two more places in a round, which stay
empty; two devices.
"""


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
    """

    recipe: Recipe
    tolerance: float = 2e-6
    model: Model = dataclasses.field(default_factory=toy.network)
    federation: Federation = dataclasses.field(default_factory=toy.federation)
    test: tuple[Any, Any] = dataclasses.field(default_factory=toy.test_set)
    local: LocalTraining | None = None
    participation: Participation | None = None
    server_optimizer: Optimizer | None = None
    traces: int = 0

    @functools.cached_property
    def simulation(self) -> Simulation:
        """The recipe as any user would run it."""
        return build(
            self.recipe,
            self.model,
            self.federation,
            self.test,
            rounds=ROUNDS,
            local=self.local or toy.local_training(self.model),
            participation=self.participation or toy.participation(self.recipe),
            execution=Execution(strategy="map", devices=1),
            server_optimizer=self.server_optimizer,
        )

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
    def variations(self) -> tuple[str, ...]:
        """The variations that this machine can make."""
        return VARIATIONS if jax.device_count() > 1 else VARIATIONS[:-1]

    @functools.cached_property
    def difference_of_all(self) -> str | None:
        """The effect of all variations at once, in words; None without any."""
        return self._difference(self.variations)

    def difference_of(self, variation: str) -> str | None:
        """The effect of one variation alone, in words; None without any."""
        if variation not in self._single_differences:
            self._single_differences[variation] = self._difference([variation])
        return self._single_differences[variation]

    @functools.cached_property
    def _single_differences(self) -> dict[str, str | None]:
        return {}

    @functools.cached_property
    def _program(self) -> Any:
        def counted(*arguments: Any) -> tuple[State, ObservedRound]:
            self.traces += 1
            return one_round(*arguments)

        return _compile_quickly(counted)

    @functools.cached_property
    def _first_state(self) -> Any:
        return _compile_quickly(first_state)

    @functools.cached_property
    def _data(self) -> tuple[Any, ...]:
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
        return jax.device_get(self._first_state(setting or self.setting, key_of(seed), self._data[0]))

    def run(
        self,
        plans: Sequence[Plan],
        seed: int = 0,
        *,
        setting: Setting | None = None,
        federation: Federation | None = None,
    ) -> Observed:
        """Runs the one compiled program round by round, with other numbers in the setting or other data if given."""
        return self.run_with_states(plans, seed, setting=setting, federation=federation)[1]

    def run_with_states(
        self,
        plans: Sequence[Plan],
        seed: int = 0,
        *,
        setting: Setting | None = None,
        federation: Federation | None = None,
    ) -> tuple[list[State], Observed]:
        """As `run`, with the state before each round and after the last one."""
        setting, data = setting or self.setting, (federation or self._data[0], self._data[1])
        states, shown = [self.start(seed, setting)], []
        for number, plan in enumerate(plans):
            row = self.row(setting, plan, number)
            state, seen = jax.device_get(self._program(setting, key_of(seed), states[-1], row, *data))
            states.append(state)
            shown.append(self._by_client(seen, plan))
        return states, Observed(states[-1], *_stack(shown))

    def row(self, setting: Setting, plan: Plan, number: int) -> ScheduledRound:
        """A round as the program takes it, with the order of its chains unchanged."""
        dealt, _ = assign(setting.layout, setting.passes * self.steps(plan), plan.delivered.any(1))
        return ScheduledRound(np.int32(number), plan, dealt)

    def _by_client(self, shown: ObservedRound, plan: Plan) -> ObservedRound:
        """Arranges probes by client: leaves `[G, L, ...]` to `[N, ...]`."""
        clients = self.simulation.federation.num_clients

        def one(leaf: np.ndarray) -> np.ndarray:
            found = np.zeros((clients + 1, *leaf.shape[2:]), leaf.dtype)
            found[plan.clients] = leaf
            return found[:-1]

        return shown._replace(probes=jax.tree.map(one, shown.probes))

    @functools.cached_property
    def padded(self) -> np.ndarray:
        """Clients whose last batch isn't full and is reached, `Bool[N]`."""
        setting, sizes = self.setting, np.diff(self.simulation.federation.offsets)
        reached = np.minimum(setting.steps_per_epoch(sizes), setting.local_steps(sizes))
        return (sizes % setting.batch_size > 0) & (reached >= -(-sizes // setting.batch_size))

    @functools.cached_property
    def padded_plan(self) -> Plan:
        """A round of at most half of the clients: first those whose last batch isn't full, then others that train."""
        sizes, plan = np.diff(self.simulation.federation.offsets), self.plans(SEEDS[0])[0]
        trains = self.setting.local_steps(sizes) > 0
        first = np.argsort(np.where(self.padded, 0, np.where(trains, 1, 2)), kind="stable")
        chosen = first[: min(plan.clients.size, max(1, len(sizes) // 2))]
        clients = np.full(plan.clients.size, len(sizes), plan.clients.dtype)
        clients[: len(chosen)] = chosen
        clients = clients.reshape(plan.clients.shape)
        limits = None if plan.limits is None else np.full_like(plan.limits, self.setting.most_steps)
        return plan._replace(clients=clients, delivered=clients < len(sizes), limits=limits)

    @property
    def drops_lone_rows(self) -> bool:
        """Whether the simulation leaves out last batches of a single row."""
        lone = (np.diff(self.federation.offsets) % self.setting.batch_size == 1).any()
        return bool(lone and not (np.diff(self.simulation.federation.offsets) % self.setting.batch_size == 1).any())

    @functools.cached_property
    def uncompiled_case(self) -> list[Plan] | None:
        """The plans up to the round that is run without compilation; None if no round is suitable.

        Suitable rounds come after a delivery, and after the first round of every part. Of one, at most two chains are
        kept, with few steps: preferably clients that train a second time, then a client with more than one step.
        """
        plans = self.plans(SEEDS[0])
        begun = max(part.first_round for part in self.setting.parts)
        cases = [case for number in range(max(1, begun), ROUNDS) for case in self._rank_pairs(plans, number)]
        if not cases:
            return None
        _, number, chosen = max(cases)
        left = np.isin(np.arange(len(plans[number].clients)), chosen)[:, None]
        return [*plans[:number], plans[number]._replace(delivered=plans[number].delivered & left)]

    def _rank_pairs(self, plans: Sequence[Plan], number: int) -> list[tuple[Any, int, tuple[int, ...]]]:
        """Pairs of a round's chains that may train without compilation, each with its rank."""
        before = [plan.clients[self.steps(plan) > 0] for plan in plans[:number]]
        known = set(np.concatenate(before).tolist())
        steps, clients = self.steps(plans[number]), plans[number].clients
        active = np.flatnonzero(steps.sum(1)).tolist()
        found = []
        for chosen in itertools.combinations(active, min(2, len(active))) if known and active else ():
            own = steps[list(chosen)]
            again = not known.isdisjoint(clients[list(chosen)][own > 0].tolist())
            if again or not self.setting.parts_with(Memory):
                found.append(((len(chosen), again, bool((own > 1).any()), -int(own.sum())), number, chosen))
        return found

    def uncompiled_difference(self, plans: Sequence[Plan]) -> str | None:
        """The effect of compiling, in words, on the state before the first round and on the last round of the plans."""
        states, seen = self.run_with_states(plans)
        last = ObservedRound(seen.train_loss[-1], seen.test_loss[-1], jax.tree.map(lambda leaf: leaf[-1], seen.probes))
        setting, key = self.setting, key_of(SEEDS[0])
        presents = any(part.evaluation_only for part in setting.parts_with(Refine))  # without them all are tested alike
        before, row = jax.tree.map(jnp.asarray, (states[-2], self.row(setting, plans[-1], len(plans) - 1)))
        with uncompiled():
            first = init_state(self.simulation.setting, key, self._data[0])
            state, shown = one_round(setting, key, before, row, *self._data, tested=presents)
        first, state, shown = jax.device_get((first, state, shown))
        wanted = last if presents else last._replace(test_loss=shown.test_loss)
        got = (first, state, self._by_client(shown, plans[-1]))
        server = {slot: states[0].server[slot] for slot in first.server}  # without totals of reports
        return difference(got, (states[0]._replace(server=server), states[-1], wanted), self.tolerance)

    @functools.cached_property
    def idle_starts(self) -> list[str]:
        """The parts with which clients begin with all that they received, whatever is computed, by slot."""
        idle = []

        def begin(setting: Setting, key: Key, federation: Federation) -> None:
            state = init_state(setting, key, federation)
            shared, client = _one_client(setting, key, state, federation)
            ctx = client_context(setting, shared, state.variables, client)
            for part in setting.parts_with(Start):
                pairs = zip(*map(jax.tree.leaves, (part.start(ctx.start, ctx), ctx.start)), strict=True)
                idle.extend([part.slot] if all(new is old for new, old in pairs) else [])

        if self.setting.parts_with(Start):
            jax.eval_shape(begin, self.simulation.setting, key_of(SEEDS[0]), self._data[0])
        return idle

    def varied(self, variations: Iterable[str]) -> dict[int, Observed]:
        """Runs the same rounds with some `VARIATIONS`; results by seed, of the first one only unless seeds vary."""
        asked = set(variations)
        setting, rows = self.varied_rows(asked)
        if "seeds" in asked:
            return self._vary_seeds(setting, rows)
        seed, program, shown = SEEDS[0], _compile_quickly(one_round), []
        state = self.start(seed)
        for row in rows[seed]:
            state, seen = jax.device_get(program(setting, key_of(seed), state, row, *self._data))
            shown.append(self._by_client(seen, row.plan))
        return {seed: Observed(state, *_stack(shown))}

    def _vary_seeds(self, setting: Setting, rows: dict[int, list[ScheduledRound]]) -> dict[int, Observed]:
        """Runs all seeds in one `vmap`."""
        keys = jnp.stack([key_of(seed) for seed in SEEDS])
        states = jax.device_get(_compile_quickly(jax.vmap(first_state, (None, 0, None)))(setting, keys, self._data[0]))
        program, shown = _compile_quickly(_all_seeds), []
        for of_round in zip(*(rows[seed] for seed in SEEDS), strict=True):
            states, seen = jax.device_get(program(setting, keys, states, _stack_rows(of_round), *self._data))
            shown.append([self._by_client(_take(seen, at), row.plan) for at, row in enumerate(of_round)])
        runs = enumerate(zip(SEEDS, zip(*shown, strict=True), strict=True))
        return {seed: Observed(_take(states, at), *_stack(own)) for at, (seed, own) in runs}

    def varied_rows(self, variations: Iterable[str]) -> tuple[Setting, dict[int, list[ScheduledRound]]]:
        """The setting and the rounds of `varied`, by seed."""
        asked = set(variations)
        extra = 2 if "places" in asked else 0
        plans = {seed: [_with_empty_places(plan, extra, self) for plan in self.plans(seed)] for seed in SEEDS}
        setting = self._vary_layout(asked, len(plans[SEEDS[0]][0].clients))
        rows = {seed: [self.row(setting, plan, at) for at, plan in enumerate(own)] for seed, own in plans.items()}
        return setting, rows

    def _difference(self, variations: Iterable[str]) -> str | None:
        try:
            varied = self.varied(variations)
        except Exception as error:
            return f"{type(error).__name__} ({error}){place(error)}"
        return difference(varied, {seed: self.base[seed] for seed in varied}, self.tolerance)

    def _vary_layout(self, asked: set[str], groups: int) -> Setting:
        selector = self.simulation.selector
        devices = 2 if "devices" in asked else 1
        layout = Layout("map", devices)
        if "lanes" in asked:
            width = min(3, -(-groups // devices))
            layout = Layout("vmap", devices, width, lanes=selector.chain_length == 1 and selector.passes == 1)
        longer = 3 if "length" in asked else 1
        return dataclasses.replace(self.setting, layout=layout, max_size=longer * self.setting.max_size)


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


def _compile_quickly(function: Any) -> Any:
    """Compiles a function, and traces it again for each workbench, because a part's code may have changed."""

    def traced_again(*arguments: Any) -> Any:
        return function(*arguments)

    return jax.jit(traced_again, compiler_options=_QUICKLY)


def _no_reports(setting: Setting, key: Key, state: State, federation: Federation) -> PyTree:
    """Zeros in the shapes of what a client reports."""
    return zero_result(setting, *_one_client(setting, key, state, federation)).reports


def _one_client(setting: Setting, key: Key, state: State, federation: Federation) -> tuple[RoundInputs, ChainClients]:
    """What the first client gets in the first round."""
    zero = jnp.zeros((), jnp.int32)
    shared = RoundInputs(key, zero, state.variables, broadcast(setting, key, zero, state, federation)[1], federation)
    return shared, ChainClients(zero, jnp.ones((), bool), jax.tree.map(lambda leaf: leaf[0], state.memory))


def _take(tree: PyTree, place: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[place], tree)


def _stack(items: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *items)


def _with_empty_places(plan: Plan, extra: int, bench: Bench) -> Plan:
    width: Any = ((0, extra), (0, 0))
    nobody = bench.simulation.federation.num_clients
    limits = None if plan.limits is None else np.pad(plan.limits, width)
    return Plan(np.pad(plan.clients, width, constant_values=nobody), np.pad(plan.delivered, width), limits)


def _stack_rows(rows: Sequence[ScheduledRound]) -> ScheduledRound:
    """Stacks rounds of several runs; their number is the same and stays unstacked."""
    return ScheduledRound(rows[0].number, *_stack([(row.plan, row.assignment) for row in rows]))


def _all_seeds(
    setting: Setting, keys: Any, states: State, rows: ScheduledRound, *data: Any
) -> tuple[State, ObservedRound]:
    """A round of several runs by one `vmap`."""
    axes = ScheduledRound(None, 0, 0)  # pyright: ignore[reportArgumentType]
    one = lambda key, state, row: one_round(setting, key, state, row, *data)
    return jax.vmap(one, (0, 0, axes))(keys, states, rows)
