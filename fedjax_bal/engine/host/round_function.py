"""A round as a pure function, for users' own loops."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from fedjax_bal.engine.device import (
    Assignment,
    DispatchPlan,
    Info,
    Layout,
    LocalTest,
    Setting,
    State,
    init_state,
    matmul_precision,
    run_round,
    state_of,
)
from fedjax_bal.engine.host.compatibility import arranged, check_is_federation
from fedjax_bal.engine.host.front_door import build_simulation
from fedjax_bal.engine.host.simulation import Simulation
from fedjax_bal.engine.host.strategy import end_together, in_equal_turns, most_at_a_time, resolve_strategy
from fedjax_bal.jax_setup import in_32_bits, package_settings
from fedjax_bal.models import any_derivative, differentiable
from fedjax_bal.optim import AnyOptimizer
from fedjax_bal.options import Execution, LocalTraining, Participation, derived
from fedjax_bal.recipes import Recipe
from fedjax_bal.types import Array, Federation, Key, Model, Plan, PyTree, Variables
from fedjax_bal.validate import whole_number

_NO_END = 2**31 - 1
Hyperparameters = Mapping[str, Any]


class RoundState(NamedTuple):
    """The state that one round hands to the next.

    Attributes:
        round: rounds done, `Int32[]`.
        variables: the global model.
        optimizer: the server optimizer's state.
        memory: per-client memory of each Memory part, by slot, leaves `[N, ...]`.
        server: the state of each Server part, by slot.
        downloads: the models and broadcasts of the last rounds, for a recipe whose clients train on older models.
    """

    round: Array
    variables: Variables
    optimizer: PyTree
    memory: Mapping[str, PyTree]
    server: Mapping[str, PyTree]
    downloads: PyTree = ()

    def __repr__(self) -> str:
        """Summarises the state, whose arrays would fill pages."""
        parameters = sum(map(np.size, jax.tree.leaves(self.variables)))
        return (
            f"RoundState(round={self.round}, parameters={parameters:,}, memory={[*self.memory]}, "
            f"server={[*self.server]})"
        )


jax.export.register_namedtuple_serialization(RoundState, serialized_name="fedjax_bal.RoundState")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class RoundFunction:
    """The init/step pair of a recipe on a federation, from `make_round`; both are pure.

    It is a pytree. Pass it to a jitted function as an argument, so that the federation's images are an argument of the
    program, too: if a function closes over it, they are constants, and compiling takes longer.

    Attributes:
        hyperparameters: the numbers of the recipe's parts and of both optimizers, by name; `step` takes them as an
            argument, so that they can be swept or differentiated. Those of optax transformations aren't known.
        federation: the federation, on the device, without its names.
        model: the model, as the recipe trains it; with `Execution(differentiable=True)` it is `models.differentiable`.
    """

    hyperparameters: dict[str, Any]
    federation: Federation = dataclasses.field(repr=False)
    model: Model = dataclasses.field(repr=False, metadata={"static": True})
    _simulation: Simulation = dataclasses.field(repr=False, metadata={"static": True})

    @package_settings()
    def init(self, key: Key, variables: Variables | None = None) -> RoundState:
        """Makes the state before the first round, with given variables or initial weights drawn with the key.

        Raises:
            ValueError: the variables don't have the model's names and shapes, or a number isn't finite.
        """
        setting = self._simulation.setting
        if variables is None:
            state = init_state(setting, key, self.federation)
        else:
            wanted = jax.eval_shape(setting.model.init, key)
            given = arranged(variables, wanted, setting.model)
            given = jax.tree.map(lambda leaf, like: jnp.asarray(leaf, like.dtype), given, wanted)
            state = state_of(setting, key, given, self.federation)
        return RoundState(jnp.zeros((), jnp.int32), *state)

    @package_settings()
    def step(
        self,
        hyperparameters: Hyperparameters,
        key: Key,
        state: RoundState,
        plan: Plan | tuple[Array | np.ndarray, Array | np.ndarray],
    ) -> tuple[RoundState, Info]:
        """Runs one round.

        Args:
            hyperparameters: those of this object, some of them changed if you like.
            key: the run's key, the same in every round; the round's own draws follow from its number.
            state: the state before the round.
            plan: the clients that train, `Int32[G, L]`, with N or -1 for an empty place, and whether each delivers,
                `Bool[G, L]`, ignored for empty places and for clients without rows: G chains of L clients, where L is
                1 except for mediators. Other numbers count as empty places, too, whose loss is NaN. A client that
                occurs twice trains twice from the same model and memory, and has twice the weight.

        Returns:
            The state after the round, and its measurements: losses, local steps, probes, faults.

        Raises:
            ValueError: a hyperparameter is missing or unknown, or the plan has no place.
            AssertionError: the hyperparameters, the state or the plan have other shapes or types.
        """
        setting = self._simulation.setting
        if hyperparameters.keys() != self.hyperparameters.keys():
            raise ValueError(
                f"hyperparameters: received {[*hyperparameters]}, must be {[*self.hyperparameters]}; the numbers of an "
                "optax transformation have no names, those of fedjax_bal.optimizer do"
            )
        for name, number in hyperparameters.items():
            wanted = np.shape(self.hyperparameters[name])
            chex.assert_shape(jnp.asarray(number), wanted, custom_message=f"hyperparameters: {name}")
        setting = _with_hyperparameters(setting, in_32_bits(hyperparameters))
        # A state with the memory of fewer clients, for one, would train, and read the last client's for the others.
        state = in_32_bits(state)
        chex.assert_trees_all_equal_shapes_and_dtypes(state, jax.eval_shape(self.init, jax.random.key(0)))
        placed = _with_empty_places(in_32_bits(Plan(*plan)), self.federation.num_clients)
        trains = _local_steps(setting, placed, self.federation) > 0  # others would return what they received
        plan = placed._replace(delivered=placed.delivered & trains)
        # The host doesn't know which clients take part, but whether all take equally many steps.
        even = plan.limits is None and end_together(np.asarray(setting.local_steps(self._simulation.planner.sizes)))
        setting = dataclasses.replace(setting, layout=_layout(setting, len(plan.clients), even))
        assignment = _assign(setting, plan, self.federation)
        # The state holds the memory of all clients, so that a client's seat is its number.
        row = DispatchPlan(state.round, True, False, plan, plan.clients, assignment)
        local_test = LocalTest(None, jnp.zeros((), bool))
        precision = matmul_precision(setting.execution.precision)
        with jax.default_matmul_precision(precision), any_derivative(setting.execution.differentiable):
            after, info = run_round(setting, key, State(*state[1:]), row, self.federation, local_test)
        return RoundState(state.round + 1, *after), info

    def plans(self, seed: int, rounds: int) -> Plan:
        """Makes the plans of the first rounds, as `simulate` draws them for a seed; leaves `[T, ...]`, for a `scan`.

        Raises:
            ValueError: `rounds` is below 1, or the selector learns from each round, so plans can't be made before.
        """
        selector = self._simulation.selector
        if selector.closed_loop:
            raise ValueError(
                "plans: the selector learns from each round's outcome: between rounds, call its init, select and "
                "update, with selection.make_plan"
            )
        whole_number("rounds", rounds)
        seed = whole_number("seed", seed, low=0)
        state = selector.init(seed, self.federation.num_clients)
        plans = []
        for number in range(rounds):
            plan, state = self._simulation.plan(seed, number, state)
            plans.append(plan)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *plans)


@package_settings()
def make_round(
    recipe: Recipe,
    model: Model,
    federation: Federation,
    *,
    local: LocalTraining = LocalTraining(),
    participation: Participation = Participation(),
    execution: Execution = Execution(),
    server_optimizer: AnyOptimizer | None = None,
) -> RoundFunction:
    """Turns a round of a method into a pure function: an init/step pair, as in optax.

    `step` goes into `jax.jit`, `jax.lax.scan` over stacked plans, and `jax.vmap` over seeds, hyperparameters or plans.
    With `Execution(differentiable=True)`, `jax.grad` and `jax.jacfwd` go through it, and through the pair's `model`;
    without, jax refuses the derivative of loops whose length isn't static, or of layers with a derivative of their own.
    It runs on one device, that of its arguments.

    Args:
        recipe: the method, from `fedjax_bal.recipes`.
        model: the model, from `fedjax_bal.models.build`.
        federation: the federation, from `fedjax_bal.data.federate`.
        local: how clients train: epochs or steps, batches, optimizer.
        participation: which clients train, and which of their updates arrive, in `plans`; by default ten random
            clients, or all if there are fewer, and all updates. With a selector that draws clients by size, all updates
            of a plan start with equal weights.
        execution: strategy and precision; under "vmap" all clients of a plan train at a time, under "auto" on a CPU as
            many as `fedjax_bal.simulate` would train on one device.
        server_optimizer: by default the recipe's, or else plain averaging.

    Returns:
        The pair, with the method's hyperparameters. Its states have the trained model, without what a method changes
        for evaluation alone (`Result.evaluated` of `simulate` has it).

    Raises:
        ValueError: values don't fit together.

    Example:
        >>> from fedjax_bal import data, models, recipes
        >>> labels = np.repeat([0, 1], 20)
        >>> images = (labels[:, None, None, None] * 200 * np.ones((1, 2, 2, 1))).astype(np.uint8)
        >>> rows = data.partition.iid(np.random.default_rng(0), labels, 4)
        >>> federation = data.federate(images, labels, rows, num_classes=2)
        >>> model = models.build("mlp", 2, (2, 2, 1))
        >>> round_fn = make_round(recipes.fedprox(mu=0.1), model, federation)
        >>> @jax.jit
        ... def train(round_fn, key, plans):
        ...     advance = lambda state, plan: round_fn.step(round_fn.hyperparameters, key, state, plan)
        ...     return jax.lax.scan(advance, round_fn.init(key), plans)
        >>> state, info = train(round_fn, jax.random.key(0), round_fn.plans(seed=0, rounds=3))
        >>> int(state.round), info.losses.shape
        (3, (3, 4, 1))
    """
    check_is_federation(federation)
    test = federation.images[:1], federation.labels[:1]  # a simulation needs a test set, but no round reads it
    simulation = build_simulation(
        recipe,
        model,
        federation,
        test,
        rounds=_NO_END,
        local=local,
        participation=participation,
        execution=derived(execution, devices=1),
        server_optimizer=server_optimizer,
    )
    simulation.warn()
    setting = simulation.setting
    model = differentiable(setting.model) if setting.execution.differentiable else setting.model
    return RoundFunction(hyperparameters(setting), simulation.federation_on_device, model, simulation)


def hyperparameters(setting: Setting) -> dict[str, Any]:
    """Lists the numbers of a setting by name: `SLOT.FIELD` of a part, `optimizer.FIELD`, `server_optimizer.FIELD`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(setting)
    return {_name(setting, path): leaf for path, leaf in leaves}


def _name(setting: Setting, path: tuple[Any, ...]) -> str:
    names = [str(getattr(step, "name", getattr(step, "key", getattr(step, "idx", "")))) for step in path]
    if names[0] == "parts":
        return ".".join([setting.parts[path[1].idx].slot, *names[2:]])
    return ".".join(["server_optimizer", *names[1:]] if names[0] == "server" else names[1:])


def _with_hyperparameters(setting: Setting, given: Hyperparameters) -> Setting:
    leaves, shape = jax.tree_util.tree_flatten_with_path(setting)
    names = [_name(setting, path) for path, _ in leaves]
    return jax.tree_util.tree_unflatten(shape, [given[name] for name in names])


def _with_empty_places(plan: Plan, num_clients: int) -> Plan:
    """Converts a plan to jax arrays, with N in every empty place, which delivers nothing."""
    clients = jnp.asarray(plan.clients)
    delivered = jnp.asarray(plan.delivered)
    chex.assert_rank(clients, 2, custom_message="plan: for G chains of a single client, take clients[:, None]")
    chex.assert_equal_shape([clients, delivered], custom_message="plan: clients and delivered")
    chex.assert_type([clients, delivered], [int, bool], custom_message="plan: clients and delivered")
    if not clients.size:
        raise ValueError(
            f"plan: received no clients (shape {clients.shape}), must list at least one place: for a round in which "
            "nobody trains, pass clients [[-1]] and delivered [[False]]"
        )
    inside = (clients >= 0) & (clients < num_clients)
    others = jax.tree.map(jnp.asarray, tuple(plan[2:]))
    return Plan(jnp.where(inside, clients, num_clients), delivered & inside, *others)


def _local_steps(setting: Setting, plan: Plan, federation: Federation) -> Array:
    """Computes the local steps of each client of a plan, `Int32[G, L]`; the number of an empty place is arbitrary."""
    inside = jnp.clip(plan.clients, 0, federation.num_clients - 1)
    offsets = jnp.asarray(federation.offsets)
    return setting.local_steps(offsets[inside + 1] - offsets[inside], plan.limits)


def _layout(setting: Setting, chains: int, even: bool) -> Layout:
    """Lays a plan of G chains out, in buckets: lanes would gain nothing, as the host doesn't know the plan."""
    most = most_at_a_time(setting)
    width = in_equal_turns(chains, most)
    strategy = resolve_strategy(setting.execution.strategy, most, width)
    return Layout("map", 1) if strategy == "map" else Layout("vmap", 1, width, even=even)


def _assign(setting: Setting, plan: Plan, federation: Federation) -> Assignment:
    """Assigns the chains that deliver to one device, those with the most steps first, as the host does."""
    delivered = jnp.asarray(plan.delivered)
    steps = (_local_steps(setting, plan, federation) * delivered).sum(1)
    static = setting.execution.differentiable
    # A loop of static length goes through all chains; those that don't deliver take no step and have no weight.
    delivers = jnp.ones(len(steps), bool) if static else delivered.any(1)
    order = jnp.argsort(jnp.where(delivers, -steps, 1), stable=True).astype(jnp.int32)
    chains = jnp.where(jnp.arange(len(order)) < delivers.sum(), order, len(order))[None]
    # A static count gives the loop over chains a static length, without which reverse mode doesn't work.
    count = np.array([len(order)], np.int32) if static else delivers.sum(dtype=jnp.int32)[None]
    none = jnp.zeros((1, 2), jnp.int32)
    return Assignment(chains, count, chains, none, none[:, 0])
