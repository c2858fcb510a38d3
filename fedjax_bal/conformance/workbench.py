"""Runs a recipe on the toy federation in many ways, with as few compiled programs as possible."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.conformance import toy
from fedjax_bal.conformance.compare import difference
from fedjax_bal.engine.deal import deal
from fedjax_bal.engine.layout import Layout
from fedjax_bal.engine.program import Schedule, dispatch, init_state
from fedjax_bal.engine.setting import Setting
from fedjax_bal.engine.simulation import Simulation
from fedjax_bal.optimizers import optimizer
from fedjax_bal.parts import Present
from fedjax_bal.recipes import Recipe
from fedjax_bal.selection import bernoulli, uniform
from fedjax_bal.simulation import build
from fedjax_bal.types import Array, Federation, Key, Plan, State

ROUNDS, SILENT = 4, 2
"""Rounds of a run, and the one in which nothing arrives."""

SEEDS = (0, 1)
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""How programs that run for a millisecond are compiled."""

VARIATIONS = ("seeds", "lanes", "length", "places", "devices")
"""What a run may be varied in without changing its result, see `Workbench.varied`."""


class Seen(NamedTuple):
    """What two runs are compared in.

    Attributes:
        state: all that is carried.
        train_loss: of each round, `Float[T]`.
        test_loss: of each round, `Float[T]`.
        probes: by slot, of each client in each round, leaves `[T, N, ...]`; 0 for those who sent none.
    """

    state: State
    train_loss: Any
    test_loss: Any
    probes: Any


@dataclasses.dataclass
class Workbench:
    """A recipe on the toy federation.

    Attributes:
        recipe: the recipe.
        options: what `fedjax_bal.simulation.build` takes, and `model` and `federation`, where they are to be others.
        tolerance: largest difference, in units of a leaf's largest number or 1, that rounding may make.
        traces: how often the program has been traced.
    """

    recipe: Recipe
    options: dict[str, Any]
    tolerance: float
    traces: int = 0

    @functools.cached_property
    def simulation(self) -> Simulation:
        """The recipe as any user would run it."""
        options = {
            "model": toy.network(),
            "federation": toy.federation(),
            "test": toy.test_set(),
            "batch_size": 4,
            "local_optimizer": optimizer("sgd", 0.1),
            "availability": bernoulli(0.8),
            "delivery": bernoulli(0.7),
            **({"selector": uniform(4)} if self.recipe.selector is None else {"clients_per_round": 4}),
        } | self.options
        return build(self.recipe, **options, rounds=ROUNDS, strategy="map", devices=1)

    @functools.cached_property
    def base(self) -> dict[int, Seen]:
        """The runs that all others must agree with, by seed."""
        return {seed: self.run(self.plans(seed), seed) for seed in SEEDS}

    @functools.cached_property
    def variations(self) -> tuple[str, ...]:
        """The variations that this machine can make."""
        return VARIATIONS if jax.device_count() > 1 else VARIATIONS[:-1]

    @functools.cached_property
    def difference_of_all(self) -> str | None:
        """What all variations at once change, in words; None where it is nothing."""
        return self._difference(self.variations)

    def difference_of(self, variation: str) -> str | None:
        """What one variation alone changes, in words; None where it is nothing."""
        if variation not in self._alone:
            self._alone[variation] = self._difference([variation])
        return self._alone[variation]

    @functools.cached_property
    def _alone(self) -> dict[str, str | None]:
        return {}

    @functools.cached_property
    def _program(self) -> Any:
        def counted(setting: Setting, key: Key, schedule: Schedule, federation: Federation, test: Any) -> Seen:
            self.traces += 1
            return run_through(setting, key, schedule, federation, test)

        return jax.jit(counted, compiler_options=_QUICKLY)

    def plans(self, seed: int) -> list[Plan]:
        """Who trains in each round; in one round nothing arrives."""
        selector = self.simulation.selector
        state, plans = selector.init(seed, self.simulation.federation.num_clients), []
        for number in range(ROUNDS):
            plan, state = self.simulation.plan(seed, number, state)
            plans.append(plan._replace(delivered=plan.delivered & (number != SILENT)))
        return plans

    def run(
        self,
        plans: Sequence[Plan],
        seed: int = 0,
        *,
        setting: Setting | None = None,
        federation: Federation | None = None,
        rounds: int = ROUNDS,
    ) -> Seen:
        """A run by the one compiled program.

        Args:
            plans: one for each round.
            seed: the run's seed.
            setting: with other numbers in it.
            federation: with other data in it.
            rounds: how many of the rounds take place.

        Returns:
            What it comes to.
        """
        arguments = self.arguments(plans, seed, setting=setting, federation=federation, rounds=rounds)
        return jax.device_get(self._program(*arguments))

    def run_eagerly(self, plans: Sequence[Plan], seed: int = 0) -> State:
        """The state after the first round, without compilation.

        Nothing is evaluated unless a part has a say in that: each operation takes longer to set up than to compute.
        """
        setting, key, schedule, *data = self.arguments(plans, seed, rounds=1)
        schedule = schedule._replace(evaluate=schedule.evaluate & bool(setting.playing(Present)))
        start = jax.tree.map(jnp.asarray, self.run(plans, seed, rounds=0).state)
        with jax.disable_jit():
            return jax.device_get(dispatch(setting, key, start, schedule, *data)[0])

    def varied(self, variations: Iterable[str]) -> dict[int, Seen]:
        """Runs of the same rounds in another way.

        Args:
            variations: of "seeds", two seeds in one `vmap`; "lanes", several clients at a time; "length", room for far
                larger clients; "places", two more places in a round, which stay empty; "devices", two of them.

        Returns:
            What each seed comes to; of the first one only, where seeds are not varied.
        """
        asked = set(variations)
        seeds = SEEDS if "seeds" in asked else SEEDS[:1]
        extra = 2 if "places" in asked else 0
        plans = {seed: [_with_empty_places(plan, extra, self) for plan in self.plans(seed)] for seed in seeds}
        setting = self._relaid(asked, len(plans[seeds[0]][0].clients))
        runs = [self.arguments(plans[seed], seed, setting=setting) for seed in seeds]
        if len(seeds) == 1:
            return {seeds[0]: jax.device_get(jax.jit(run_through, compiler_options=_QUICKLY)(*runs[0]))}
        together = jax.device_get(_all_seeds(runs))
        return {seed: jax.tree.map(lambda leaf, at=at: leaf[at], together) for at, seed in enumerate(seeds)}

    def _difference(self, variations: Iterable[str]) -> str | None:
        try:
            varied = self.varied(variations)
        except Exception as error:
            return f"{type(error).__name__} ({error})"
        return difference(varied, {seed: self.base[seed] for seed in varied}, self.tolerance)

    def arguments(
        self,
        plans: Sequence[Plan],
        seed: int = 0,
        *,
        setting: Setting | None = None,
        federation: Federation | None = None,
        rounds: int = ROUNDS,
    ) -> tuple[Any, ...]:
        """What `run_through` takes, arrays all of them."""
        simulation = self.simulation
        setting = setting or simulation.setting
        schedule = schedule_of(setting, simulation.federation, plans, rounds)
        data = (schedule, federation or simulation.federation, simulation.test)
        return (setting, jax.random.key(seed), *jax.tree.map(jnp.asarray, data))

    def _relaid(self, asked: set[str], groups: int) -> Setting:
        simulation = self.simulation
        setting, selector = simulation.setting, simulation.selector
        devices = 2 if "devices" in asked else 1
        layout = Layout("map", devices)
        if "lanes" in asked:
            width = min(3, -(-groups // devices))
            layout = Layout("vmap", devices, width, lanes=selector.links == 1 and selector.passes == 1)
        longer = 3 if "length" in asked else 1
        return dataclasses.replace(setting, layout=layout, max_size=longer * setting.max_size)


def run_through(setting: Setting, key: Key, schedule: Schedule, federation: Federation, test: Any) -> Seen:
    """A whole run: the state before the first round, then all rounds."""
    start = init_state(setting, key, federation)
    state, info, evaluation = dispatch(setting, key, start, schedule, federation, test)
    return Seen(state, info.train_loss, evaluation.loss, _by_client(info.probes, schedule, federation.num_clients))


def _by_client(probes: Any, schedule: Schedule, num_clients: int) -> Any:
    """From places to clients: leaves `[T, G, L, ...]` to `[T, N, ...]`."""

    def one(clients: Array, leaf: Array) -> Array:
        return jnp.zeros((num_clients, *leaf.shape[2:]), leaf.dtype).at[clients].set(leaf, mode="drop")

    return jax.tree.map(lambda leaf: jax.vmap(one)(schedule.plan.clients, leaf), probes)


def schedule_of(setting: Setting, federation: Federation, plans: Sequence[Plan], rounds: int) -> Schedule:
    """The schedule of some plans, whose chains stay in the order in which they come.

    Args:
        setting: the setting.
        federation: the federation, on the host.
        plans: T of them.
        rounds: how many of these take place, and are evaluated.

    Returns:
        The schedule, leaves `[T, ...]`.
    """
    sizes = np.diff(federation.offsets)

    def dealt(plan: Plan) -> Any:
        inside = np.minimum(plan.clients, len(sizes) - 1)
        steps = setting.passes * setting.visit_steps(sizes[inside], plan.limits) * plan.delivered
        return deal(setting.layout, steps, plan.delivered.any(1))[0]

    stack = lambda items: jax.tree.map(lambda *leaves: np.stack(leaves), *items)
    numbers = np.arange(len(plans), dtype=np.int32)
    plan = stack(list(plans))
    live = numbers < rounds
    return Schedule(numbers, live, live, plan, plan.clients, stack([dealt(plan) for plan in plans]))


def _with_empty_places(plan: Plan, extra: int, bench: Workbench) -> Plan:
    width, nobody = ((0, extra), (0, 0)), bench.simulation.federation.num_clients
    limits = None if plan.limits is None else np.pad(plan.limits, width)
    return Plan(np.pad(plan.clients, width, constant_values=nobody), np.pad(plan.delivered, width), limits)


def _all_seeds(runs: Sequence[tuple[Any, ...]]) -> Seen:
    """Runs stacked by one `vmap`; round numbers are the same for all and stay unstacked."""
    setting, _, schedule, *data = runs[0]
    alike = {"number": None, "live": None, "evaluate": None}
    axes = Schedule(**alike, plan=0, seats=0, deal=0)  # pyright: ignore[reportArgumentType]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[run[2] for run in runs])
    stacked = stacked._replace(number=schedule.number, live=schedule.live, evaluate=schedule.evaluate)
    keys: Array = jnp.stack([run[1] for run in runs])

    def together(setting: Setting, keys: Array, schedule: Schedule, *data: Any) -> Seen:
        return jax.vmap(lambda key, own: run_through(setting, key, own, *data), (0, axes))(keys, schedule)

    return jax.jit(together, compiler_options=_QUICKLY)(setting, keys, stacked, *data)
