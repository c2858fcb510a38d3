"""Checks of the return values of each role's methods while a round is traced, without compiling or running it."""

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import errors

from fedjax_bal import parts as roles
from fedjax_bal.engine.device import Setting, evaluated_memory, exhibits, init_state, model_of_client
from fedjax_bal.parts import Part
from fedjax_bal.testing.report import FaultError, NotApplicableError, first_line, place, skipped_if
from fedjax_bal.testing.workbench import Bench, one_round
from fedjax_bal.types import Batch, PyTree

LOOKS_AT_VALUES = (
    errors.ConcretizationTypeError,
    errors.NonConcreteBooleanIndexError,
    errors.TracerArrayConversionError,
    errors.TracerIntegerConversionError,
)
"""Errors that JAX raises if Python code reads a value that is only known when the program runs."""

Rule = Callable[..., tuple[PyTree, PyTree]]
"""Maps a method's result and arguments to a pair of pytrees, received and expected, whose form must agree.

If the expected one is None, the received one may be any numbers that can be summed.
"""


def _like_first(result: PyTree, first: PyTree, *rest: Any) -> tuple[PyTree, PyTree]:
    return result, first


def _like_second(result: PyTree, first: Any, second: PyTree, *rest: Any) -> tuple[PyTree, PyTree]:
    return result, second


def _like_counts(result: PyTree, counts: Any, *rest: Any) -> tuple[PyTree, PyTree]:
    return result, counts.astype(float)


def _like_batch(result: PyTree, key: Any, batch: Batch, ctx: Any) -> tuple[PyTree, PyTree]:
    """Allows added rows, which must be declared as extra."""
    rows = jnp.size(result.labels) if isinstance(result, Batch) else 0
    if rows > len(batch.labels):
        batch = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape[1:]), leaf.dtype), batch)
        batch = batch._replace(extra=jnp.zeros(rows, bool))
    return result, batch


def _numbers(result: PyTree, *rest: Any) -> tuple[PyTree, PyTree]:
    return result, None


def _exhibit(result: PyTree, key: Any, server: Any) -> tuple[PyTree, PyTree]:
    if result.prototypes is None:
        return result, result
    known = server.federation.class_counts.any(0)
    return result, result._replace(prototypes=(jnp.zeros((len(known), result.prototypes[0].shape[-1])), known))


RULES: dict[tuple[type, str], Rule] = {
    (roles.Criterion, "losses"): lambda result, logits, *rest: (result, logits[:, 0]),
    (roles.Shift, "shift"): _like_first,
    (roles.Shift, "rows"): lambda result, batch, *rest: (result, batch.real),
    (roles.Shift, "correct"): _like_first,
    (roles.Steps, "next_steps"): _like_first,
    (roles.Steps, "observe"): _like_first,
    (roles.Personal, "own_model"): _like_first,
    (roles.Personal, "exchange"): _like_first,
    (roles.Adapt, "adapt"): _like_first,
    (roles.Logits, "logits"): _like_first,
    (roles.Loss, "loss"): lambda result, *rest: (result, jnp.zeros(())),
    (roles.Draw, "log_weights"): _like_counts,
    (roles.Batches, "batch"): _like_batch,
    (roles.Batches, "added"): _like_counts,
    (roles.Batches, "labelled"): _like_first,
    (roles.Start, "start"): _like_first,
    (roles.Gradient, "gradient"): _like_first,
    (roles.Update, "updates"): _like_first,
    (roles.Freeze, "trained"): lambda result, ctx: (result, (np.True_, np.True_)),
    (roles.Deliver, "deliver"): lambda result, outcome: (result, outcome.end),
    (roles.Deliver, "outdated"): lambda result, outcome: (result, np.True_),
    (roles.Memory, "remember"): _like_first,
    (roles.Probe, "probe"): _numbers,
    (roles.Report, "report"): _numbers,
    (roles.Weigh, "weigh"): _like_first,
    (roles.Reduce, "reduce"): lambda result, deltas, weights, server: (result, server.variables.params),
    (roles.Step, "step"): lambda result, delta, server: (result, (delta, server.state)),
    (roles.Refine, "refine"): _like_second,
    (roles.Closing, "closing_report"): _numbers,
    (roles.Closing, "close"): _like_second,
    (roles.Server, "broadcast"): lambda result, key, server: (result[0], server.state),
    (roles.Server, "update"): lambda result, key, server: (result, server.state),
    (roles.Server, "show"): _exhibit,
}
"""Rules on which the engine relies; methods that aren't listed may return anything."""


def no_parts(bench: Bench) -> bool:
    """The recipe has no parts, only settings."""
    return not bench.recipe.parts


@skipped_if(no_parts)
def traced(bench: Bench) -> None:
    """Python code doesn't read values that change while a program runs (round, client, numbers of a part)."""
    error = trace(bench)[0]
    if isinstance(error, LOOKS_AT_VALUES):
        raise FaultError(
            f"received {type(error).__name__}{place(error)}: {first_line(error)}; values that change from round to "
            "round can't be looked at in Python: use jnp.where or jax.lax.cond instead of if, a key instead of a NumPy "
            "generator, and declare with static(...) what decides on shapes or on what is computed"
        )


@skipped_if(no_parts)
def types(bench: Bench) -> None:
    """A round can be traced, and each method returns the structure, shapes and types that its role requires."""
    error, faults, warned = trace(bench)
    if warned:
        raise FaultError(f"received a request for 64 bits ({warned}), must be float: it follows JAX's default")
    hooks = {"bind": bench.model, "prepare_federation": bench.federation}
    for part, (name, given) in itertools.product(bench.recipe.parts, hooks.items()):
        made = getattr(part, name)(given)
        if made is not given:
            label = f"{part.slot}.{name}"
            rule = f"{label}: received {type(made).__name__}, must be a {type(given).__name__}"
            faults[label] = None if isinstance(made, type(given)) else rule
    wrong = [fault for fault in faults.values() if fault]
    if wrong:
        raise FaultError("; ".join(wrong))
    if error is not None:
        raise error
    if bench.recipe.parts and not faults:
        raise NotApplicableError("its parts play only roles that may return anything")


@functools.lru_cache(maxsize=1)
def trace(bench: Bench) -> tuple[Exception | None, dict[str, str | None], str]:
    """Traces the first round with its evaluation, and compares the results of the parts' methods with the rules.

    Returns the error that ended the trace, each called method with its fault, and a warning about 64-bit types.
    """
    faults: dict[str, str | None] = {}

    def recorded(method: Callable, rule: Rule, name: str) -> Callable:
        def call(part: Part, *arguments: Any) -> PyTree:
            result = method(part, *arguments)
            label = f"{part.slot}.{name}"
            faults[label] = faults.get(label) or _compare(label, *rule(result, *arguments))
            return result

        return call

    def first_round(setting: Setting, *arguments: Any) -> None:
        key, row, federation, test = arguments
        state = one_round(setting, key, init_state(setting, key, federation), row, federation, test).state
        exhibits(setting, key, state, row.number, federation)
        if setting.parts_with(roles.Personal, roles.Adapt):
            memory = evaluated_memory(setting, state.memory)
            model_of_client(setting, federation, jnp.zeros((), int), key, row.number, state.variables, memory)

    # During the trace, recording wrappers replace the classes' methods; they see the engine's arguments.
    setting = bench.simulation.setting
    federation, test = bench.data
    row = bench.row(setting, bench.plans(0)[0], 0)
    error = None
    with contextlib.ExitStack() as stack, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for kind, ((role, name), rule) in itertools.product({type(part) for part in setting.parts}, RULES.items()):
            if issubclass(kind, role):
                stack.enter_context(mock.patch.object(kind, name, recorded(getattr(kind, name), rule, name)))
        try:
            jax.eval_shape(first_round, setting, jax.random.key(0), row, federation, test)
        except Exception as reason:
            error = reason
    warned = [str(warning.message) for warning in caught if "Explicitly requested dtype" in str(warning.message)]
    return error, faults, warned[0].split(".")[0] if warned else ""


def _compare(name: str, received: PyTree, wanted: PyTree) -> str | None:
    if wanted is None:
        odd = [leaf for leaf in jax.tree.leaves(received) if not jnp.issubdtype(jax.typeof(leaf).dtype, jnp.number)]
        rule = "numbers, which can be added up: turn truth values into counts with astype"
        return f"{name}: received {_text(odd[0])}, must be {rule}" if odd else None
    ours = jax.tree.structure(received)
    theirs = jax.tree.structure(wanted)
    if ours != theirs:
        return f"{name}: received the structure {ours}, must be {theirs}: return a tree like the one handed in"
    for (path, leaf), like in zip(jax.tree_util.tree_leaves_with_path(received), jax.tree.leaves(wanted), strict=True):
        if _text(leaf) != _text(like):
            dtype = jax.typeof(like).dtype
            cast = "float" if jnp.issubdtype(dtype, jnp.floating) else dtype
            remedy = "reduce or reshape it" if jnp.shape(leaf) != jnp.shape(like) else f"cast it with astype({cast})"
            at = name + jax.tree_util.keystr(path)
            return f"{at}: received {_text(leaf)}, must be {_text(like)}: {remedy}"
    return None


def _text(leaf: Any) -> str:
    return f"{jax.typeof(leaf).dtype}{list(jnp.shape(leaf))}"
