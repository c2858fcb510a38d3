"""Several rounds as one compiled program."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device.chain import ChainClients, ChainResult, RoundInputs, zero_result
from fedjax_bal.engine.device.client_metrics import LocalTest
from fedjax_bal.engine.device.closing import close, closing_reports
from fedjax_bal.engine.device.evaluation import TestSet, evaluate, some_images
from fedjax_bal.engine.device.held_out import VALIDATION, evaluate_held_out, hits_of_own_models
from fedjax_bal.engine.device.keys import purpose_key
from fedjax_bal.engine.device.personal import PERSONAL, frozen_leaves, own_leaves, own_memory, seen
from fedjax_bal.engine.device.round import broadcast, refine, run_round, seen_by, server_context, zero_info
from fedjax_bal.engine.device.schedule import DispatchPlan
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.state import Info, State
from fedjax_bal.metrics import Traffic
from fedjax_bal.parts import Closing, Memory, Probe, Refine, Server
from fedjax_bal.types import Array, EvaluationResult, Exhibit, Federation, Key, Plan, Variables, size_in_bytes


def init_state(setting: Setting, key: Key, federation: Federation, seats: int | None = None) -> State:
    """The state before the first round.

    The initial weights depend on the run's key alone, so that all methods share them. The devices keep the memory of
    `seats` clients, by default of all.
    """
    return state_of(setting, key, setting.model.init(purpose_key(key, "init")), federation, seats)


def state_of(
    setting: Setting, key: Key, variables: Variables, federation: Federation, seats: int | None = None
) -> State:
    """The state before the first round for a given initial model; the other arguments are those of `init_state`."""
    clients = federation.num_clients
    spread = lambda leaf: jnp.broadcast_to(leaf, (clients if seats is None else seats, *leaf.shape))
    memory = {part.slot: part.init_memory(*seen(setting, part, variables)) for part in setting.parts_with(Memory)}
    memory = jax.tree.map(spread, memory | own_memory(setting, variables))
    state = State(variables, setting.server.transform(0).init(variables.params), memory, {})
    server = server_context(setting, jnp.zeros((), jnp.int32), state, federation)
    slots = {
        part.slot: part.init_server(seen_by(setting, part, server)._replace(key=purpose_key(key, f"init/{part.slot}")))
        for part in setting.parts_with(Server)
    }
    return state._replace(server=slots)


def dispatch(
    setting: Setting, key: Key, state: State, schedule: DispatchPlan, federation: Federation, test: TestSet
) -> tuple[State, Info, EvaluationResult]:
    """Runs the scheduled rounds one after another, evaluating where asked.

    The round number is read from the schedule, never carried: branches on it stay branches when runs are stacked.
    Returns the state, and reports and evaluations with leaves `[T, ...]`, zeros in rounds that are not live or not
    evaluated.
    """
    images = local_test_images(setting, test)

    def advance(state: State, row: DispatchPlan) -> tuple[State, Info]:
        return run_round(setting, key, state, row, federation, LocalTest(images, row.evaluate))

    def appraise(state: State, number: Array) -> EvaluationResult:
        return evaluate_model(setting, key, state, number, federation, test)

    plan = jax.tree.map(lambda leaf: leaf[0], schedule.plan)
    nothing = zero_reports(setting, state, plan, federation, images)
    return rounds(setting, schedule, state, nothing, advance, appraise)


def rounds(
    setting: Setting,
    schedule: DispatchPlan,
    state: State,
    nothing: tuple[Info, EvaluationResult],
    advance: Callable[[State, DispatchPlan], tuple[State, Info]],
    appraise: Callable[[State, Array], EvaluationResult],
) -> tuple[State, Info, EvaluationResult]:
    """Loops over the rounds of a dispatch.

    `advance` runs one round, given its row of the schedule; `appraise` evaluates the state after it; `nothing` is
    reported for rounds that aren't run or evaluated.
    """
    schedule = jax.tree.map(jnp.asarray, schedule)

    def one(place: Array, carry: tuple[State, Info, EvaluationResult]) -> tuple[State, Info, EvaluationResult]:
        state, *shown = carry
        row = jax.tree.map(lambda leaf: leaf[place], schedule)
        state, info = advance(state, row)
        evaluation = lax.cond(row.evaluate, appraise, lambda *_: nothing[1], state, row.number)
        return state, *jax.tree.map(lambda all_, new: all_.at[place].set(new), shown, [info, evaluation])

    # Rounds that are not live come last and are left out: a branch around a round would copy the state.
    shown = jax.tree.map(lambda leaf: jnp.zeros((len(schedule.number), *leaf.shape), leaf.dtype), nothing)
    return lax.fori_loop(0, schedule.live.sum(), one, (state, *shown))


def local_test_images(setting: Setting, test: TestSet) -> TestSet | None:
    """The test images on which clients' own models are measured; None if they aren't."""
    count = setting.evaluation.local_test_images
    return some_images(test, count, setting.test_images) if count else None


def evaluate_model(
    setting: Setting, key: Key, state: State, number: Array, federation: Federation, test: TestSet
) -> EvaluationResult:
    """Evaluates a run's global model after a round (from 0)."""
    shown = evaluated_model(setting, key, state, number, federation)
    tested = evaluate(setting.model, shown, test, federation.mean, federation.std, setting.layout)
    validation, client_hits = evaluate_held_out(setting.model, shown, federation, setting.layout)
    if PERSONAL in state.memory and federation.tests is not None:
        client_hits = hits_of_own_models(setting, shown, state.memory[PERSONAL], federation)
    return tested._replace(validation=validation, client_hits=client_hits)


def zero_reports(
    setting: Setting, state: State, plan: Plan, federation: Federation, images: TestSet | None
) -> tuple[Info, EvaluationResult]:
    """Zeros in the shapes of what a round of a single run with such a plan reports and evaluates to."""
    tested = EvaluationResult(confusion=jnp.zeros((federation.num_classes,) * 2, jnp.int32), loss=jnp.zeros(()))
    clients = None if federation.tests is None else jnp.zeros(federation.num_clients, jnp.int32)
    validation = tested if VALIDATION in federation.auxiliary else None
    info = zero_info(setting, state, plan, federation, LocalTest(images, jnp.zeros((), bool)))
    return info, tested._replace(validation=validation, client_hits=clients)


def evaluated_model(setting: Setting, key: Key, state: State, number: Array, federation: Federation) -> Variables:
    """The global model as the test set sees it after a round (from 0)."""
    server, own = server_context(setting, number, state, federation), jax.random.fold_in(key, number)
    return close(setting, own, refine(setting, own, state.variables, server, evaluation_only=True), server)


def exhibits(setting: Setting, key: Key, state: State, number: Array, federation: Federation) -> dict[str, Exhibit]:
    """The server parts' exhibits after a round (from 0), by slot."""
    server = server_context(setting, number, state, federation)
    return {part.slot: part.show(key, seen_by(setting, part, server)) for part in setting.parts_with(Server)}


def traffic_of(setting: Setting, federation: Federation, state: State, *, losses: bool = False) -> Traffic:
    """Bytes of a client's download and upload in a round, counted from shapes without computing anything.

    `losses` says whether the selector learns from the clients' training losses.
    """
    own, frozen = own_leaves(setting, state.variables), frozen_leaves(setting, state.variables)
    returned = size_in_bytes(state.variables) - size_in_bytes(own | frozen)
    zero = jnp.zeros((), jnp.int32)
    sent = jax.eval_shape(lambda s: broadcast(setting, jax.random.key(0), zero, s, federation)[1], state)
    sent = {part.slot: sent[part.slot] for part in setting.parts_with(Server) if part.travels}
    result = _client_result(setting, state, federation)
    probes = {part.slot: result.records.probes[part.slot] for part in setting.parts_with(Probe) if part.travels}
    loss = result.records.loss_sum if losses or any(part.needs_losses for part in setting.parts) else ()
    upload = returned + size_in_bytes((result.reports, probes, loss))
    return Traffic(_model_download(setting, state.variables) + size_in_bytes(sent), upload)


def closing_traffic_of(setting: Setting, federation: Federation, state: State) -> Traffic:
    """Bytes of a client's download and upload before an evaluation, for Closing parts."""
    if not setting.parts_with(Closing):
        return Traffic(0, 0)
    zero = jnp.zeros((), jnp.int32)
    reports = jax.eval_shape(closing_reports, setting, jax.random.key(0), zero, state.variables, federation, zero)
    return Traffic(_model_download(setting, state.variables), size_in_bytes(reports))


def _model_download(setting: Setting, variables: Variables) -> int:
    # A frozen leaf begins the same everywhere: it is sent only if the server may have changed it.
    own, frozen = own_leaves(setting, variables), frozen_leaves(setting, variables)
    changed = any(not part.evaluation_only for part in setting.parts_with(Refine))
    return size_in_bytes(variables) - size_in_bytes(own if changed else own | frozen)


def _client_result(setting: Setting, state: State, federation: Federation) -> ChainResult:
    """The shapes of a single client's result."""

    def zeros(state: State, federation: Federation) -> ChainResult:
        key, zero = jax.random.key(0), jnp.zeros((), jnp.int32)
        sent = broadcast(setting, key, zero, state, federation)[1]
        shared = RoundInputs(key, zero, state.variables, sent, federation)
        memory = jax.tree.map(lambda leaf: leaf[0], state.memory)
        return zero_result(setting, shared, ChainClients(zero, jnp.ones((), bool), memory))

    return jax.eval_shape(zeros, state, federation)
