"""Several rounds as one compiled program, for one run or for several; evaluation of the model; traffic."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device import leaves
from fedjax_bal.engine.device.chain import ChainClients, ChainResult, RoundInputs, client_context, zero_result
from fedjax_bal.engine.device.client_axis import over_chains
from fedjax_bal.engine.device.drawing import purpose_key, unrolled
from fedjax_bal.engine.device.evaluation import (
    VALIDATION,
    LocalTest,
    TestSet,
    client_hits_shape,
    evaluate,
    evaluate_held_out,
    fold_in_batches,
    hits_of_personal_models,
    some_images,
)
from fedjax_bal.engine.device.local_training import LocalState, outcome_of
from fedjax_bal.engine.device.roles import call
from fedjax_bal.engine.device.round import (
    broadcast,
    chains_of,
    close_round,
    kept_seats,
    open_round,
    refine,
    run_round,
    server_context,
    zero_info,
)
from fedjax_bal.engine.device.run_axis import SeveralRuns, federation_of, run_slice
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.state import DispatchPlan, Info, State
from fedjax_bal.engine.device.trees import put, take, zeros_of
from fedjax_bal.metrics import Traffic
from fedjax_bal.parts import Adapt, Closing, Deliver, Memory, Personal, Probe, Refine, Report, Server
from fedjax_bal.types import (
    Array,
    EvaluationResult,
    Exhibit,
    Federation,
    Key,
    Model,
    Plan,
    PyTree,
    Variables,
    size_in_bytes,
)


def init_state(setting: Setting, key: Key, federation: Federation, seats: int | None = None) -> State:
    """Makes the state before the first round; the memory has rows for `seats` clients, by default for all."""
    return state_of(setting, key, initial_variables(setting.model, key), federation, seats)


def initial_variables(model: Model, key: Key) -> Variables:
    """Draws a run's initial model, which depends only on the run's key, so that all methods share it."""
    return model.init(purpose_key(unrolled(key), "init"))


def state_of(
    setting: Setting, key: Key, variables: Variables, federation: Federation, seats: int | None = None
) -> State:
    """Makes the state before the first round from an initial model; the other arguments are those of `init_state`."""
    clients = federation.num_clients
    spread = lambda leaf: jnp.broadcast_to(leaf, (clients if seats is None else seats, *leaf.shape))
    memory = {part.slot: call(setting, part, part.init_memory, variables) for part in setting.parts_with(Memory)}
    memory = jax.tree.map(spread, memory | leaves.personal_memory(setting, variables))
    state = State(variables, setting.server.transform(0).init(variables.params), memory, {})
    server = server_context(setting, jnp.zeros((), jnp.int32), state, federation)
    # Server parts come last: they see the model that was drawn, but no state of another part, as there is none yet.
    server_states = {
        part.slot: call(setting, part, part.init_server, server._replace(key=purpose_key(key, f"init/{part.slot}")))
        for part in setting.parts_with(Server)
    }
    state = state._replace(server=server_states)
    if not setting.max_staleness:
        return state
    first = jnp.zeros((), jnp.int32)
    sent = jax.eval_shape(lambda state: broadcast(setting, key, first, state, federation)[1], state)
    return state._replace(downloads=zeros_of((variables, sent), setting.max_staleness + 1))


def dispatch(
    setting: Setting, key: Key, state: State, rounds: DispatchPlan, federation: Federation, test: TestSet
) -> tuple[State, Info, EvaluationResult]:
    """Runs the rounds of a dispatch one after another, with evaluations where they are due.

    The round number is read from `rounds`, never carried, so that branches on it stay branches when runs are
    stacked. Returns the state, and reports and evaluations with leaves `[T, ...]`, which are zeros for rounds that are
    not live or not evaluated.
    """
    images = local_test_images(setting, test)

    def advance(state: State, row: DispatchPlan) -> tuple[State, Info]:
        return run_round(setting, key, state, row, federation, LocalTest(images, row.evaluate))

    def evaluate_run(state: State, number: Array) -> EvaluationResult:
        return evaluate_model(setting, key, state, number, federation, test)

    plan = jax.tree.map(lambda leaf: leaf[0], rounds.plan)
    nothing = zero_reports(setting, state, plan, federation, images)
    return scan_rounds(rounds, state, nothing, advance, evaluate_run)


def dispatch_stacked(
    setting: Setting, keys: Key, state: State, rounds: DispatchPlan, federation: Federation, test: TestSet
) -> tuple[State, Info, EvaluationResult]:
    """Runs the rounds of a dispatch for several runs, which differ in numbers, never in shapes.

    `over_chains` trains the chains of all runs together; the server's work before and after is done run by run.
    Settings, keys and states have leaves `[S, ...]`, and so have the returned states; reports and evaluations have
    leaves `[T, S, ...]`. The runs share `rounds`, of T rounds, except for the clients: `plan` and `seats` have leaves
    `[T, S, G, L]`, and `assignment` has all S * G chains, run by run. The federation is shared, or stacked by
    `stack_federations`.
    """
    over_runs = _over_runs(setting, len(keys))
    images = local_test_images(setting, test)

    def advance(state: State, row: DispatchPlan) -> tuple[State, Info]:
        return _run_stacked_round(setting, keys, state, row, federation, LocalTest(images, row.evaluate))

    def evaluate_all(state: State, number: Array) -> EvaluationResult:
        # The rest of the clients' memory isn't sliced, because a slice copies the memory of all clients of a run.
        kept = state._replace(memory=leaves.evaluated_memory(setting, state.memory), downloads=())

        def evaluate_run(run: Array) -> EvaluationResult:
            its_setting, key, its_state = run_slice((setting, keys, kept), run)
            return evaluate_model(its_setting, key, its_state, number, federation_of(federation, run), test)

        return over_runs(evaluate_run)

    first = jnp.zeros((), jnp.int32)
    first_setting, first_state = run_slice((setting, state), first)
    plan = jax.tree.map(lambda leaf: leaf[0, 0], rounds.plan)
    nothing = zero_reports(first_setting, first_state, plan, federation_of(federation, first), images)
    return scan_rounds(rounds, state, zeros_of(nothing, len(keys)), advance, evaluate_all)


def _run_stacked_round(
    setting: Setting, keys: Key, state: State, row: DispatchPlan, federation: Federation, local_test: LocalTest
) -> tuple[State, Info]:
    runs = SeveralRuns(*row.plan.clients.shape[:2])
    over_runs = _over_runs(setting, runs.count)
    numbers = jnp.arange(runs.count)[:, None, None]
    # Rows of the memory and of the downloads are read and written for all runs at once. Both stay out of the state
    # below, whose slices for each run would copy them.
    memory = state.memory
    downloads = state.downloads
    state = state._replace(memory={}, downloads=())

    def open_run(run: Array) -> PyTree:
        its_setting, key, before, plan = run_slice((setting, keys, state, row.plan), run)
        return open_round(its_setting, key, row.number, before, plan, federation_of(federation, run))

    opened = over_runs(open_run)
    seated = take(memory, (numbers, row.seats))
    chains = _in_a_row(chains_of(row.plan, seated))
    if setting.max_staleness:
        at = (slice(None), setting.download_row(row.number))
        downloads = put(downloads, at, (state.variables, opened.sent))
    shared = RoundInputs(
        keys, row.number, state.variables, opened.sent, federation, local_test, opened.largest_norm, downloads
    )
    result = over_chains(setting, shared, chains, _in_a_row(opened.chain_weights), row.assignment, runs)
    per_run = lambda leaf: leaf.reshape(runs.count, runs.chains, *leaf.shape[1:])
    records, deltas, stats = jax.tree.map(per_run, (result.records, result.deltas, result.stats))
    result = result._replace(records=records, deltas=deltas, stats=stats)

    def close_run(run: Array) -> tuple[State, Info, PyTree]:
        its_setting, key, before, start, its_result = run_slice((setting, keys, state, opened, result), run)
        return close_round(its_setting, key, row.number, before, federation_of(federation, run), start, its_result)

    state, info, synchronised = over_runs(close_run)
    memory = put(memory, (numbers, kept_seats(row)), records.memory | synchronised)
    return state._replace(memory=memory, downloads=downloads), info


def _over_runs(setting: Setting, count: int) -> Callable[[Callable[[Array], PyTree]], PyTree]:
    """Returns a function that maps over the runs: one after another under the strategy "map", else with `vmap`."""
    numbers = jnp.arange(count)
    if setting.layout.strategy == "map":
        return lambda function: lax.map(function, numbers)
    return lambda function: jax.vmap(function)(numbers)


def _in_a_row(tree: PyTree) -> PyTree:
    """Concatenates the chains of all runs, run by run, from leaves `[S, G, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def scan_rounds(
    rounds: DispatchPlan,
    state: State,
    nothing: tuple[Info, EvaluationResult],
    advance: Callable[[State, DispatchPlan], tuple[State, Info]],
    evaluate: Callable[[State, Array], EvaluationResult],
) -> tuple[State, Info, EvaluationResult]:
    """Loops over the rounds of a dispatch.

    `advance` runs one round, given its row of `rounds`; `evaluate` evaluates the state after it; `nothing`, zeros,
    is reported for rounds that aren't run or evaluated.
    """
    rounds = jax.tree.map(jnp.asarray, rounds)

    def one_round(index: Array, carry: tuple[State, Info, EvaluationResult]) -> tuple[State, Info, EvaluationResult]:
        state, *reports = carry
        row = jax.tree.map(lambda leaf: leaf[index], rounds)
        state, info = advance(state, row)
        evaluation = lax.cond(row.evaluate, evaluate, lambda *_: nothing[1], state, row.number)
        return state, *jax.tree.map(lambda all_, new: all_.at[index].set(new), reports, [info, evaluation])

    # Rounds that are not live come last, so the loop ends before them: a branch around a round would copy the state.
    reports = zeros_of(nothing, len(rounds.number))
    return lax.fori_loop(0, rounds.live.sum(), one_round, (state, *reports))


def local_test_images(setting: Setting, test: TestSet) -> TestSet | None:
    """Selects the test images on which clients' own models are measured; None if they aren't."""
    count = setting.evaluation.local_test_images
    return some_images(test, count, setting.test_images) if count else None


def evaluate_model(
    setting: Setting, key: Key, state: State, number: Array, federation: Federation, test: TestSet
) -> EvaluationResult:
    """Evaluates a run's global model after a round (from 0)."""
    shown = evaluated_model(setting, key, state, number, federation)
    tested = evaluate(setting.model, shown, test, federation.mean, federation.std, setting.layout)
    validation, client_hits = evaluate_held_out(setting.model, shown, federation, setting.layout)
    if setting.parts_with(Personal, Adapt) and federation.tests is not None:
        memory = leaves.evaluated_memory(setting, state.memory)
        client_hits = hits_of_personal_models(setting, federation, model_of_client, key, number, shown, memory)
    return tested._replace(validation=validation, client_hits=client_hits)


def model_of_client(
    setting: Setting, federation: Federation, client: Array, key: Key, number: Array, variables: Variables, memory: Any
) -> Variables:
    """Returns a client's own model: the global one, `variables`, with what the memory `[N, ...]` has of the client."""
    shared = RoundInputs(key, number, variables, {}, federation)
    known = ChainClients(client, jnp.ones((), bool), take(memory, client))
    ctx = client_context(setting, shared, variables, known)
    return leaves.personal_model(setting, ctx.start, ctx)


def zero_reports(
    setting: Setting, state: State, plan: Plan, federation: Federation, images: TestSet | None
) -> tuple[Info, EvaluationResult]:
    """Makes zeros in the shapes of a single run's report and evaluation, for a plan of this shape."""
    tested = EvaluationResult(confusion=jnp.zeros((federation.num_classes,) * 2, jnp.int32), loss=jnp.zeros(()))
    clients = None if federation.tests is None else jnp.zeros(client_hits_shape(federation), jnp.int32)
    validation = tested if VALIDATION in federation.auxiliary else None
    info = zero_info(setting, state, plan, federation, LocalTest(images, jnp.zeros((), bool)))
    return info, tested._replace(validation=validation, client_hits=clients)


def evaluated_model(setting: Setting, key: Key, state: State, number: Array, federation: Federation) -> Variables:
    """Returns the global model as it is evaluated after a round (from 0)."""
    server = server_context(setting, number, state, federation)
    round_key = jax.random.fold_in(key, number)
    variables = refine(setting, round_key, state.variables, server, evaluation_only=True)
    parts = setting.parts_with(Closing)
    reports = _closing_reports_of_all(setting, round_key, number, variables, federation) if parts else {}
    for part in parts:
        part_key = purpose_key(round_key, f"close/{part.slot}")
        close = lambda key, variables, server, part=part: part.close(key, variables, reports[part.slot], server)
        context = server._replace(variables=variables)
        variables = call(setting, part, close, part_key, variables, context, onto=variables)
    return variables


def closing_reports(
    setting: Setting, key: Key, number: Array, variables: Variables, federation: Federation, client: Array
) -> dict[str, PyTree]:
    """Computes one client's report for each Closing part, by slot, from the global model, without training."""
    shared = RoundInputs(key, number, variables, {}, federation)
    ctx = client_context(setting, shared, variables, ChainClients(client, jnp.ones((), bool), {}))
    untrained = LocalState(variables, None, jnp.zeros(()), {})
    outcome = outcome_of(setting, ctx._replace(steps=jnp.zeros_like(ctx.steps)), untrained)
    return {part.slot: call(setting, part, part.closing_report, outcome) for part in setting.parts_with(Closing)}


def _closing_reports_of_all(
    setting: Setting, key: Key, number: Array, variables: Variables, federation: Federation
) -> dict[str, PyTree]:
    """Sums the reports of all clients, by slot; each device handles its share of the clients."""

    def add(sums: PyTree, clients: Array, real: Array, setting: Setting, *given: Any) -> PyTree:
        def add_client(sums: PyTree, at: tuple[Array, Array]) -> tuple[PyTree, None]:
            client, counts = at
            reports = closing_reports(setting, *given, client=client)
            return jax.tree.map(lambda total, new: total + jnp.where(counts, new, 0), sums, reports), None

        return lax.scan(add_client, sums, (clients, real))[0]

    given = (setting, key, number, variables, federation)
    zeros = zeros_of(jax.eval_shape(closing_reports, *given, jnp.zeros((), jnp.int32)))
    return fold_in_batches(add, zeros, federation.num_clients, setting.layout, *given)


def exhibits(setting: Setting, key: Key, state: State, number: Array, federation: Federation) -> dict[str, Exhibit]:
    """Returns the server parts' exhibits after a round (from 0), by slot."""
    server = server_context(setting, number, state, federation)
    return {part.slot: call(setting, part, part.show, key, server) for part in setting.parts_with(Server)}


def traffic_of(setting: Setting, federation: Federation, state: State, *, losses: bool = False) -> Traffic:
    """Computes the bytes of a client's download and upload in a round from shapes alone.

    `losses` says whether the selector learns from the clients' training losses.
    """
    returned = _model_upload(setting, state.variables)
    zero = jnp.zeros((), jnp.int32)
    sent = jax.eval_shape(lambda s: broadcast(setting, jax.random.key(0), zero, s, federation)[1], state)
    sent = {part.slot: sent[part.slot] for part in setting.parts_with(Server) if part.travels}

    def client_result(state: State, federation: Federation) -> ChainResult:
        key = jax.random.key(0)
        sent = broadcast(setting, key, zero, state, federation)[1]
        shared = RoundInputs(key, zero, state.variables, sent, federation)
        memory = jax.tree.map(lambda leaf: leaf[0], state.memory)
        return zero_result(setting, shared, ChainClients(zero, jnp.ones((), bool), memory))

    # Shapes are enough to count bytes, so nothing is computed or compiled.
    result = jax.eval_shape(client_result, state, federation)
    probes = {part.slot: result.records.probes[part.slot] for part in setting.parts_with(Probe) if part.travels}
    loss = result.records.loss_sum if losses or any(part.needs_losses for part in setting.parts) else ()
    reports = {**result.reports, **result.records.reports}
    reports = {part.slot: reports[part.slot] for part in setting.parts_with(Report) if part.travels}
    upload = returned + size_in_bytes((reports, probes, loss))
    return Traffic(_model_download(setting, state.variables) + size_in_bytes(sent), upload)


def closing_traffic_of(setting: Setting, federation: Federation, state: State) -> Traffic:
    """Computes the bytes of a client's download and upload before an evaluation, for Closing parts."""
    if not setting.parts_with(Closing):
        return Traffic(0, 0)
    zero = jnp.zeros((), jnp.int32)
    reports = jax.eval_shape(closing_reports, setting, jax.random.key(0), zero, state.variables, federation, zero)
    return Traffic(_model_download(setting, state.variables), size_in_bytes(reports))


def _model_upload(setting: Setting, variables: Variables) -> int:
    personal = leaves.personal_leaves(setting, variables)
    staying = personal.keys() - leaves.exchanged_leaves(setting, variables).keys()
    unsent = staying | leaves.frozen_leaves(setting, variables).keys()
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(variables)}
    bits = {name: 8 * leaf.dtype.itemsize for name, leaf in named.items()}
    for part in setting.parts_with(Deliver):
        by_leaf = lambda params, part=part: jax.tree.broadcast(part.sent_bits(params, setting.model), params)
        answer = Variables(call(setting, part, by_leaf, variables.params), {})
        for path, number in jax.tree_util.tree_leaves_with_path(answer):
            # Of several parts the shortest number counts, as one after the other changes the same update.
            name = jax.tree_util.keystr(path)
            bits[name] = min(number or bits[name], bits[name])
    return sum(math.ceil(leaf.size * bits[name] / 8) for name, leaf in named.items() if name not in unsent)


def _model_download(setting: Setting, variables: Variables) -> int:
    # A frozen leaf starts equal on server and clients, so it is sent only if the server may have changed it.
    personal = leaves.personal_leaves(setting, variables)
    frozen = leaves.frozen_leaves(setting, variables)
    changed = any(not part.evaluation_only for part in setting.parts_with(Refine))
    unsent = personal if changed else personal | frozen
    exchanged = leaves.exchanged_leaves(setting, variables)
    return size_in_bytes(variables) - size_in_bytes({path: unsent[path] for path in unsent.keys() - exchanged.keys()})
