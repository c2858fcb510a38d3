"""A chain: clients that train one after another on the same parameters."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device import leaves
from fedjax_bal.engine.device.debug import located, stop_at_nan
from fedjax_bal.engine.device.drawing import training_key
from fedjax_bal.engine.device.evaluation import LocalTest, measure, zero_metrics
from fedjax_bal.engine.device.local_training import LocalState, outcome_of, prepare, start_training, train_locally
from fedjax_bal.engine.device.roles import call
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.trees import inexact_leaves, squared_norm, surely_finite, take, zeros_of
from fedjax_bal.metrics import HUGE, NOT_FINITE, OUTDATED
from fedjax_bal.parts import Deliver, Memory, Probe, Report
from fedjax_bal.types import Array, Context, Federation, Key, Outcome, PyTree, Variables


class ChainClients(NamedTuple):
    """The clients of a chain, in order; leaves `[L, ...]`, or `[G, L, ...]` for all chains."""

    id: Array
    delivered: Array
    memory: PyTree
    limits: Array | None = None
    staleness: Array | None = None


def take_chains(chains: ChainClients, numbers: Array) -> ChainClients:
    """Takes chains by number; an empty place gets a client that doesn't deliver."""
    taken = take(chains, numbers)
    inside = (numbers < len(chains.id)).reshape(-1, 1) if numbers.ndim else numbers < len(chains.id)
    return taken._replace(delivered=taken.delivered & inside)


class ClientRecord(NamedTuple):
    """The results that are kept for each client; leaves `[L, ...]`, or `[G, L, ...]` for all chains.

    Attributes:
        memory: the client's memory after training.
        loss_sum: training loss summed over the steps of the last pass, `Float[]`.
        steps: steps of the last pass, `Int32[]`.
        broken: the fault of its delivery, a code of `metrics.traffic`, `Int32[]`.
        probes: each probe part's value in the last pass, by slot.
        reports: the reports of the last pass that aren't summed, by slot.
        metrics: what `measure` found of its trained model in the last pass, by name.
    """

    memory: PyTree
    loss_sum: Array
    steps: Array
    broken: Array
    probes: PyTree
    reports: PyTree
    metrics: dict[str, Array]


class ChainResult(NamedTuple):
    """The result of a chain.

    Attributes:
        delta: change of the parameters.
        stats: batch statistics at the end of the chain.
        reports: summed over its clients, by slot.
        records: one record per client, leaves `[L, ...]`.
    """

    delta: PyTree
    stats: PyTree
    reports: PyTree
    records: ClientRecord


class ChainCarry(NamedTuple):
    """The state that a client of a chain passes on to the next one.

    Attributes:
        variables: the model.
        optimizer: the local optimizer's state; None if every client starts with a fresh one.
    """

    variables: Variables
    optimizer: PyTree


class RoundInputs(NamedTuple):
    """Inputs that all chains of a round share.

    `local_test` is None if clients' models aren't measured. `largest_norm` bounds the norm of the parameters that a
    client may return; None for no bound. `downloads` are those of the `State`, this round's included; `Runs.view` takes
    from them the model and the broadcasts that a chain received.
    """

    key: Key
    number: Array
    variables: Variables
    broadcast: PyTree
    federation: Federation
    local_test: LocalTest | None = None
    largest_norm: Array | None = None
    downloads: PyTree = ()


def train_chain(setting: Setting, shared: RoundInputs, chain: ChainClients, longest: Array) -> ChainResult:
    """Trains the clients of a chain one after another on the same parameters, `setting.passes` times.

    A client that doesn't deliver passes on the parameters it received and leaves no trace, so its training is skipped.
    Losses come from the last pass, and so do reports, which compare with the memory before the first one. `longest`,
    `Int32[L]`, is the size of the largest client at each position of the chains that train together with this one.
    """

    def one_client(
        carry: ChainCarry, turn: Array, client: ChainClients, earlier: PyTree, longest: Array
    ) -> tuple[ChainCarry, tuple[PyTree, ClientRecord]]:
        ctx = client_context(setting, shared, carry.variables, client)
        with located("by client {}, of {} rows", client.id, ctx.size):
            key = training_key(shared.key, shared.number, client.id, turn)
            outcome, last = train_locally(setting, key, ctx, longest, carry.optimizer)
            given = (setting, shared, client, outcome, last.loss_sum, earlier)
            variables, results = stop_at_nan(setting, finish_client, *given)
        optimizer = None
        if setting.carried:
            # Like the model, the momentum of a client that doesn't count must not reach the next one.
            excluded = setting.execution.excludes & (results[1].broken > 0)
            optimizer = _where(client.delivered & ~excluded, last.optimizer, carry.optimizer)
        return ChainCarry(variables, optimizer), results

    def one_pass(
        carry: tuple[ChainCarry, PyTree, Array], turn: Array
    ) -> tuple[tuple[ChainCarry, PyTree, Array], PyTree]:
        passed, memory, delivered = carry
        clients = chain._replace(memory=memory, delivered=delivered)
        next_client = lambda passed, at: one_client(passed, turn, *at)
        # Scanned, so that training is traced and compiled once, regardless of the chain's length.
        passed, (reports, records) = lax.scan(next_client, passed, (clients, earlier, longest))
        if setting.execution.excludes:  # a broken client doesn't train in later passes
            delivered &= records.broken == 0
        # The memory is carried, not stacked over the passes: it can be as large as the model for each client.
        return (passed, records.memory, delivered), (reports, records._replace(memory=None))

    # A single pass begins with this memory anyway, and doesn't read it twice.
    earlier = chain.memory if setting.passes > 1 else None
    params = shared.variables.params
    transform = leaves.local_optimizer(setting, shared.number, 0, params)
    first = ChainCarry(shared.variables, transform.init(params) if setting.carried else None)
    begin = (first, chain.memory, chain.delivered)
    ((end, _), memory, _), results = lax.scan(one_pass, begin, jnp.arange(setting.passes))
    reports, records = jax.tree.map(lambda leaf: leaf[-1], results)
    reports = jax.tree.map(lambda leaf: leaf.sum(0), reports)
    codes = results[1].broken
    if not setting.execution.excludes:
        return _result(shared, end, reports, records._replace(memory=memory, broken=first_faults(codes)))
    # Clients after a broken one receive the model that it had received, so each code is that client's own fault.
    broken = codes.max(0)
    memory = jax.vmap(_where)(broken == 0, memory, chain.memory)
    return _result(shared, end, reports, records._replace(memory=memory, broken=broken))


def sizes_of(federation: Federation, clients: Array, delivered: Array) -> Array:
    """Counts the rows of each client, in the shape of `clients`; 0 for a client that doesn't deliver."""
    first, last = (take(federation.offsets, clients + shift) for shift in (0, 1))
    return jnp.where(delivered, last - first, 0)


def client_context(setting: Setting, shared: RoundInputs, variables: Variables, client: ChainClients) -> Context:
    """Builds the context of a client's local training, without `prepared`."""
    federation = shared.federation
    counts = take(federation.class_counts, client.id)
    size = sizes_of(federation, client.id, client.delivered)
    return Context(
        round=shared.number,
        client=client.id,
        class_counts=jnp.where(client.delivered, counts, 0),
        size=size,
        start=leaves.with_leaves(variables, client.memory.get(leaves.PERSONAL, {})),
        broadcast=shared.broadcast,
        memory=client.memory,
        prepared={},
        model=setting.model,
        federation=federation,
        learning_rate=setting.learning_rate(shared.number),
        momentum=setting.optimizer.momentum,
        batch_size=setting.batch_size,
        steps=setting.local_steps(size, client.limits),
        max_size=setting.max_size if setting.execution.differentiable else None,
        row_length=setting.row_length,
    )


def finish_client(
    setting: Setting,
    shared: RoundInputs,
    client: ChainClients,
    outcome: Outcome,
    loss_sum: Array,
    earlier: PyTree = None,
) -> tuple[Variables, tuple[PyTree, ClientRecord]]:
    """Turns a client's trained model into its delivered variables, reports and record.

    A client that doesn't deliver, or whose broken update is left out, returns the variables it received, keeps its
    memory and reports zeros. Leaves that stay with the client are returned with the values of the global model.
    `earlier` is its memory before the first of several passes; None if there is one pass.
    """
    # Taken before delivery, which may change the parameters: the client keeps its leaves as it trained them.
    memory = leaves.personal_memory(setting, outcome.end)
    outdated = jnp.zeros((), bool)
    for part in setting.parts_with(Deliver):
        outdated |= call(setting, part, part.outdated, outcome)
        outcome = outcome._replace(end=call(setting, part, part.deliver, outcome, onto=outcome.end))
    for part in setting.parts_with(Memory):
        memory[part.slot] = call(setting, part, partial(part.remember, client.memory[part.slot]), outcome)
    # A report of how the memory has changed must cover all passes, although only the last one's is kept.
    whole = outcome if earlier is None else outcome._replace(ctx=outcome.ctx._replace(memory=earlier))
    reports = {}
    for part in setting.parts_with(Report):
        reports[part.slot] = call(setting, part, part.report, whole._replace(memory=memory.get(part.slot)))
    probes = {part.slot: call(setting, part, part.probe, outcome) for part in setting.parts_with(Probe)}

    # Finds the fault of the update, if it has one.
    params = outcome.end.params
    others = (outcome.end.stats, memory, reports, probes)
    squares = squared_norm(params)
    huge = False
    finite = surely_finite(squares + squared_norm(inexact_leaves(others)), (params, *others))
    if shared.largest_norm is not None:
        moving = leaves.moving_leaves(setting, params)
        # The square overflows long before the norm does; then it is infinite, and the update huge.
        huge = jnp.sqrt(squares if moving is None else squared_norm(leaves.keep(moving, params))) > shared.largest_norm
    fault = jnp.select([~finite, outdated, huge], [NOT_FINITE, OUTDATED, HUGE], 0).astype(jnp.int32)
    broken = jnp.where(client.delivered, fault, 0)

    by_client = {part.slot for part in setting.parts_with(Report) if part.by_client}
    trained = outcome._replace(ctx=outcome.ctx._replace(memory=memory))
    # Results are selected, not multiplied by 0 or 1, because nan times 0 is nan.
    counts = client.delivered & (broken == 0) if setting.execution.excludes else client.delivered
    record = ClientRecord(
        memory={slot: _where(counts, new, client.memory[slot]) for slot, new in memory.items()},
        loss_sum=jnp.where(counts, loss_sum, 0.0),
        steps=jnp.where(counts, outcome.steps, 0),
        broken=broken,
        probes=_where(counts, probes, None),
        reports=_where(counts, {slot: report for slot, report in reports.items() if slot in by_client}, None),
        metrics=measure(setting, shared.local_test, trained, counts),
    )
    returned = leaves.with_leaves(
        _where(counts, outcome.end, outcome.start), leaves.personal_leaves(setting, shared.variables)
    )
    summed = {slot: report for slot, report in reports.items() if slot not in by_client}
    return returned, (_where(counts, summed, None), record)


def first_faults(codes: Array) -> Array:
    """Keeps the code of the first faulty client of a chain, `Int32[L]`, and sets the others to 0.

    Clients after a faulty one only pass its fault on. `codes`, `Int32[passes, L]`, are in the order of training.

    Example:
        >>> first_faults(jnp.array([[0, 2, 1], [1, 1, 1]])).tolist()
        [0, 2, 0]
    """
    flat = codes.reshape(-1)
    only = jnp.where(jnp.cumsum(flat > 0) == 1, flat, 0)
    return only.reshape(codes.shape).max(0)


def finish_trained_client(
    setting: Setting, shared: RoundInputs, chain: ChainClients, trained: LocalState
) -> ChainResult:
    """Builds the result of a single-client chain that was trained in a lane; leaves of `chain` are `[1, ...]`."""
    client = jax.tree.map(lambda leaf: leaf[0], chain)
    end, (reports, record) = _finish_at(setting, shared, client, trained)
    return _result(shared, end, reports, jax.tree.map(lambda leaf: leaf[None], record))


def zero_result(setting: Setting, shared: RoundInputs, client: ChainClients) -> ChainResult:
    """Makes a chain's result of zeros, with the record of one client."""

    def untrained(shared: RoundInputs, client: ChainClients) -> ChainResult:
        end, (reports, record) = _finish_at(setting, shared, client)
        return _result(shared, end, reports, record)

    # The shapes are those of a client that took no step: tracing training and testing again would take longer than
    # everything else.
    zeros = zeros_of(jax.eval_shape(untrained, shared._replace(local_test=None), client))
    metrics = zero_metrics(setting, shared.local_test)
    return zeros._replace(records=zeros.records._replace(metrics=metrics))


def single_pass_key(shared: RoundInputs, client: ChainClients) -> Key:
    """Derives the key of a client's local training in a round of one pass."""
    return training_key(shared.key, shared.number, client.id, jnp.zeros((), jnp.int32))


def _finish_at(
    setting: Setting, shared: RoundInputs, client: ChainClients, trained: LocalState | None = None
) -> tuple[Variables, tuple[PyTree, ClientRecord]]:
    """Calls `finish_client` for the only client of a chain; `trained` is None if it took no local step."""
    ctx = prepare(setting, single_pass_key(shared, client), client_context(setting, shared, shared.variables, client))
    trained = start_training(setting, ctx) if trained is None else trained
    return finish_client(setting, shared, client, outcome_of(setting, ctx, trained), trained.loss_sum)


def _result(shared: RoundInputs, end: Variables, reports: PyTree, records: ClientRecord) -> ChainResult:
    delta = jax.tree.map(jnp.subtract, end.params, shared.variables.params)
    return ChainResult(delta, end.stats, reports, records)


def _where(on: Array, new: PyTree, old: PyTree | None) -> PyTree:
    if old is None:
        return jax.tree.map(lambda leaf: jnp.where(on, leaf, jnp.zeros_like(leaf)), new)
    return jax.tree.map(lambda a, b: jnp.where(on, a, b), new, old)
