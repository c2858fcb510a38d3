"""Several runs as one compiled program: what differs between them are numbers, never shapes.

Chains of all runs are trained by the one owner of the client axis; what each server does before and after is done run
by run.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.axis import over_chains
from fedjax_bal.engine.chain import Links, Round, Trial
from fedjax_bal.engine.evaluation import TestSet
from fedjax_bal.engine.program import Schedule, assess, nothing_shown, rounds, tried_on
from fedjax_bal.engine.round import close_round, open_round
from fedjax_bal.engine.runs import Together, federation_of, pick
from fedjax_bal.engine.setting import Setting
from fedjax_bal.types import Array, Evaluation, Federation, Info, Key, PyTree, State


def dispatch_together(
    setting: Setting, keys: Key, state: State, schedule: Schedule, federation: Federation, test: TestSet
) -> tuple[State, Info, Evaluation]:
    """Runs the scheduled rounds of several runs.

    Args:
        setting: their settings, leaves `[S]`.
        keys: each run's key, `[S]`.
        state: their states before, leaves `[S, ...]`.
        schedule: T rounds, the same for all but for who trains: `plan` and `seats` have leaves `[T, S, G, L]`. `deal`
            is that of all S * G chains, those of one run after those of another.
        federation: their common federation, or theirs from `side_by_side`, on the device.
        test: the test set.

    Returns:
        The states after, leaves `[S, ...]`, and what the rounds report and evaluate to, leaves `[T, S, ...]`: to
        rounding the same as those of `dispatch`.
    """
    each = _each(setting, len(keys))
    tried = tried_on(setting, test)

    def advance(state: State, row: Schedule) -> tuple[State, Info]:
        trial = None if tried is None and federation.tests is None else Trial(tried, row.evaluate)
        return _run_round(setting, keys, state, row, federation, trial)

    def appraise(state: State, number: Array) -> Evaluation:
        def one(run: Array) -> Evaluation:
            own, key, variables = pick((setting, keys, state.variables), run)
            return assess(own, key, variables, number, federation_of(federation, run), test)

        return each(one)

    first = jnp.zeros((), jnp.int32)
    alone, before = pick((setting, state), first)
    nothing = nothing_shown(alone, schedule, before, federation_of(federation, first))
    nothing = jax.tree.map(lambda leaf: jnp.zeros((len(keys), *leaf.shape), leaf.dtype), nothing)
    return rounds(setting, schedule, state, nothing, advance, appraise)


def _run_round(
    setting: Setting, keys: Key, state: State, row: Schedule, federation: Federation, trial: Trial | None
) -> tuple[State, Info]:
    runs = Together(*row.plan.clients.shape[:2])
    each, places = _each(setting, runs.count), jnp.arange(runs.count)[:, None, None]
    memory, state = state.memory, state._replace(memory={})

    def opened(run: Array) -> PyTree:
        own, key, before, plan = pick((setting, keys, state, row.plan), run)
        return open_round(own, key, row.number, before, plan, federation_of(federation, run))

    opening = each(opened)
    seated = jax.tree.map(lambda leaf: leaf.at[places, row.seats].get(mode="clip"), memory)
    links = _in_a_row(Links(row.plan.clients, row.plan.delivered, seated, row.plan.limits))
    shared = Round(keys, row.number, state.variables, opening.sent, federation, trial, row.plan.bound)
    brought = over_chains(setting, shared, links, _in_a_row(opening.shares), row.deal, runs)
    per_run = lambda leaf: leaf.reshape(runs.count, runs.groups, *leaf.shape[1:])
    shown, deltas = jax.tree.map(per_run, (brought.shown, brought.deltas))
    brought = brought._replace(shown=shown, deltas=deltas)

    def closed(run: Array) -> tuple[State, Info]:
        own, key, before, begun, theirs = pick((setting, keys, state, opening, brought), run)
        return close_round(own, key, row.number, before, federation_of(federation, run), begun, theirs)

    state, info = each(closed)
    kept = jnp.where(row.plan.delivered, row.seats, jnp.iinfo(jnp.int32).max)
    put = lambda all_, own: all_.at[places, kept].set(own, mode="drop")
    return state._replace(memory=jax.tree.map(put, memory, shown.memory)), info


def _each(setting: Setting, count: int) -> Callable[[Callable[[Array], PyTree]], PyTree]:
    """A function that does something for every run, one after another where clients are trained so."""
    numbers = jnp.arange(count)
    if setting.layout.strategy == "map":
        return lambda one: lax.map(one, numbers)
    return lambda one: jax.vmap(one)(numbers)


def _in_a_row(tree: PyTree) -> PyTree:
    """The chains of all runs, one run's after another's, from leaves `[S, G, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)
