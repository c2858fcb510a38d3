"""Several runs as one compiled program: they differ in numbers, never in shapes.

The chains of all runs are trained by the one owner of the client axis; each server's work before and after is done
run by run.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device.chain import ChainClients, RoundInputs
from fedjax_bal.engine.device.client_axis import over_chains
from fedjax_bal.engine.device.client_metrics import LocalTest
from fedjax_bal.engine.device.evaluation import TestSet
from fedjax_bal.engine.device.personal import PERSONAL
from fedjax_bal.engine.device.program import evaluate_model, local_test_images, rounds, zero_reports
from fedjax_bal.engine.device.round import close_round, open_round
from fedjax_bal.engine.device.run_axis import StackedRuns, federation_of, run_slice
from fedjax_bal.engine.device.schedule import DispatchPlan
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.state import Info, State
from fedjax_bal.types import Array, EvaluationResult, Federation, Key, PyTree


def dispatch_together(
    setting: Setting, keys: Key, state: State, schedule: DispatchPlan, federation: Federation, test: TestSet
) -> tuple[State, Info, EvaluationResult]:
    """Runs the scheduled rounds of several runs.

    Settings, keys and states have leaves `[S, ...]`, and so have the returned states; reports and evaluations have
    leaves `[T, S, ...]`. The runs share the schedule of T rounds but for the clients: `plan` and `seats` have leaves
    `[T, S, G, L]`, and `assignment` is that of all S * G chains, one run's after another's. The federation is their
    common one, or the stacked one from `side_by_side`.
    """
    each = _each(setting, len(keys))
    images = local_test_images(setting, test)

    def advance(state: State, row: DispatchPlan) -> tuple[State, Info]:
        return _run_round(setting, keys, state, row, federation, LocalTest(images, row.evaluate))

    def appraise(state: State, number: Array) -> EvaluationResult:
        # Of the clients' memory, evaluation reads the leaves of the model that they keep, and no method's own.
        seen = state._replace(memory={slot: own for slot, own in state.memory.items() if slot == PERSONAL})

        def one(run: Array) -> EvaluationResult:
            own, key, alone = run_slice((setting, keys, seen), run)
            return evaluate_model(own, key, alone, number, federation_of(federation, run), test)

        return each(one)

    first = jnp.zeros((), jnp.int32)
    alone, before = run_slice((setting, state), first)
    plan = jax.tree.map(lambda leaf: leaf[0, 0], schedule.plan)
    nothing = zero_reports(alone, before, plan, federation_of(federation, first), images)
    nothing = jax.tree.map(lambda leaf: jnp.zeros((len(keys), *leaf.shape), leaf.dtype), nothing)
    return rounds(setting, schedule, state, nothing, advance, appraise)


def _run_round(
    setting: Setting, keys: Key, state: State, row: DispatchPlan, federation: Federation, local_test: LocalTest
) -> tuple[State, Info]:
    runs = StackedRuns(*row.plan.clients.shape[:2])
    each, places = _each(setting, runs.count), jnp.arange(runs.count)[:, None, None]
    memory, state = state.memory, state._replace(memory={})

    def opened(run: Array) -> PyTree:
        own, key, before, plan = run_slice((setting, keys, state, row.plan), run)
        return open_round(own, key, row.number, before, plan, federation_of(federation, run))

    begun = each(opened)
    seated = jax.tree.map(lambda leaf: leaf.at[places, row.seats].get(mode="clip"), memory)
    chains = _in_a_row(ChainClients(row.plan.clients, row.plan.delivered, seated, row.plan.limits))
    shared = RoundInputs(keys, row.number, state.variables, begun.sent, federation, local_test, begun.largest_norm)
    result = over_chains(setting, shared, chains, _in_a_row(begun.chain_weights), row.assignment, runs)
    per_run = lambda leaf: leaf.reshape(runs.count, runs.chains, *leaf.shape[1:])
    records, deltas = jax.tree.map(per_run, (result.records, result.deltas))
    result = result._replace(records=records, deltas=deltas)

    def closed(run: Array) -> tuple[State, Info]:
        own, key, before, start, theirs = run_slice((setting, keys, state, begun, result), run)
        return close_round(own, key, row.number, before, federation_of(federation, run), start, theirs)

    state, info = each(closed)
    kept = jnp.where(row.plan.delivered, row.seats, jnp.iinfo(jnp.int32).max)
    put = lambda all_, own: all_.at[places, kept].set(own, mode="drop")
    return state._replace(memory=jax.tree.map(put, memory, records.memory)), info


def _each(setting: Setting, count: int) -> Callable[[Callable[[Array], PyTree]], PyTree]:
    """Returns a function that maps over the runs: one after another under the strategy "map", else vectorised."""
    numbers = jnp.arange(count)
    if setting.layout.strategy == "map":
        return lambda one: lax.map(one, numbers)
    return lambda one: jax.vmap(one)(numbers)


def _in_a_row(tree: PyTree) -> PyTree:
    """The chains of all runs, one run's after another's, from leaves `[S, G, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)
