"""Checks on the return values of each role, made by tracing every method once, without compiling or running."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.errors import (
    ConcretizationTypeError,
    NonConcreteBooleanIndexError,
    TracerArrayConversionError,
    TracerIntegerConversionError,
)

from fedjax_bal.data import gather
from fedjax_bal.engine.device import (
    ChainClients,
    RoundInputs,
    Setting,
    broadcast,
    client_context,
    cohort_of,
    init_state,
    outcome_of,
    prepare,
)
from fedjax_bal.parts import (
    Batches,
    Deliver,
    Disclose,
    Draw,
    Enlarge,
    Extend,
    Gradient,
    Logits,
    Loss,
    Memory,
    Present,
    Probe,
    Reduce,
    Refine,
    Report,
    Server,
    Statistics,
    Step,
    Trainable,
    Update,
    Weigh,
)
from fedjax_bal.testing.coverage import needs, parts
from fedjax_bal.testing.outcome import NotApplicableError
from fedjax_bal.testing.place import place
from fedjax_bal.testing.workbench import Bench
from fedjax_bal.types import Aggregate, Batch, Context, Federation, Key, Model, Outcome, Outputs, Plan, PyTree, State

LOOKS_AT_VALUES = (
    ConcretizationTypeError,
    NonConcreteBooleanIndexError,
    TracerArrayConversionError,
    TracerIntegerConversionError,
)
"""Errors that JAX raises when Python reads a value that is unknown until the program runs."""

_TRUNCATED = "Explicitly requested dtype"


class ExampleInputs(NamedTuple):
    """Arguments of all methods of a part, as the engine would make them."""

    setting: Setting
    key: Key
    round: Any
    state: State
    ctx: Context
    batch: Batch
    outputs: Outputs
    outcome: Outcome
    aggregate: Aggregate
    federation: Federation


class RoleRule(NamedTuple):
    """The rule for the return value of a role's method.

    Attributes:
        role: the role.
        method: the method's name, for the message.
        received: calls it.
        wanted: a tree of the same structure, shapes and types; None if any numbers will do that can be added up.
    """

    role: type
    method: str
    received: Callable[[Any, ExampleInputs], PyTree]
    wanted: Callable[[Any, ExampleInputs], PyTree]


@needs(parts)
def traced(bench: Bench) -> str | None:
    """Nothing that changes while a program runs (round, client, numbers of a part) is looked at in Python."""
    try:
        returned(bench)
    except LOOKS_AT_VALUES as error:
        return (
            f"received {type(error).__name__}{place(error)}: {_first_line(error)}; values that change from round to "
            "round can't be looked at in Python: use jnp.where or jax.lax.cond instead of if, a key instead of a NumPy "
            "generator, and declare with static(...) what decides on shapes or on what is computed"
        )
    except Exception:
        return None  # the next check says what it is
    return None


@needs(parts)
def types(bench: Bench) -> str | None:
    """Each method returns the structure, shapes and types that its role asks for: float32 in, float32 out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pairs = returned(bench)
    asked = [str(warning.message) for warning in caught if _TRUNCATED in str(warning.message)]
    if asked:
        return f"received a request for 64 bits ({asked[0].split('.')[0]}), must be float: it follows JAX's default"
    wrong = [message for name, pair in pairs.items() if (message := _compare(name, *pair))]
    wrong += _not_python_bools(bench) + _not_built(bench)
    ruled = any(isinstance(part, Trainable | Extend | Enlarge) for part in bench.recipe.parts)
    if not pairs and not ruled and bench.recipe.parts:
        raise NotApplicableError("its parts play only roles that may return anything")
    return "; ".join(wrong) or None


def returned(bench: Bench) -> dict[str, tuple[PyTree, PyTree | None]]:
    """Received and wanted return values of every method of every part, as shapes and types, by part and method."""
    simulation = bench.simulation
    setting = simulation.setting
    plan = bench.plans(0)[0]

    def all_values(setting: Setting, key: Key, plan: Plan, federation: Federation) -> dict[str, tuple[PyTree, PyTree]]:
        inputs = _example_inputs(setting, key, plan, federation)
        return {
            f"{part.slot}.{rule.method}": (rule.received(part, inputs), rule.wanted(part, inputs))
            for part in setting.parts
            for rule in RULES
            if isinstance(part, rule.role)
        }

    plan, federation = jax.tree.map(jnp.asarray, (plan, simulation.federation))
    return jax.eval_shape(all_values, setting, jax.random.key(0), plan, federation)


def _example_inputs(setting: Setting, key: Key, plan: Plan, federation: Federation) -> ExampleInputs:
    zero = plan.clients[0, 0] * 0
    state = init_state(setting, key, federation)
    slots, sent = broadcast(setting, key, zero, state)
    memory = jax.tree.map(lambda leaf: leaf[0], state.memory)
    client = ChainClients(plan.clients[0, 0], plan.delivered[0, 0], memory)
    shared = RoundInputs(key, zero, state.variables, sent, federation)
    ctx = prepare(setting, key, client_context(setting, shared, state.variables, client))
    places = jnp.arange(setting.batch_size)
    batch = gather(federation, places, places < ctx.size)
    batch = _apply_batches(setting, key, batch, ctx)
    outputs, _ = setting.model.apply(state.variables, batch.images, train=True, key=key, real=batch.seen)
    outcome = outcome_of(setting, ctx, state.variables)
    reports = {part.slot: part.report(outcome) for part in setting.parts_with(Report)}
    cohort = cohort_of(setting, zero, plan, federation)
    aggregate = Aggregate(state.variables.params, reports, cohort.sizes, cohort)
    return ExampleInputs(
        setting, key, zero, state._replace(server=slots), ctx, batch, outputs, outcome, aggregate, federation
    )


def _apply_batches(setting: Setting, key: Key, batch: Batch, ctx: Context) -> Batch:
    """The batch after all Batches parts, except those that break their rule, which the rule reports."""
    for part in setting.parts_with(Batches):
        made = part.batch(key, batch, ctx)
        batch = batch if _compare(part.slot, made, _lengthen(batch, made)) else made
    return batch


def _lengthen(batch: Batch, made: PyTree) -> Batch:
    """A batch like another one with as many rows as `made`; added rows must be extra."""
    rows = jnp.size(made.labels) if isinstance(made, Batch) else 0
    if rows <= len(batch.labels):
        return batch
    batch = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape[1:]), leaf.dtype), batch)
    return batch._replace(extra=jnp.zeros(rows, bool))


def _wanted_batch(part: Any, inputs: ExampleInputs) -> Batch:
    return _lengthen(inputs.batch, part.batch(inputs.key, inputs.batch, inputs.ctx))


def _wanted_features(part: Any, inputs: ExampleInputs) -> PyTree:
    del part
    known = inputs.ctx.class_counts > 0
    return jnp.zeros((len(known), inputs.outputs.features.shape[-1])), known


def _params(part: Any, inputs: ExampleInputs) -> PyTree:
    del part
    return inputs.state.variables.params


def _variables(part: Any, inputs: ExampleInputs) -> PyTree:
    del part
    return inputs.state.variables


def _deltas(inputs: ExampleInputs) -> PyTree:
    groups = len(inputs.aggregate.weights)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (groups, *leaf.shape)), inputs.state.variables.params)


RULES = (
    RoleRule(Logits, "logits", lambda p, s: p.logits(s.outputs.logits, s.batch, s.ctx), lambda p, s: s.outputs.logits),
    RoleRule(
        Loss,
        "loss",
        lambda p, s: p.loss(s.outputs, s.batch, s.ctx.start.params, s.ctx),
        lambda p, s: s.ctx.learning_rate,
    ),
    RoleRule(
        Draw,
        "log_weights",
        lambda p, s: p.log_weights(s.ctx.class_counts, s.ctx),
        lambda p, s: s.ctx.class_counts.astype(float),
    ),
    RoleRule(Batches, "batch", lambda p, s: p.batch(s.key, s.batch, s.ctx), _wanted_batch),
    RoleRule(
        Batches,
        "added",
        lambda p, s: p.added(s.ctx.class_counts),
        lambda p, s: s.ctx.class_counts.astype(float),
    ),
    RoleRule(
        Statistics,
        "statistics",
        lambda p, s: p.statistics(s.state.variables.stats, s.ctx),
        lambda p, s: s.state.variables.stats,
    ),
    RoleRule(Gradient, "gradient", lambda p, s: p.gradient(_params(p, s), _params(p, s), s.ctx), _params),
    RoleRule(Update, "updates", lambda p, s: p.updates(_params(p, s), _params(p, s), s.ctx), _params),
    RoleRule(Deliver, "deliver", lambda p, s: p.deliver(s.outcome), _variables),
    RoleRule(Deliver, "outdated", lambda p, s: p.outdated(s.outcome), lambda p, s: s.ctx.size > 0),
    RoleRule(
        Memory,
        "remember",
        lambda p, s: p.remember(s.ctx.memory[p.slot], s.outcome),
        lambda p, s: s.ctx.memory[p.slot],
    ),
    RoleRule(Probe, "probe", lambda p, s: p.probe(s.outcome), lambda p, s: None),
    RoleRule(Report, "report", lambda p, s: s.aggregate.reports[p.slot], lambda p, s: None),
    RoleRule(
        Weigh, "weigh", lambda p, s: p.weigh(s.aggregate.weights, s.aggregate.cohort), lambda p, s: s.aggregate.weights
    ),
    RoleRule(Reduce, "reduce", lambda p, s: p.reduce(_deltas(s), s.aggregate.weights), _params),
    RoleRule(
        Step,
        "step",
        lambda p, s: p.step(_params(p, s), s.aggregate.cohort, s.aggregate, s.state.server.get(p.slot), _params(p, s)),
        _params,
    ),
    RoleRule(
        Refine, "refine", lambda p, s: p.refine(s.key, _variables(p, s), s.setting.model, s.federation), _variables
    ),
    RoleRule(
        Present, "present", lambda p, s: p.present(s.key, _variables(p, s), s.setting.model, s.federation), _variables
    ),
    RoleRule(
        Server,
        "broadcast",
        lambda p, s: p.broadcast(s.key, s.round, s.state.server[p.slot], s.state.variables)[0],
        lambda p, s: s.state.server[p.slot],
    ),
    RoleRule(
        Server,
        "update",
        lambda p, s: p.update(s.key, s.round, s.state.server[p.slot], s.aggregate, s.state.variables),
        lambda p, s: s.state.server[p.slot],
    ),
    RoleRule(Disclose, "disclosed", lambda p, s: p.disclosed(s.state.server[p.slot]), _wanted_features),
)
"""Rules that the engine relies on; roles that are not listed may return anything."""


def _compare(name: str, received: PyTree, wanted: PyTree | None) -> str | None:
    if wanted is None:
        odd = [leaf for leaf in jax.tree.leaves(received) if not jnp.issubdtype(leaf.dtype, jnp.number)]
        rule = "numbers, which can be added up: turn truth values into counts with astype"
        return f"{name}: received {_text(odd[0])}, must be {rule}" if odd else None
    ours, theirs = jax.tree.structure(received), jax.tree.structure(wanted)
    if ours != theirs:
        return f"{name}: received the structure {ours}, must be {theirs}: return a tree like the one handed in"
    for (path, leaf), like in zip(jax.tree_util.tree_leaves_with_path(received), jax.tree.leaves(wanted), strict=True):
        if (leaf.shape, leaf.dtype) != (like.shape, like.dtype):
            at = name + jax.tree_util.keystr(path)
            remedy = "reduce or reshape it" if leaf.shape != like.shape else f"cast it with astype({_cast(like)})"
            return f"{at}: received {_text(leaf)}, must be {_text(like)}: {remedy}"
    return None


def _not_python_bools(bench: Bench) -> list[str]:
    params = jax.eval_shape(bench.simulation.setting.model.init, jax.random.key(0)).params
    wrong = []
    for part in bench.simulation.setting.parts_with(Trainable):
        answers = part.trainable(params)
        if jax.tree.structure(answers) != jax.tree.structure(params) or not all(
            isinstance(answer, bool) for answer in jax.tree.leaves(answers)
        ):
            wrong.append(f"{part.slot}.trainable: received {answers}, must be a tree like params of True and False")
    return wrong


def _not_built(bench: Bench) -> list[str]:
    wrong = []
    for part in bench.recipe.parts:
        if isinstance(part, Extend) and not isinstance(made := part.extend(bench.all_options["model"]), Model):
            wrong.append(f"{part.slot}.extend: received {type(made).__name__}, must be a Model: use model._replace")
        if isinstance(part, Enlarge) and not isinstance(
            made := part.enlarge(bench.all_options["federation"]), Federation
        ):
            wrong.append(f"{part.slot}.enlarge: received {type(made).__name__}, must be a Federation")
    return wrong


def _text(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _cast(like: Any) -> str:
    return "float" if jnp.issubdtype(like.dtype, jnp.floating) else str(like.dtype)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
