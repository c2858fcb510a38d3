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

from fedjax_bal import parts as roles
from fedjax_bal.data import gather
from fedjax_bal.engine.device import (
    ChainClients,
    RoundInputs,
    Setting,
    State,
    broadcast,
    client_context,
    closing_reports,
    cohort_of,
    init_state,
    outcome_of,
    prepare,
    seen,
    seen_by,
    server_context,
    start_training,
)
from fedjax_bal.testing.coverage import needs, parts
from fedjax_bal.testing.messages import place
from fedjax_bal.testing.outcome import NotApplicableError
from fedjax_bal.testing.workbench import Bench
from fedjax_bal.types import Aggregate, Batch, Context, Federation, Key, Outcome, Outputs, Plan, PyTree, ServerContext

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

    key: Key
    state: State
    ctx: Context
    batch: Batch
    outputs: Outputs
    outcome: Outcome
    server: ServerContext
    closing: dict[str, PyTree]

    setting: Setting

    def of(self, part: Any) -> "ExampleInputs":
        """The inputs as a part sees them."""
        variables, ctx, outcome, server = seen(
            self.setting, part, self.state.variables, self.ctx, self.outcome, self.server
        )
        state = self.state._replace(variables=variables)
        return self._replace(state=state, ctx=ctx, outcome=outcome, server=server)

    def seen_by(self, part: Any) -> ServerContext:
        """The server's context as a part sees it."""
        return seen_by(self.setting, part, self.server)

    @property
    def variables(self) -> PyTree:
        """The global model."""
        return self.state.variables

    @property
    def params(self) -> PyTree:
        """Its parameters."""
        return self.state.variables.params

    @property
    def counts(self) -> jax.Array:
        """The client's class counts as floats."""
        return self.ctx.class_counts.astype(float)

    @property
    def weights(self) -> jax.Array:
        """A weight for each chain."""
        return self.server.aggregate.weights

    @property
    def deltas(self) -> PyTree:
        """An update for each chain."""
        return self.server.aggregate.deltas


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
        return None  # the next check names it
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
    changed = _changed_by_hooks(bench)
    wrong += [message for message in changed.values() if message]
    if not pairs and not changed:
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
            f"{part.slot}.{rule.method}": (rule.received(part, inputs.of(part)), rule.wanted(part, inputs.of(part)))
            for part in setting.parts
            for rule in RULES
            if isinstance(part, rule.role)
        }

    plan, federation = jax.tree.map(jnp.asarray, (plan, simulation.federation))
    return jax.eval_shape(all_values, setting, jax.random.key(0), plan, federation)


def _example_inputs(setting: Setting, key: Key, plan: Plan, federation: Federation) -> ExampleInputs:
    zero = plan.clients[0, 0] * 0
    state = init_state(setting, key, federation)
    slots, sent = broadcast(setting, key, zero, state, federation)
    state = state._replace(server=slots)
    memory = jax.tree.map(lambda leaf: leaf[0], state.memory)
    client = ChainClients(plan.clients[0, 0], plan.delivered[0, 0], memory)
    shared = RoundInputs(key, zero, state.variables, sent, federation)
    ctx = prepare(setting, key, client_context(setting, shared, state.variables, client))
    ctx = ctx._replace(steps_state=start_training(setting, ctx).steps_state)
    places = jnp.arange(setting.batch_size)
    batch = gather(federation, places, places < ctx.size)
    batch = _apply_batches(setting, key, batch, ctx)
    outputs, _ = setting.model.apply(state.variables, batch.images, train=True, key=key, real=batch.seen)
    outcome = outcome_of(setting, ctx, start_training(setting, ctx))
    reports = {}
    for part in setting.parts_with(roles.Report):
        own = seen(setting, part, outcome)[0]
        if isinstance(part, roles.Memory):
            own = own._replace(memory=part.remember(own.ctx.memory[part.slot], own))
        reports[part.slot] = part.report(own)
    cohort = cohort_of(setting, zero, plan, federation)
    params, losses = state.variables.params, jnp.zeros(plan.clients.shape)
    deltas = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(cohort.sizes), *leaf.shape)), params)
    aggregate = Aggregate(params, reports, cohort.sizes, cohort, losses, deltas)
    server = server_context(setting, zero, state, federation)._replace(aggregate=aggregate, cohort=cohort, key=key)
    closing = closing_reports(setting, key, zero, state.variables, federation, zero)
    return ExampleInputs(key, state, ctx, batch, outputs, outcome, server, closing, setting)


def _apply_batches(setting: Setting, key: Key, batch: Batch, ctx: Context) -> Batch:
    """The batch after all Batches parts, except those that break their rule, which the rule reports."""
    for part in setting.parts_with(roles.Batches):
        made = part.batch(key, batch, *seen(setting, part, ctx))
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


def _wanted_exhibit(part: Any, inputs: ExampleInputs) -> PyTree:
    shown, known = part.show(inputs.key, inputs.seen_by(part)), inputs.ctx.class_counts > 0
    vectors = jnp.zeros((len(known), inputs.outputs.features.shape[-1]))
    return shown._replace(prototypes=None if shown.prototypes is None else (vectors, known))


RULES = (
    RoleRule(
        roles.Criterion,
        "losses",
        lambda p, s: p.losses(s.outputs.logits, s.batch.labels, s.ctx),
        lambda p, s: s.outputs.logits[:, 0],
    ),
    RoleRule(
        roles.Shift,
        "shift",
        lambda p, s: p.shift(s.params, s.params if p.needs_gradient else None, s.ctx),
        lambda p, s: s.params,
    ),
    RoleRule(
        roles.Steps,
        "next_steps",
        lambda p, s: p.next_steps(s.ctx.steps_state[p.slot], s.outputs, s.batch, s.ctx),
        lambda p, s: s.ctx.steps_state[p.slot],
    ),
    RoleRule(roles.Personal, "own_model", lambda p, s: p.own_model(s.variables), lambda p, s: s.variables),
    RoleRule(
        roles.Logits, "logits", lambda p, s: p.logits(s.outputs.logits, s.batch, s.ctx), lambda p, s: s.outputs.logits
    ),
    RoleRule(roles.Loss, "loss", lambda p, s: p.loss(s.outputs, s.batch, s.params, s.ctx), lambda p, s: jnp.zeros(())),
    RoleRule(roles.Draw, "log_weights", lambda p, s: p.log_weights(s.ctx.class_counts, s.ctx), lambda p, s: s.counts),
    RoleRule(roles.Batches, "batch", lambda p, s: p.batch(s.key, s.batch, s.ctx), _wanted_batch),
    RoleRule(roles.Batches, "added", lambda p, s: p.added(s.ctx.class_counts), lambda p, s: s.counts),
    RoleRule(roles.Start, "start", lambda p, s: p.start(s.variables, s.ctx), lambda p, s: s.variables),
    RoleRule(roles.Gradient, "gradient", lambda p, s: p.gradient(s.params, s.params, s.ctx), lambda p, s: s.params),
    RoleRule(roles.Update, "updates", lambda p, s: p.updates(s.params, s.params, s.ctx), lambda p, s: s.params),
    RoleRule(roles.Freeze, "trained", lambda p, s: p.trained(s.ctx), lambda p, s: (s.ctx.size > 0, s.ctx.size > 0)),
    RoleRule(roles.Deliver, "deliver", lambda p, s: p.deliver(s.outcome), lambda p, s: s.variables),
    RoleRule(roles.Deliver, "outdated", lambda p, s: p.outdated(s.outcome), lambda p, s: s.ctx.size > 0),
    RoleRule(
        roles.Memory,
        "remember",
        lambda p, s: p.remember(s.ctx.memory[p.slot], s.outcome),
        lambda p, s: s.ctx.memory[p.slot],
    ),
    RoleRule(roles.Probe, "probe", lambda p, s: p.probe(s.outcome), lambda p, s: None),
    RoleRule(roles.Report, "report", lambda p, s: s.server.aggregate.reports[p.slot], lambda p, s: None),
    RoleRule(
        roles.Weigh,
        "weigh",
        lambda p, s: p.weigh(s.weights, s.server.cohort, s.seen_by(p)),
        lambda p, s: s.weights,
    ),
    RoleRule(roles.Reduce, "reduce", lambda p, s: p.reduce(s.deltas, s.weights, s.seen_by(p)), lambda p, s: s.params),
    RoleRule(
        roles.Step, "step", lambda p, s: p.step(s.params, s.seen_by(p)), lambda p, s: (s.params, s.seen_by(p).state)
    ),
    RoleRule(roles.Refine, "refine", lambda p, s: p.refine(s.key, s.variables, s.seen_by(p)), lambda p, s: s.variables),
    RoleRule(roles.Closing, "closing_report", lambda p, s: s.closing[p.slot], lambda p, s: None),
    RoleRule(
        roles.Closing,
        "close",
        lambda p, s: p.close(s.key, s.variables, s.closing[p.slot], s.seen_by(p)),
        lambda p, s: s.variables,
    ),
    RoleRule(
        roles.Server,
        "broadcast",
        lambda p, s: p.broadcast(s.key, s.seen_by(p))[0],
        lambda p, s: s.seen_by(p).state,
    ),
    RoleRule(roles.Server, "update", lambda p, s: p.update(s.key, s.seen_by(p)), lambda p, s: s.seen_by(p).state),
    RoleRule(roles.Server, "show", lambda p, s: p.show(s.key, s.seen_by(p)), _wanted_exhibit),
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


def _changed_by_hooks(bench: Bench) -> dict[str, str | None]:
    """The hooks that change what they get, each with what is wrong with what it returns."""
    found = {}
    for part in bench.recipe.parts:
        pairs = {
            "bind": (bench.model, part.bind(bench.model)),
            "prepare_federation": (bench.federation, part.prepare_federation(bench.federation)),
        }
        for name, (given, made) in pairs.items():
            message = f"{part.slot}.{name}: received {type(made).__name__}, must be a {type(given).__name__}"
            if made is not given:
                found[f"{part.slot}.{name}"] = None if isinstance(made, type(given)) else message
    return found


def _text(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _cast(like: Any) -> str:
    return "float" if jnp.issubdtype(like.dtype, jnp.floating) else str(like.dtype)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
