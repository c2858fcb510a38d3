"""One round: broadcast, train all chains, add up, step."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.engine.device import leaves, trees
from fedjax_bal.engine.device.accumulator import ChainWeights, weights_left
from fedjax_bal.engine.device.chain import ChainClients, RoundInputs, sizes_of
from fedjax_bal.engine.device.client_axis import CohortResult, over_chains, zero_cohort_result
from fedjax_bal.engine.device.debug import located, stop_at_nan
from fedjax_bal.engine.device.drawing import purpose_key
from fedjax_bal.engine.device.evaluation import LocalTest, summarise_cohort
from fedjax_bal.engine.device.roles import call, restored
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.state import DispatchPlan, Info, State
from fedjax_bal.metrics import LONG
from fedjax_bal.parts import Memory, Personal, Reduce, Refine, Server, Step, Weigh
from fedjax_bal.types import Aggregate, Array, Cohort, Federation, Key, Plan, PyTree, ServerContext, Variables


def run_round(
    setting: Setting,
    key: Key,
    state: State,
    row: DispatchPlan,
    federation: Federation,
    local_test: LocalTest | None = None,
) -> tuple[State, Info]:
    """Trains one cohort and updates the global model; returns the new state and the round's report.

    `key` is the run's; `row` is the round's row of a `DispatchPlan`. `local_test` is None if clients' models are never
    measured.
    """
    number = row.number
    plan = row.plan
    with located("in round {}", number + 1):
        opened = open_round(setting, key, number, state, plan, federation)
        downloads = state.downloads
        if setting.max_staleness:
            downloads = trees.put(downloads, setting.download_row(number), (state.variables, opened.sent))
        shared = RoundInputs(
            key, number, state.variables, opened.sent, federation, local_test, opened.largest_norm, downloads
        )
        chains = chains_of(plan, trees.take(state.memory, row.seats))
        result = over_chains(setting, shared, chains, opened.chain_weights, row.assignment)
        state, info, synchronised = close_round(setting, key, number, state, federation, opened, result)
    memory = trees.put(state.memory, kept_seats(row), result.records.memory | synchronised)
    return state._replace(memory=memory, downloads=downloads), info


def chains_of(plan: Plan, memory: PyTree) -> ChainClients:
    """Builds the chains of a plan, with the memory of their clients, leaves `[G, L, ...]`."""
    return ChainClients(plan.clients, plan.delivered, memory, plan.limits, plan.staleness)


def kept_seats(row: DispatchPlan) -> Array:
    """Returns the memory rows of the clients that deliver; the other clients' are beyond the last row, for `put`."""
    # Beyond the end of any memory, whether it has a row for every client or only for the clients of a dispatch.
    return jnp.where(row.plan.delivered, row.seats, jnp.iinfo(jnp.int32).max)


class RoundStart(NamedTuple):
    """Values that are fixed before any client trains.

    Attributes:
        server_states: the server parts' states after the broadcast, by slot.
        sent: the broadcast, by slot.
        plan: the plan.
        cohort: the cohort.
        chain_weights: weight of each chain.
        largest_norm: bound on the norm of the parameters that a client may return, `Float[]`; None for no bound.
    """

    server_states: dict[str, PyTree]
    sent: dict[str, PyTree]
    plan: Plan
    cohort: Cohort
    chain_weights: ChainWeights
    largest_norm: Array | None


def open_round(
    setting: Setting, key: Key, number: Array, state: State, plan: Plan, federation: Federation
) -> RoundStart:
    """Makes the round's broadcast, and the weights of its chains."""
    server_states, sent = broadcast(setting, key, number, state, federation)
    cohort = cohort_of(setting, number, plan, federation)
    server = server_context(setting, number, state, federation)._replace(state=server_states, cohort=cohort)
    largest = None
    params = state.variables.params
    huge_factor = setting.execution.huge_factor
    if huge_factor is not None and not setting.execution.clips:
        length = jnp.sqrt(trees.squared_norm(leaves.keep(leaves.moving_leaves(setting, params), params)))
        largest = huge_factor * jnp.maximum(length, 1.0)
    return RoundStart(server_states, sent, plan, cohort, _chain_weights(setting, server), largest)


def close_round(
    setting: Setting,
    key: Key,
    number: Array,
    state: State,
    federation: Federation,
    opened: RoundStart,
    result: CohortResult,
) -> tuple[State, Info, dict[str, PyTree]]:
    """Updates the global model and the server parts with the cohort's result, but not the clients' memory.

    Returns the new state, the round's report, and the cohort's memories that depend on the new model, by slot.
    """
    if setting.execution.excludes:
        opened, result = _without_broken(setting, number, state, federation, opened, result)
    if setting.execution.clips:
        result = _clipped(setting.execution.clip_factor, opened, result)
    # If no update arrives, the round changes nothing except the states that parts updated in their broadcasts:
    # otherwise a server with momentum would continue to move, and states that average updates would include zeros. Nan
    # weights count as updates, so that the model that they spoil is noticed.
    arrived = opened.cohort.delivered.any() & ~(opened.chain_weights.delta.sum() <= 0)
    if_arrived = partial(jax.tree.map, lambda new, old: jnp.where(arrived, new, old))
    round_key = jax.random.fold_in(key, number)
    weights = opened.chain_weights.delta
    losses = _mean(result.records.loss_sum, result.records.steps)
    reports = {**result.sums.reports, **result.records.reports}
    aggregate = Aggregate(result.sums.delta, reports, weights, opened.cohort, losses, result.deltas)
    server = server_context(setting, number, state, federation)
    server = server._replace(state=opened.server_states, aggregate=aggregate, cohort=opened.cohort)
    for part in setting.parts_with(Reduce):
        context = server._replace(key=purpose_key(round_key, f"reduce/{part.slot}"))
        reduce = partial(call, onto=aggregate.delta)
        delta = stop_at_nan(setting, reduce, setting, part, part.reduce, aggregate.deltas, weights, context)
        server = server._replace(aggregate=aggregate._replace(delta=delta))
    new = stop_at_nan(setting, _server_step, setting, round_key, state, server, result.sums.stats)
    variables, optimizer, stepped = new
    variables, optimizer = if_arrived((variables, optimizer), (state.variables, state.optimizer))
    server = server._replace(variables=variables, state=stepped)
    server_states = {}
    for part in setting.parts_with(Server):
        part_key = purpose_key(round_key, f"update/{part.slot}")
        server_states[part.slot] = call(setting, part, part.update, part_key, server)
        # A part that only adds reports adds zeros here. It needs no selection, which would let XLA round its sum
        # differently in programs of one run and of several: a resumed sweep would end with other bits.
        if not part.adds_reports:
            server_states[part.slot] = if_arrived(server_states[part.slot], opened.server_states[part.slot])
    state = state._replace(variables=variables, optimizer=optimizer, server=server_states)
    return state, _info(setting, opened.cohort, result, variables), _synchronised(setting, result, server)


def _synchronised(setting: Setting, result: CohortResult, server: ServerContext) -> dict[str, PyTree]:
    """Returns the memories that change with the round's result, by slot, leaves `[G, L, ...]`.

    They are those of parts that have them see the new model, and the leaves that the server exchanges.
    """
    counted = server.cohort.local_steps > 0
    variables = server.variables
    memories = {}
    for part in setting.parts_with(Memory):
        # The other parts' memories aren't copied for this: they can be as large as the model for each client.
        if type(part).synchronise is Memory.synchronise:
            continue

        def one_client(counts: Array, memory: PyTree, part: Memory = part) -> PyTree:
            new = call(setting, part, partial(part.synchronise, memory), variables)
            return jax.tree.map(partial(jnp.where, counts), new, memory)

        memories[part.slot] = jax.vmap(jax.vmap(one_client))(counted, result.records.memory[part.slot])
    for part in setting.parts_with(Personal):
        if leaves.exchanges(part):
            kept = memories.get(leaves.PERSONAL, result.records.memory[leaves.PERSONAL])
            models = jax.vmap(jax.vmap(partial(leaves.with_leaves, variables)))(kept)
            changed = leaves.personal_leaves(setting, call(setting, part, part.exchange, models, server, onto=models))
            keep = lambda new, old: jnp.where(counted.reshape(*counted.shape, *[1] * (old.ndim - 2)), new, old)
            memories[leaves.PERSONAL] = jax.tree.map(keep, changed, kept)
    return memories


def _without_broken(
    setting: Setting, number: Array, state: State, federation: Federation, opened: RoundStart, result: CohortResult
) -> tuple[RoundStart, CohortResult]:
    """Removes the broken clients from the cohort, as if they hadn't delivered, and weights the other clients."""
    plan = opened.plan
    broken = result.records.broken
    any_broken = (broken > 0).any()
    cohort = cohort_of(setting, number, plan._replace(delivered=plan.delivered & (broken == 0)), federation)
    sums = result.sums
    if setting.weighs_again(plan.clients.shape[1]):
        server = server_context(setting, number, state, federation)
        weights = _chain_weights(setting, server._replace(state=opened.server_states, cohort=cohort))
        delta = jax.tree.map(partial(trees.weighted_sum, weights.delta), result.deltas)
        stats = jax.tree.map(partial(trees.weighted_sum, weights.stats), result.stats)
        # A round without broken clients keeps the bits of its weights and of the sum over buckets.
        weights, delta, stats = jax.tree.map(
            partial(jnp.where, any_broken), (weights, delta, stats), (opened.chain_weights, sums.delta, sums.stats)
        )
    else:
        weights = weights_left(opened.chain_weights, sizes_of(federation, plan.clients, plan.delivered), broken)

        def normalised(total: Array, tree: PyTree) -> PyTree:
            # Weights add up to 1 only up to rounding, so a round without broken clients isn't divided, to keep its
            # bits.
            total = jnp.where(any_broken & (total > 0), total, 1.0)
            return jax.tree.map(lambda leaf: leaf / total, tree)

        totals = ChainWeights(*map(jnp.sum, weights))
        delta = normalised(totals.delta, sums.delta)
        stats = normalised(totals.stats, sums.stats)
        weights = weights._replace(delta=normalised(totals.delta, weights.delta))
    sums = sums._replace(delta=delta, stats=stats)
    return opened._replace(cohort=cohort, chain_weights=weights), result._replace(sums=sums)


def _clipped(factor: float, opened: RoundStart, result: CohortResult) -> CohortResult:
    """Clips each chain's update to `factor` times the median length of the updates that aren't zero."""
    lengths = jax.vmap(trees.norm)(result.deltas)
    counted = opened.cohort.delivered
    moved = counted & (lengths > 0)
    # The lower median, so that of two updates the longer one can't set its own bound.
    # Updates of length 0 sort to the end, as do those that didn't arrive.
    bound = factor * jnp.sort(jnp.where(moved, lengths, jnp.inf))[jnp.maximum(moved.sum() - 1, 0) // 2]
    long = counted & (lengths > bound)
    deltas = jax.vmap(trees.clip_to_norm, (0, 0, None))(result.deltas, lengths, bound)
    summed = jax.tree.map(partial(trees.weighted_sum, opened.chain_weights.delta), deltas)
    # A round without long updates keeps the bits of the sum over buckets.
    delta = jax.tree.map(partial(jnp.where, long.any()), summed, result.sums.delta)
    here = long[:, None] & opened.plan.delivered & (result.records.broken == 0)
    records = result.records._replace(broken=jnp.where(here, LONG, result.records.broken))
    return CohortResult(result.sums._replace(delta=delta), records, deltas)


def server_context(setting: Setting, number: Array, state: State, federation: Federation) -> ServerContext:
    """Builds the context of the server parts outside of training; its `state` has the states of all parts, by slot."""
    return ServerContext(number, state.server, state.variables, None, None, setting.model, federation)


def broadcast(
    setting: Setting, key: Key, number: Array, state: State, federation: Federation
) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
    """Returns the server parts' new states and their broadcasts at the start of a round, both by slot."""
    server_states = dict(state.server)
    sent = {}
    server = server_context(setting, number, state, federation)
    for part in setting.parts_with(Server):
        part_key = purpose_key(jax.random.fold_in(key, number), f"broadcast/{part.slot}")
        server_states[part.slot], sent[part.slot] = call(setting, part, part.broadcast, part_key, server)
    return server_states, sent


def refine(
    setting: Setting, key: Key, variables: Variables, server: ServerContext, *, evaluation_only: bool
) -> Variables:
    """Applies the Refine parts that change the model itself, or those that change it for evaluation only.

    `key` is the round's.
    """
    purpose = "present" if evaluation_only else "refine"
    server = server._replace(variables=variables)
    for part in setting.parts_with(Refine):
        if part.evaluation_only == evaluation_only:
            part_key = purpose_key(key, f"{purpose}/{part.slot}")
            variables = call(setting, part, part.refine, part_key, variables, server, onto=variables)
    return variables


def cohort_of(setting: Setting, number: Array, plan: Plan, federation: Federation) -> Cohort:
    """Builds the cohort of a plan, as the server knows it before training."""
    counts = trees.take(federation.class_counts, plan.clients) * plan.delivered[..., None]
    sizes = counts.sum(-1)
    steps = setting.local_steps(sizes, plan.limits)
    sizes_of_all = jnp.diff(federation.offsets)
    able = setting.local_steps(sizes_of_all) > 0
    return Cohort(
        sizes=sizes.sum(1).astype(float),
        class_counts=counts.sum(1).astype(float),
        steps=setting.passes * steps.sum(1),
        local_steps=steps,
        passes=setting.passes,
        learning_rate=setting.learning_rate(number),
        momentum=setting.optimizer.momentum,
        delivered=plan.delivered.any(1),
        num_clients=able.sum(),
        total_size=jnp.where(able, sizes_of_all, 0).sum().astype(float),
        full_steps=setting.optimizer.full_steps(steps, setting.most_steps),
        clients=plan.clients,
        staleness=None if plan.staleness is None else plan.staleness[:, 0],
    )


def _chain_weights(setting: Setting, server: ServerContext) -> ChainWeights:
    parts = setting.parts_with(Weigh)
    stats = _weights(setting, [part for part in parts if part.weighs_statistics], server)
    return ChainWeights(_weights(setting, parts, server), stats, server.cohort.delivered)


def _weights(setting: Setting, parts: list[Weigh], server: ServerContext) -> Array:
    # A chain's weight is its number of rows; a chain without delivering clients has none.
    weights = server.cohort.sizes * server.cohort.delivered
    # Sizes that decided the draw must not count a second time.
    if setting.drawn_by_size or any(part.ignores_sizes for part in parts):
        weights = server.cohort.delivered.astype(weights.dtype)
    for part in parts:
        wanted = weights.shape
        weights = call(setting, part, part.weigh, weights, server.cohort, server)
        if weights.shape != wanted:  # jax would broadcast other shapes, and train something else
            raise ValueError(
                f"{part.slot}.weigh: received the shape {weights.shape}, must be {wanted}, one for each chain"
            )
    total = weights.sum()
    return weights / jnp.where(total > 0, total, 1.0)


def _server_step(
    setting: Setting, key: Key, state: State, server: ServerContext, stats: PyTree
) -> tuple[Variables, PyTree, dict[str, PyTree]]:
    params = state.variables.params
    delta = server.aggregate.delta
    server_states = dict(server.state)
    for part in setting.parts_with(Step):
        context = server._replace(key=purpose_key(key, f"step/{part.slot}"))
        stepped, server_states[part.slot] = call(setting, part, part.step, delta, context)
        delta = restored(setting, part, stepped, delta)
    transform = setting.server.transform(server.round)
    # Optimizers descend, so the negative update takes the place of a gradient.
    step = setting.server.clipped(jax.tree.map(jnp.negative, delta))
    # Leaves that are frozen or stay with clients are zeros here, so that they enter neither the optimizer's weight
    # decay nor the norms that it computes.
    moving = leaves.moving_leaves(setting, params)
    personal = leaves.personal_leaves(setting, state.variables)
    averaged = leaves.keep(moving, leaves.with_leaves(state.variables, jax.tree.map(jnp.zeros_like, personal)).params)
    updates, optimizer = transform.update(step, state.optimizer, averaged)
    # Batch statistics are averaged only; the optimizer's step is for parameters.
    new = Variables(leaves.select(moving, optax.apply_updates(params, updates), params), stats)
    new = refine(setting, key, new, server, evaluation_only=False)
    # A server part or optimizer may have added to leaves that stay with the clients.
    return leaves.with_leaves(new, personal), optimizer, server_states


def zero_info(setting: Setting, state: State, plan: Plan, federation: Federation, local_test: LocalTest) -> Info:
    """Makes zeros in the shapes of a round's report."""

    def untrained() -> Info:
        key = jax.random.key(0)
        number = jnp.zeros((), jnp.int32)
        opened = open_round(setting, key, number, state, plan, federation)
        chains = chains_of(plan, trees.take(state.memory, plan.clients))
        shared = RoundInputs(
            key, number, state.variables, opened.sent, federation, local_test, opened.largest_norm, state.downloads
        )
        return _info(setting, opened.cohort, zero_cohort_result(setting, shared, chains), state.variables)

    # Training isn't traced here, nor are the parts' reports: that would double the time to trace a program.
    return trees.zeros_of(jax.eval_shape(untrained))


def _info(setting: Setting, cohort: Cohort, result: CohortResult, variables: Variables) -> Info:
    steps = result.records.steps
    losses = result.records.loss_sum
    spread = result.sums.spread
    diversity = {} if spread is None else {"update_diversity": spread.diversity}
    return Info(
        metrics={"train_loss": _mean(losses.sum(), steps.sum())}
        | diversity
        | summarise_cohort(setting, cohort, result.records.metrics),
        steps=steps,
        broken=result.records.broken,
        model_finite=trees.all_finite(variables),
        losses=_mean(losses, steps),
        probes=result.records.probes,
    )


def _mean(total: Array, count: Array) -> Array:
    """Computes the mean; nan if the count is 0."""
    return jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)
