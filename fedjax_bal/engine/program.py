"""Several rounds as one compiled program."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.chain import ChainResult, Links, Round, Trial, nothing_yet
from fedjax_bal.engine.deal import Deal
from fedjax_bal.engine.evaluation import TestSet, evaluate, some
from fedjax_bal.engine.held_out import VALIDATION, evaluate_held_out
from fedjax_bal.engine.keys import purpose_key
from fedjax_bal.engine.memory import size_in_bytes
from fedjax_bal.engine.precision import matmul_precision
from fedjax_bal.engine.round import broadcast, run_round
from fedjax_bal.engine.setting import Setting
from fedjax_bal.parts import Memory, Present, Server
from fedjax_bal.types import Array, Evaluation, Federation, Info, Key, Plan, Shapes, State, Variables


class Schedule(NamedTuple):
    """The rounds of one dispatch; leaves `[T, ...]`.

    Attributes:
        number: the round, from 0.
        live: False for places behind the last round, which change nothing.
        evaluate: whether the round ends with an evaluation.
        plan: who trains and who delivers.
        seats: where in the memory each client's part is, `Int32[T, G, L]`.
        deal: which device trains which chain.
    """

    number: Any
    live: Any
    evaluate: Any
    plan: Plan
    seats: Any
    deal: Deal


def init_state(setting: Setting, key: Key, federation: Federation, seats: int | None = None) -> State:
    """The state before the first round.

    Args:
        setting: the setting.
        key: the run's key; the initial weights depend on nothing else, so that all methods share them.
        federation: the federation.
        seats: clients whose memory is kept on the device; by default all.

    Returns:
        The state.
    """
    return state_of(setting, setting.model.init(purpose_key(key, "init")), federation, seats)


def state_of(setting: Setting, variables: Variables, federation: Federation, seats: int | None = None) -> State:
    """The state before the first round that goes with an initial model; arguments as of `init_state`."""
    clients = federation.num_clients
    spread = lambda leaf: jnp.broadcast_to(leaf, (clients if seats is None else seats, *leaf.shape))
    memory = {part.slot: jax.tree.map(spread, part.init_memory(variables)) for part in setting.playing(Memory)}
    shapes = Shapes(clients, federation.num_classes, feature_size(setting))
    server = {part.slot: part.init_server(variables, shapes) for part in setting.playing(Server)}
    return State(variables, setting.server.transform(0).init(variables.params), memory, server)


def feature_size(setting: Setting) -> int:
    """F, the width of the classifier's input."""
    model = setting.model

    def features() -> jax.Array:
        images = jnp.zeros((1, *model.input_shape))
        return model.apply(model.init(jax.random.key(0)), images, train=False)[0].features

    return jax.eval_shape(features).shape[-1]


def dispatch(
    setting: Setting, key: Key, state: State, schedule: Schedule, federation: Federation, test: TestSet
) -> tuple[State, Info, Evaluation]:
    """Runs the scheduled rounds one after another, evaluating where asked.

    The round number is read from the schedule, never carried: branches on it stay branches when runs are stacked.

    Args:
        setting: the setting.
        key: the run's key.
        state: the state before.
        schedule: T rounds.
        federation: the federation, on the device.
        test: the test set.

    Returns:
        The state after, and what the rounds report and evaluate to, leaves `[T, ...]`; zeros in rounds that are not
        live or not evaluated.
    """
    tried = tried_on(setting, test)

    def advance(state: State, row: Schedule) -> tuple[State, Info]:
        trial = None if tried is None and federation.tests is None else Trial(tried, row.evaluate)
        return run_round(setting, key, row.number, state, row.plan, row.seats, row.deal, federation, trial)

    def appraise(state: State, number: Array) -> Evaluation:
        return assess(setting, key, state.variables, number, federation, test)

    nothing = nothing_shown(setting, schedule, state, federation)
    return rounds(setting, schedule, state, nothing, advance, appraise)


def rounds(
    setting: Setting,
    schedule: Schedule,
    state: State,
    nothing: tuple[Info, Evaluation],
    advance: Callable[[State, Schedule], tuple[State, Info]],
    appraise: Callable[[State, Array], Evaluation],
) -> tuple[State, Info, Evaluation]:
    """The loop over the rounds of a dispatch.

    Args:
        setting: the setting.
        schedule: T rounds.
        state: the state before.
        nothing: what a round shows that isn't run or evaluated.
        advance: does one round, given its row of the schedule.
        appraise: evaluates a state after a round.

    Returns:
        As `dispatch`.
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


def tried_on(setting: Setting, test: TestSet) -> TestSet | None:
    """The test images that clients' own models are tried on; None where they aren't."""
    return some(test, setting.local_test_images, setting.test_images) if setting.local_test_images else None


def assess(
    setting: Setting, key: Key, variables: Variables, number: Array, federation: Federation, test: TestSet
) -> Evaluation:
    """Evaluates a run's global model as it is shown after a round (from 0)."""
    shown = presented(setting, jax.random.fold_in(key, number), variables, federation)
    tested = evaluate(setting.model, shown, test, federation.mean, federation.std, setting.layout)
    validation, client_hits = evaluate_held_out(setting.model, shown, federation, setting.layout)
    return tested._replace(validation=validation, client_hits=client_hits)


def nothing_shown(
    setting: Setting, schedule: Schedule, state: State, federation: Federation
) -> tuple[Info, Evaluation]:
    """Zeros in the shapes of what a round of a single run shows."""
    return _nothing(schedule.plan.clients.shape[-2:], _visit(setting, state, federation), federation)


def presented(setting: Setting, key: Key, variables: Variables, federation: Federation) -> Variables:
    """The model as it is shown to the test set; the key is the round's."""
    for part in setting.playing(Present):
        variables = part.present(purpose_key(key, f"present/{part.slot}"), variables, setting.model, federation)
    return variables


def _nothing(places: tuple[int, ...], visit: ChainResult, federation: Federation) -> tuple[Info, Evaluation]:
    number, visits = jnp.zeros(()), jnp.zeros(places, jnp.int32)
    probes = jax.tree.map(lambda leaf: jnp.zeros((*places, *leaf.shape), leaf.dtype), visit.shown.probes)
    unseen = (visits, jnp.zeros((), bool), jnp.zeros(places))
    info = Info(number, number, number, number, visits, *unseen, probes, visits, jnp.zeros(places))
    tested = Evaluation(jnp.zeros((federation.num_classes, federation.num_classes), jnp.int32), number)
    clients = None if federation.tests is None else jnp.zeros(federation.num_clients, jnp.int32)
    validation = tested if VALIDATION in federation.auxiliary else None
    return info, tested._replace(validation=validation, client_hits=clients)


class Traffic(NamedTuple):
    """Bytes between the server and one client in one round.

    Attributes:
        down: the model and what server parts send.
        up: the update, the reports and the probes.
    """

    down: int
    up: int


def traffic(setting: Setting, federation: Federation, state: State) -> Traffic:
    """Counts bytes from shapes, without computing anything.

    Args:
        setting: the setting.
        federation: the federation.
        state: a state, or its shapes.

    Returns:
        The bytes of a client's download and upload.
    """
    model = size_in_bytes(state.variables)
    zero = jnp.zeros((), jnp.int32)
    sent = jax.eval_shape(lambda s: broadcast(setting, jax.random.key(0), zero, s)[1], state)
    sent = {part.slot: sent[part.slot] for part in setting.playing(Server) if part.travels}
    visit = _visit(setting, state, federation)
    return Traffic(model + size_in_bytes(sent), model + size_in_bytes((visit.reports, visit.shown.probes)))


def _visit(setting: Setting, state: State, federation: Federation) -> ChainResult:
    """The shapes of what a visit to one client brings."""

    def nothing(state: State, federation: Federation) -> ChainResult:
        key, zero = jax.random.key(0), jnp.zeros((), jnp.int32)
        shared = Round(key, zero, state.variables, broadcast(setting, key, zero, state)[1], federation)
        memory = jax.tree.map(lambda leaf: leaf[0], state.memory)
        return nothing_yet(setting, shared, Links(zero, jnp.ones((), bool), memory))

    return jax.eval_shape(nothing, state, federation)
