"""Runs a recipe on the toy federation in all ways that must agree, with as few compiled programs as possible."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from fedjax_bal.engine.device import (
    DispatchPlan,
    Layout,
    Setting,
    State,
    evaluate_model,
    init_state,
    matmul_precision,
    run_round,
)
from fedjax_bal.engine.host import Simulation, assign, build_simulation
from fedjax_bal.optim import AnyOptimizer
from fedjax_bal.options import Execution, LocalTraining, Participation
from fedjax_bal.parts import Batches, Deliver, Report, Server, part, static
from fedjax_bal.recipes import Recipe
from fedjax_bal.testing import toy
from fedjax_bal.testing.report import difference, place
from fedjax_bal.types import (
    Array,
    Batch,
    Context,
    Federation,
    Key,
    Model,
    Outcome,
    Plan,
    PyTree,
    ServerContext,
    Variables,
)

ROUNDS = 4
SILENT = 2  # the round without updates
"""Number of rounds of a run, and the round without updates."""

SEEDS = (0, 1)
VARIATIONS = ("seeds", "lanes", "length", "places", "devices")
"""Ways to run the same rounds: both seeds in one `vmap`; several clients at a time; clients padded to three times the
size; two more places in a round, which stay empty; two devices."""

EXECUTION = Execution(strategy="map", devices=1, broken_clients="exclude", huge_factor=None)
"""All runs leave out broken clients, so that the check of it needs no other program."""

QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compiler options for programs that run for a millisecond."""
if jax.__version_info__ < (0, 11):  # later versions may lack this option
    QUICKLY["xla_cpu_use_fusion_emitters"] = False


@part
class Disturbance(Batches, Deliver):
    """Changes padded rows, and breaks the update of a client; with the defaults, it does neither.

    Attributes:
        padding: number added to the pixels and, rounded, to the labels of padded rows.
        broken: id of the client whose trained parameters become nan.
    """

    padding: float = 0.0
    broken: int = -1

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """Shifts padded rows; real rows don't change."""
        real = batch.real.reshape(-1, *[1] * (batch.images.ndim - 1))
        images = jnp.where(real, batch.images, batch.images + self.padding)
        shift = jnp.asarray(self.padding).astype(batch.labels.dtype)
        others = (batch.labels + shift) % ctx.federation.num_classes
        return batch._replace(images=images, labels=jnp.where(batch.real, batch.labels, others))

    def deliver(self, outcome: Outcome) -> Variables:
        """Returns the trained variables, or broken ones."""
        spoilt = jnp.where(outcome.ctx.client == self.broken, jnp.nan, 0.0)
        return outcome.end._replace(params=jax.tree.map(lambda leaf: leaf + spoilt, outcome.end.params))


@part
class ReportTotals(Server):
    """Sums all reports to a number for each slot, so that reports without a reading server part are compared, too."""

    slots: tuple[str, ...] = static(())
    by_client: frozenset[str] = static(frozenset())

    def init_server(self, server: ServerContext) -> PyTree:
        """Returns zeros."""
        return dict.fromkeys(self.slots, jnp.zeros(()))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Sends nothing."""
        return server.state, ()

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Adds the round's reports; each entry has a different weight, so that moved entries change the sum."""
        # A client's position in the cohort means nothing.
        reports = dict(server.aggregate.reports)
        for slot in self.by_client:
            reports[slot] = jax.tree.map(lambda leaf: leaf.sum((0, 1)), reports[slot])
        weighted = lambda leaf: (leaf.ravel() / (1.0 + jnp.arange(leaf.size))).sum()
        return {slot: old + sum(map(weighted, jax.tree.leaves(reports[slot]))) for slot, old in server.state.items()}


class Observed(NamedTuple):
    """The results by which two runs are compared, or those of one round.

    Attributes:
        state: the final state.
        train_loss: of each round, `Float[T]`.
        test_loss: of each round, `Float[T]`.
        probes: by slot, of each client in each round, leaves `[T, N, ...]`; 0 for clients that sent none.
        broken: fault of each client's update in each round, a code of `fedjax_bal.metrics.traffic`, `Int[T, N]`.
    """

    state: State
    train_loss: Any
    test_loss: Any
    probes: Any
    broken: Any


@dataclasses.dataclass(eq=False)
class Bench:
    """A recipe on the toy federation, or on another one.

    Attributes:
        recipe: the recipe.
        tolerance: largest difference due to rounding, relative to a leaf's largest number or to 1.
        model: the model.
        federation: the clients' data.
        test: images and labels of the test set.
        local: local training; None for the toy's.
        participation: participation; None for the toy's.
        server_optimizer: the server's optimizer; None for the recipe's.
        traces: number of times that the program was traced.
        effects: cached effects of variations.
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
    effects: dict[tuple[str, ...], str | None] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def simulation(self) -> Simulation:
        """The simulation that a user would run."""
        return build_simulation(
            self.recipe, self.model, self.federation, self.test, rounds=ROUNDS,
            local=self.local or toy.local_training(self.model),
            participation=self.participation or toy.participation(self.recipe),
            execution=EXECUTION, server_optimizer=self.server_optimizer,
        )  # fmt: skip

    @functools.cached_property
    def setting(self) -> Setting:
        """The simulation's setting, with the battery's parts added."""
        setting = self.simulation.setting
        reporting = setting.parts_with(Report)
        by_client = frozenset(part.slot for part in reporting if part.by_client)
        totals = (ReportTotals(tuple(part.slot for part in reporting), by_client),) if reporting else ()
        return dataclasses.replace(setting, parts=(Disturbance(), *setting.parts, *totals))

    def disturbed(self, **changes: Any) -> Setting:
        """The setting with other values of the `Disturbance`."""
        return dataclasses.replace(self.setting, parts=(Disturbance(**changes), *self.setting.parts[1:]))

    @functools.cached_property
    def data(self) -> tuple[Any, ...]:
        """The federation and the test set on the device."""
        return jax.device_put((self.simulation.federation.without_names(), self.simulation.test))

    @functools.cached_property
    def _runs(self) -> dict[int, tuple[list[State], Observed]]:
        return {seed: self.run_with_states(self.plans(seed), seed) for seed in SEEDS}

    @property
    def base(self) -> dict[int, Observed]:
        """The results, by seed, with which all other runs must agree."""
        return {seed: results for seed, (_, results) in self._runs.items()}

    @property
    def states(self) -> dict[int, list[State]]:
        """The states before each round of the base runs and after the last one, by seed."""
        return {seed: states for seed, (states, _) in self._runs.items()}

    @functools.cached_property
    def program(self) -> Any:
        """The compiled round of all runs whose shapes and layout are the base runs'."""

        def counted(*arguments: Any) -> Observed:
            self.traces += 1
            return one_round(*arguments)

        return compile_quickly(counted)

    @functools.cached_property
    def first_state(self) -> Any:
        """A compiled function of a setting, a key and a federation: the state before the first round."""
        return compile_quickly(init_state)

    def plans(self, seed: int) -> list[Plan]:
        """Returns the plan of each round; in round `SILENT` no client delivers."""
        state = self.simulation.selector.init(seed, self.simulation.federation.num_clients)
        plans = []
        for number in range(ROUNDS):
            plan, state = self.simulation.plan(seed, number, state)
            plans.append(plan._replace(delivered=plan.delivered & (number != SILENT)))
        return plans

    def steps(self, plan: Plan) -> np.ndarray:
        """Returns the local steps per pass of each client that delivers, `Int[G, L]`; 0 for the others."""
        sizes = self.simulation.federation.sizes
        inside = np.minimum(plan.clients, len(sizes) - 1)
        return self.setting.local_steps(sizes[inside], plan.limits) * plan.delivered

    def row(self, setting: Setting, plan: Plan, number: int) -> DispatchPlan:
        """Builds a round's dispatch plan, with the order of its chains unchanged."""
        assignment, _ = assign(setting.layout, setting.passes * self.steps(plan), plan.delivered.any(1))
        return DispatchPlan(np.int32(number), np.True_, np.True_, plan, plan.clients, assignment)

    def run(self, plans: Sequence[Plan], seed: int = 0, **changes: Any) -> Observed:
        """Like `run_with_states`, without the states."""
        return self.run_with_states(plans, seed, **changes)[1]

    def run_with_states(
        self,
        plans: Sequence[Plan],
        seed: int = 0,
        *,
        setting: Setting | None = None,
        federation: Federation | None = None,
        program: Any = None,
    ) -> tuple[list[State], Observed]:
        """Runs the base program, or a given one, round by round, with other settings or data if given.

        The host loops over the rounds, because a loop in the program would take twice as long to compile.

        Returns the states before each round and after the last one, and the results.
        """
        setting = setting or self.setting
        data = ((federation or self.data[0]).without_names(), self.data[1])
        states = [jax.device_get(self.first_state(self.setting, key_of(seed), self.data[0]))]
        rounds = []
        for number, plan in enumerate(plans):
            row = self.row(setting, plan, number)
            results = (program or self.program)(setting, key_of(seed), states[-1], row, *data)
            rounds.append(self._by_client(jax.device_get(results), plan))
            states.append(rounds[-1].state)
        return states, stack(rounds)._replace(state=states[-1])

    def effect(self, *variations: str) -> str | None:
        """Describes the effect of some `VARIATIONS` combined; None if there is none."""
        if variations not in self.effects:
            try:
                results = self.varied(*variations)
            except Exception as error:
                self.effects[variations] = f"{type(error).__name__} ({error}){place(error)}"
            else:
                base = {seed: self.base[seed] for seed in results}
                self.effects[variations] = difference(results, base, self.tolerance)
        return self.effects[variations]

    def varied(self, *variations: str) -> dict[int, Observed]:
        """Runs the same rounds with some `VARIATIONS`; returns results by seed, of seed 0 only unless seeds vary."""
        extra: Any = ((0, 2 if "places" in variations else 0), (0, 0))
        empty = self.simulation.federation.num_clients

        def widened(plan: Plan) -> Plan:
            clients = np.pad(plan.clients, extra, constant_values=empty)
            others = (None if leaf is None else np.pad(leaf, extra) for leaf in (plan.limits, plan.staleness))
            return Plan(clients, np.pad(plan.delivered, extra), *others)

        plans = {seed: [widened(plan) for plan in self.plans(seed)] for seed in SEEDS}
        devices = 2 if "devices" in variations else 1
        layout = Layout("map", devices)
        if "lanes" in variations:
            width = min(3, -(-len(plans[0][0].clients) // devices))
            selector = self.simulation.selector
            layout = Layout("vmap", devices, width, lanes=selector.chain_length == 1 and selector.passes == 1)
        longer = 3 if "length" in variations else 1
        setting = dataclasses.replace(self.setting, layout=layout, max_size=longer * self.setting.max_size)
        if "seeds" not in variations:
            return {0: self.run(plans[0], setting=setting, program=compile_quickly(one_round))}

        # Both seeds are batched; the number of the round is the same and isn't.
        keys = jnp.stack([key_of(seed) for seed in SEEDS])
        states = stack([jax.device_get(self.first_state(self.setting, key_of(seed), self.data[0])) for seed in SEEDS])
        axes = DispatchPlan(None, None, None, 0, 0, 0)  # pyright: ignore[reportArgumentType]
        program = compile_quickly(jax.vmap(one_round, (None, 0, 0, axes, None, None)))
        rounds: dict[int, list[Observed]] = {seed: [] for seed in SEEDS}
        for number in range(ROUNDS):
            row = stack([self.row(setting, plans[seed][number], number) for seed in SEEDS])
            row = row._replace(number=np.int32(number), live=np.True_, evaluate=np.True_)
            results = jax.device_get(program(setting, keys, states, row, *self.data))
            states = results.state
            for seed in SEEDS:
                rounds[seed].append(self._by_client(_take(results, seed), plans[seed][number]))
        return {seed: stack(own)._replace(state=own[-1].state) for seed, own in rounds.items()}

    def _by_client(self, results: Observed, plan: Plan) -> Observed:
        """Arranges probes and faults by client: leaves `[G, L, ...]` to `[N, ...]`."""
        clients = self.simulation.federation.num_clients

        def arranged(leaf: np.ndarray) -> np.ndarray:
            by_client = np.zeros((clients + 1, *leaf.shape[2:]), leaf.dtype)
            by_client[plan.clients] = leaf
            return by_client[:-1]

        return results._replace(probes=jax.tree.map(arranged, results.probes), broken=arranged(results.broken))


def one_round(
    setting: Setting, key: Key, state: State, row: DispatchPlan, federation: Federation, test: Any
) -> Observed:
    """Runs a round and its evaluation; returns the state after it and its results, probes and faults by place."""
    with jax.default_matmul_precision(matmul_precision(setting.execution.precision)):
        state, info = run_round(setting, key, state, row, federation)
        loss = evaluate_model(setting, key, state, row.number, federation, test).loss
    return Observed(state, info.metrics["train_loss"], loss, info.probes, info.broken)


def compile_quickly(function: Any) -> Any:
    """Jits a new wrapper of a function, so that nothing is reused of earlier traces: a part's code may have changed."""

    def traced_again(*arguments: Any) -> Any:
        return function(*arguments)

    return jax.jit(traced_again, compiler_options=QUICKLY)


def stack(items: Sequence[PyTree]) -> PyTree:
    """Stacks trees of arrays along a new first axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *items)


def _take(tree: PyTree, index: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], tree)


# Random numbers come from a hash of a few operations instead of JAX's generator, which is a third of a small program.
# Both sides of a comparison draw the same words, so their quality doesn't matter.


def key_of(seed: int) -> Key:
    """Returns a run's key for the hash-based generator."""
    return jax.random.key(seed, impl=_HASHED)


def _mix(words: Any) -> Any:
    """Mixes the bits of each word with the finalizer of the hash function `lowbias32`."""
    words = (words ^ (words >> 16)) * np.uint32(0x7FEB352D)
    words = (words ^ (words >> 15)) * np.uint32(0x846CA68B)
    return words ^ (words >> 16)


def _fold(key: Array, number: Any) -> Array:
    first = _mix(key[0] ^ _mix(number + np.uint32(0x9E3779B9)))
    return jnp.stack([first, _mix(key[1] + first)])


def _hashes(key: Array, length: int) -> Array:
    return _mix(key[0] ^ _mix(key[1] + jnp.arange(length, dtype=np.uint32)))


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    other = _fold(key, jnp.uint32(1))
    return jnp.stack([_hashes(other, math.prod(shape)), _hashes(key, math.prod(shape))], -1).reshape(*shape, 2)


def _words(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    words = _hashes(key, math.prod(shape)).reshape(shape)
    if bit_width == 64:
        return words.astype(jnp.uint64) << 32 | _mix(words).astype(jnp.uint64)
    return words.astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[bit_width])


_HASHED = define_prng_impl(
    key_shape=(2,), seed=lambda seed: _fold(jnp.zeros(2, np.uint32), seed.astype(np.uint32)),
    split=_split, random_bits=_words, fold_in=_fold, name="hashed", tag="hsh",
)  # fmt: skip
