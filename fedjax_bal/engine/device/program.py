"""Several rounds as one compiled program."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device.assignment import Assignment
from fedjax_bal.engine.device.chain import ChainClients, ChainResult, LocalTest, RoundInputs, zero_result
from fedjax_bal.engine.device.evaluation import TestSet, evaluate, first_images
from fedjax_bal.engine.device.held_out import VALIDATION, evaluate_held_out
from fedjax_bal.engine.device.keys import purpose_key
from fedjax_bal.engine.device.precision import matmul_precision
from fedjax_bal.engine.device.round import broadcast, run_round
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.metrics import Traffic
from fedjax_bal.parts import Memory, Present, Server
from fedjax_bal.types import Array, Evaluation, Federation, Info, Key, Plan, Shapes, State, Variables, size_in_bytes


class DispatchPlan(NamedTuple):
    """The rounds of one dispatch; leaves `[T, ...]`.

    Attributes:
        number: the round, from 0.
        live: False for places after the last round, which change nothing.
        evaluate: whether the round ends with an evaluation.
        plan: the clients that train, and those that deliver.
        seats: place of each client's part in the memory, `Int32[T, G, L]`.
        assignment: the chains that each device trains.
    """

    number: Any
    live: Any
    evaluate: Any
    plan: Plan
    seats: Any
    assignment: Assignment


def init_state(setting: Setting, key: Key, federation: Federation, seats: int | None = None) -> State:
    """The state before the first round.

    The initial weights depend on the run's key alone, so that all methods share them. The devices keep the memory of
    `seats` clients, by default of all.
    """
    return state_of(setting, setting.model.init(purpose_key(key, "init")), federation, seats)


def state_of(setting: Setting, variables: Variables, federation: Federation, seats: int | None = None) -> State:
    """The state before the first round for a given initial model; arguments as of `init_state`."""
    clients = federation.num_clients
    spread = lambda leaf: jnp.broadcast_to(leaf, (clients if seats is None else seats, *leaf.shape))
    memory = {part.slot: jax.tree.map(spread, part.init_memory(variables)) for part in setting.parts_with(Memory)}
    shapes = Shapes(clients, federation.num_classes, feature_size(setting))
    server = {part.slot: part.init_server(variables, shapes) for part in setting.parts_with(Server)}
    return State(variables, setting.server.transform(0).init(variables.params), memory, server)


def feature_size(setting: Setting) -> int:
    """F, the width of the classifier's input."""
    model = setting.model

    def features() -> jax.Array:
        images = jnp.zeros((1, *model.input_shape))
        return model.apply(model.init(jax.random.key(0)), images, train=False)[0].features

    return jax.eval_shape(features).shape[-1]


def dispatch(
    setting: Setting, key: Key, state: State, schedule: DispatchPlan, federation: Federation, test: TestSet
) -> tuple[State, Info, Evaluation]:
    """Runs the T scheduled rounds one after another, evaluating where the schedule says so.

    The round number is read from the schedule, never carried: branches on it stay branches when runs are stacked.
    Returns the state, and reports and evaluations with leaves `[T, ...]`, zeros in rounds that are not live or not
    evaluated.
    """
    tried = local_test_of(setting, test)

    def advance(state: State, row: DispatchPlan) -> tuple[State, Info]:
        local_test = None if tried is None and federation.tests is None else LocalTest(tried, row.evaluate)
        return run_round(setting, key, row.number, state, row.plan, row.seats, row.assignment, federation, local_test)

    def appraise(state: State, number: Array) -> Evaluation:
        return evaluate_model(setting, key, state.variables, number, federation, test)

    nothing = zero_reports(setting, schedule, state, federation)
    return rounds(setting, schedule, state, nothing, advance, appraise)


def rounds(
    setting: Setting,
    schedule: DispatchPlan,
    state: State,
    nothing: tuple[Info, Evaluation],
    advance: Callable[[State, DispatchPlan], tuple[State, Info]],
    appraise: Callable[[State, Array], Evaluation],
) -> tuple[State, Info, Evaluation]:
    """The loop over the rounds of a dispatch; returns as `dispatch` does.

    `advance` does one round, given its row of the schedule; `appraise` evaluates the state after it; `nothing` fills
    the rows of rounds that aren't run or evaluated.
    """
    schedule = jax.tree.map(jnp.asarray, schedule)

    def one(place: Array, carry: tuple[State, Info, Evaluation]) -> tuple[State, Info, Evaluation]:
        state, *shown = carry
        row = jax.tree.map(lambda leaf: leaf[place], schedule)
        with jax.default_matmul_precision(matmul_precision(setting.precision)):
            state, info = advance(state, row)
        evaluation = lax.cond(row.evaluate, appraise, lambda *_: nothing[1], state, row.number)
        return state, *jax.tree.map(lambda all_, new: all_.at[place].set(new), shown, [info, evaluation])

    # Rounds that are not live come last and are left out: a branch around a round would copy the state.
    shown = jax.tree.map(lambda leaf: jnp.zeros((len(schedule.number), *leaf.shape), leaf.dtype), nothing)
    return lax.fori_loop(0, schedule.live.sum(), one, (state, *shown))


def local_test_of(setting: Setting, test: TestSet) -> TestSet | None:
    """The test images for the clients' own models; None if these aren't tested."""
    return first_images(test, setting.local_test_images, setting.test_images) if setting.local_test_images else None


def evaluate_model(
    setting: Setting, key: Key, variables: Variables, number: Array, federation: Federation, test: TestSet
) -> Evaluation:
    """Evaluates a run's global model after a round (from 0), as `refine_model` prepares it."""
    shown = refine_model(setting, jax.random.fold_in(key, number), variables, federation)
    tested = evaluate(setting.model, shown, test, federation.mean, federation.std, setting.layout)
    validation, client_hits = evaluate_held_out(setting.model, shown, federation, setting.layout)
    return tested._replace(validation=validation, client_hits=client_hits)


def zero_reports(
    setting: Setting, schedule: DispatchPlan, state: State, federation: Federation
) -> tuple[Info, Evaluation]:
    """Zeros in the shapes of a single run's report and evaluation of a round."""
    return _nothing(schedule.plan.clients.shape[-2:], _visit(setting, state, federation), federation)


def refine_model(setting: Setting, key: Key, variables: Variables, federation: Federation) -> Variables:
    """The global model as the Present parts prepare it for evaluation; the key is the round's."""
    for part in setting.parts_with(Present):
        variables = part.present(purpose_key(key, f"present/{part.slot}"), variables, setting.model, federation)
    return variables


def _nothing(places: tuple[int, ...], visit: ChainResult, federation: Federation) -> tuple[Info, Evaluation]:
    number, visits = jnp.zeros(()), jnp.zeros(places, jnp.int32)
    probes = jax.tree.map(lambda leaf: jnp.zeros((*places, *leaf.shape), leaf.dtype), visit.records.probes)
    unseen = (visits, jnp.zeros((), bool), jnp.zeros(places))
    info = Info(number, number, number, number, visits, *unseen, probes, visits, jnp.zeros(places))
    tested = Evaluation(jnp.zeros((federation.num_classes, federation.num_classes), jnp.int32), number)
    clients = None if federation.tests is None else jnp.zeros(federation.num_clients, jnp.int32)
    validation = tested if VALIDATION in federation.auxiliary else None
    return info, tested._replace(validation=validation, client_hits=clients)


def traffic_of(setting: Setting, federation: Federation, state: State) -> Traffic:
    """Bytes of a client's download and upload, counted from shapes without computing anything."""
    model = size_in_bytes(state.variables)
    zero = jnp.zeros((), jnp.int32)
    sent = jax.eval_shape(lambda s: broadcast(setting, jax.random.key(0), zero, s)[1], state)
    sent = {part.slot: sent[part.slot] for part in setting.parts_with(Server) if part.travels}
    visit = _visit(setting, state, federation)
    return Traffic(model + size_in_bytes(sent), model + size_in_bytes((visit.reports, visit.records.probes)))


def _visit(setting: Setting, state: State, federation: Federation) -> ChainResult:
    """The shapes of a single client's result."""

    def nothing(state: State, federation: Federation) -> ChainResult:
        key, zero = jax.random.key(0), jnp.zeros((), jnp.int32)
        shared = RoundInputs(key, zero, state.variables, broadcast(setting, key, zero, state)[1], federation)
        memory = jax.tree.map(lambda leaf: leaf[0], state.memory)
        return zero_result(setting, shared, ChainClients(zero, jnp.ones((), bool), memory))

    return jax.eval_shape(nothing, state, federation)
