"""A round as a pure function, for users' own loops."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType

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
from fedjax_bal.engine.host.front_door import build
from fedjax_bal.engine.host.simulation import Simulation
from fedjax_bal.jax_setup import in_32_bits, package_settings
from fedjax_bal.models import any_derivative, differentiable, named_leaves
from fedjax_bal.optim import AnyOptimizer
from fedjax_bal.options import Execution, LocalTraining, Participation, derived
from fedjax_bal.recipes import Recipe
from fedjax_bal.types import Array, Federation, Key, Model, Plan, PyTree, Variables
from fedjax_bal.validate import whole_number

F = TypeVar("F", bound=Callable[..., Any])

_NO_END = 2**31 - 1
Hyperparameters = Mapping[str, Any]


def _refuse_derivative(received: str, without: str) -> Any:
    raise ValueError(
        f"make_round: received a derivative {received}, which this round's {without} don't have: give "
        "make_round(..., execution=Execution(differentiable=True))"
    )


def _refuse_reverse_mode(*_: Any) -> Any:
    _refuse_derivative("in reverse mode (jax.grad, jax.vjp, jax.jacrev)", "loops")


# The identity, which in reverse mode raises an error before JAX reaches the loops; JAX's own would name no remedy.
_forward_mode = Primitive("forward_mode_only")
_forward_mode.def_impl(lambda leaf: leaf)
_forward_mode.def_abstract_eval(lambda leaf: leaf)
ad.deflinear2(_forward_mode, _refuse_reverse_mode)
batching.defvectorized(_forward_mode)
mlir.register_lowering(_forward_mode, lambda _, leaf: [leaf])


def _refuse_fast_layers(primals: Any, tangents: Any, *, model: Model) -> Any:
    def forward(variables: Variables) -> Any:
        images = jnp.zeros((2, *model.input_shape), model.input_dtype)
        return model.apply(variables, images, train=True, key=jax.random.key(0), real=jnp.ones(2, bool))

    with package_settings():
        variables = jax.eval_shape(model.init, jax.random.key(0))
        if "custom_vjp" in str(jax.make_jaxpr(forward)(variables)):
            _refuse_derivative("(jax.jacfwd, jax.jvp, jax.grad)", "fast layers")
    return _before_layers.bind(*primals, model=model), *tangents


# The identity, whose derivative raises an error where the model's layers have none of the kind that is needed.
_before_layers = Primitive("before_layers")
_before_layers.def_impl(lambda leaf, model: leaf)
_before_layers.def_abstract_eval(lambda leaf, model: leaf)
ad.primitive_jvps[_before_layers] = _refuse_fast_layers
batching.defvectorized(_before_layers)
mlir.register_lowering(_before_layers, lambda _, leaf, model: [leaf])


def _on_one_device(function: F) -> F:
    """Wraps a function to run in `package_settings`, and refuses a mesh over which jax would spread its arrays."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        mesh = jax.sharding.get_abstract_mesh()
        kinds = set(mesh.axis_types)
        if AxisType.Manual not in kinds and (mesh.size > 1 or AxisType.Explicit in kinds):
            raise ValueError(
                f"{function.__name__}: called inside jax.set_mesh with {mesh}, but a round of make_round runs on one "
                "device: call it outside, or with jax.set_mesh(None)"
            )
        with package_settings():
            return function(*args, **options)

    return cast(F, call)


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
        federation: the federation, on the device.
        model: the model, as the recipe trains it; with `Execution(differentiable=True)` it is `models.differentiable`.
    """

    hyperparameters: dict[str, Any]
    federation: Federation = dataclasses.field(repr=False)
    model: Model = dataclasses.field(repr=False, metadata={"static": True})
    _simulation: Simulation = dataclasses.field(repr=False, metadata={"static": True})

    @_on_one_device
    def init(self, key: Key, variables: Variables | None = None) -> RoundState:
        """Makes the state before the first round, with given variables or initial weights drawn with the key.

        Raises:
            ValueError: the variables don't have the model's names and shapes, or a known number isn't finite.
        """
        setting = self._simulation.setting
        _check_key(key)
        if variables is None:
            state = init_state(setting, key, self.federation)
        else:
            wanted = jax.eval_shape(setting.model.init, key)
            given = arranged(variables, wanted, setting.model)
            given = jax.tree.map(lambda leaf, like: jnp.asarray(leaf, like.dtype), given, wanted)
            state = state_of(setting, key, given, self.federation)
        return RoundState(jnp.zeros((), jnp.int32), *state)

    @_on_one_device
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
                1 except for mediators. Other numbers are refused; under `jit`, where values aren't known, they count
                as empty places, whose loss is NaN. A client that occurs twice trains twice from the same model and
                memory, and has twice the weight.

        Returns:
            The state after the round, and its measurements: losses, local steps, probes, faults.

        Raises:
            ValueError: a hyperparameter is missing, unknown or no number, a known learning rate is below 0, the state
                is another round function's, or the plan has other shapes, types or numbers.
        """
        _check_key(key)
        setting = self._simulation.setting
        hyperparameters = _check_numbers(in_32_bits(hyperparameters), self.hyperparameters)
        state = in_32_bits(state)
        self._check_state(state)
        if not (setting.execution.differentiable or setting.execution.debugs):
            guarded = lambda leaf: _before_layers.bind(leaf, model=setting.model) if _is_traced_float(leaf) else leaf
            hyperparameters, state = jax.tree.map(guarded, (hyperparameters, state))
        setting = _with_hyperparameters(setting, hyperparameters)
        placed = _with_empty_places(in_32_bits(_as_plan(plan)), self.federation.num_clients)
        trains = _local_steps(setting, placed, self.federation) > 0  # others would return what they received
        plan = placed._replace(delivered=placed.delivered & trains)
        # One client at a time, or all chains of the plan in one bucket, in which lanes would gain nothing.
        layout = Layout("map", 1) if setting.layout.strategy == "map" else Layout("vmap", 1, len(plan.clients))
        setting = dataclasses.replace(setting, layout=layout)
        assignment = _assign(setting, plan, self.federation)
        # The state holds the memory of all clients, so that a client's seat is its number.
        row = DispatchPlan(state.round, True, False, plan, plan.clients, assignment)
        local_test = LocalTest(None, jnp.zeros((), bool))
        precision = matmul_precision(setting.execution.precision)
        with jax.default_matmul_precision(precision), any_derivative(setting.execution.differentiable):
            outcome: tuple[State, Info] = run_round(setting, key, State(*state[1:]), row, self.federation, local_test)
        if not (setting.execution.differentiable or setting.execution.debugs):
            guarded = lambda leaf: _forward_mode.bind(leaf) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf
            outcome = jax.tree.map(guarded, outcome)
        after, info = outcome
        return RoundState(state.round + 1, *after), info

    def _check_state(self, state: RoundState) -> None:
        """Refuses a state of another method, model or number of clients."""
        if not isinstance(state, RoundState):
            raise ValueError(
                f"state: received {_shown(state)}, must be what this round function's init or step returns"
            )
        key = jax.random.key(0)
        wanted = RoundState(
            jnp.zeros((), jnp.int32),
            *jax.eval_shape(lambda: init_state(self._simulation.setting, key, self.federation)),
        )
        ours, theirs = (
            {name: f"{jnp.result_type(leaf)}{list(np.shape(leaf))}" for name, leaf in named_leaves(tree).items()}
            for tree in (wanted, state)
        )
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                raise ValueError(
                    f"state: received {theirs.get(name, 'nothing')} for {name}, where this round function has "
                    f"{ours.get(name, 'nothing')}, for {self.federation.num_clients} clients: begin with its own init"
                )

    def plans(self, seed: int, rounds: int) -> Plan:
        """Makes the plans of the first rounds, as `simulate` draws them for a seed; leaves `[T, ...]`, for a `scan`.

        Raises:
            ValueError: `rounds` is below 1, or the selector learns from each round, so plans can't be made before.
        """
        selector = self._simulation.selector
        if selector.closed_loop:
            raise ValueError(
                "plans: the selector learns from each round's outcome: call its init, select and update between rounds"
            )
        whole_number("rounds", rounds)
        seed = whole_number("seed", seed, low=0)
        state = selector.init(seed, self.federation.num_clients)
        plans = []
        for number in range(rounds):
            plan, state = self._simulation.plan(seed, number, state)
            plans.append(plan)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *plans)


@_on_one_device
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
    With `Execution(differentiable=True)`, `jax.grad` and `jax.jacfwd` go through it, and through the pair's `model`.
    It runs on one device, that of its arguments.

    Args:
        recipe: the method, from `fedjax_bal.recipes`.
        model: the model, from `fedjax_bal.models.build`.
        federation: the federation, from `fedjax_bal.data.federate`.
        local: how clients train: epochs or steps, batches, optimizer.
        participation: which clients train, and which of their updates arrive, in `plans`; by default ten random
            clients, or all if there are fewer, and all updates. With a selector that draws clients by size, all updates
            of a plan start with equal weights.
        execution: strategy and precision; several clients train at a time under "vmap".
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
    simulation = build(
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


def _check_numbers(given: Any, wanted: Hyperparameters) -> Hyperparameters:
    """Returns the hyperparameters; refuses other names, shapes and types, and known learning rates below 0."""
    if not isinstance(given, Mapping):
        raise ValueError(f"hyperparameters: received {_shown(given)}, must be a mapping as `hyperparameters`")
    if set(wanted) != set(given):
        raise ValueError(
            f"hyperparameters: received {sorted(given, key=str)}, must be {sorted(wanted)}; the numbers of an optax "
            "transformation have no names, those of fedjax_bal.optimizer do"
        )
    for name, value in given.items():
        number = isinstance(value, int | float | np.number | np.ndarray | jax.Array) and not isinstance(value, bool)
        shape = np.shape(wanted[name])
        if not number or np.shape(value) != shape or not jnp.issubdtype(jnp.result_type(value), jnp.number):
            kind = f"numbers of shape {shape}" if shape else "a number (under jax.vmap, one for each run)"
            raise ValueError(f"hyperparameters: {name}: received {_shown(value)}, must be {kind}")
        if name.endswith("learning_rate") and not isinstance(value, Tracer) and not np.all(np.asarray(value) >= 0):
            raise ValueError(f"hyperparameters: {name}: received {_shown(value)}, must be a number of at least 0")
    return given


def _with_hyperparameters(setting: Setting, given: Hyperparameters) -> Setting:
    leaves, shape = jax.tree_util.tree_flatten_with_path(setting)
    names = [_name(setting, path) for path, _ in leaves]
    return jax.tree_util.tree_unflatten(shape, [given[name] for name in names])


def _check_key(key: Any) -> None:
    array = isinstance(key, jax.Array | np.ndarray)
    typed = array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
    if not typed and not (array and key.dtype == np.uint32 and key.ndim == 1):
        raise ValueError(f"key: received {_shown(key)}, must be a JAX random key, as jax.random.key(0)")


def _shown(value: Any) -> str:
    """Describes a value in a message: an array by its shape, other values by themselves if they are short."""
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    shown = repr(value) if isinstance(value, int | float | str | None) else ""
    return shown if 0 < len(shown) < 80 else f"a {type(value).__name__}"


def _is_traced_float(leaf: Any) -> bool:
    return isinstance(leaf, Tracer) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _as_plan(plan: Any) -> Plan:
    """Returns a plan or a pair as a plan; refuses other values."""
    if (
        not isinstance(plan, tuple | list)
        or not 2 <= len(plan) <= len(Plan._fields)
        or any(v is None for v in plan[:2])
    ):
        raise ValueError(
            f"plan: received {_shown(plan)}, must be a Plan or a pair (clients, delivered); if all clients deliver, "
            "(clients, np.ones(clients.shape, bool))"
        )
    return Plan(*plan)


def _with_empty_places(plan: Plan, num_clients: int) -> Plan:
    """Converts a plan to jax arrays, with N in every empty place, which delivers nothing."""
    clients = jnp.asarray(plan.clients)
    delivered = jnp.asarray(plan.delivered)
    integers = jnp.issubdtype(clients.dtype, jnp.integer)
    if (
        clients.ndim != 2
        or not clients.size
        or clients.shape != delivered.shape
        or not integers
        or delivered.dtype != bool
    ):
        raise ValueError(
            f"plan: received clients of shape {clients.shape} and type {clients.dtype}, and delivered of shape "
            f"{delivered.shape} and type {delivered.dtype}; must be integers and booleans of one shape, [G, L], for G "
            "chains of L clients, at least one: clients[:, None] for chains of one"
        )
    if not isinstance(clients, Tracer):
        numbers = np.asarray(clients)
        if ((numbers < -1) | (numbers > num_clients)).any():
            raise ValueError(
                f"plan: received clients from {numbers.min()} to {numbers.max()}, must be from 0 to "
                f"{num_clients - 1}, or {num_clients} or -1 for an empty place"
            )
    inside = (clients >= 0) & (clients < num_clients)
    others = jax.tree.map(jnp.asarray, tuple(plan[2:]))
    return Plan(jnp.where(inside, clients, num_clients), delivered & inside, *others)


def _local_steps(setting: Setting, plan: Plan, federation: Federation) -> Array:
    """Computes the local steps of each client of a plan, `Int32[G, L]`; the number of an empty place is arbitrary."""
    inside = jnp.clip(plan.clients, 0, federation.num_clients - 1)
    offsets = jnp.asarray(federation.offsets)
    return setting.local_steps(offsets[inside + 1] - offsets[inside], plan.limits)


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
