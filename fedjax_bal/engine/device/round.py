"""One round: broadcast, train all chains, add up, step."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.engine.device.accumulator import ChainWeights
from fedjax_bal.engine.device.assignment import Assignment
from fedjax_bal.engine.device.chain import ChainClients, RoundInputs, all_finite
from fedjax_bal.engine.device.client_axis import CohortResult, over_chains, zero_cohort_result
from fedjax_bal.engine.device.client_metrics import LocalTest, summarise_cohort
from fedjax_bal.engine.device.keys import purpose_key
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.parts import Reduce, Refine, Server, Step, Weigh
from fedjax_bal.types import Aggregate, Array, Cohort, Federation, Info, Key, Plan, PyTree, State, Variables


def run_round(
    setting: Setting,
    key: Key,
    number: Array,
    state: State,
    plan: Plan,
    seats: Array,
    assignment: Assignment,
    federation: Federation,
    local_test: LocalTest | None = None,
) -> tuple[State, Info]:
    """Trains one cohort and updates the global model.

    Args:
        setting: the setting.
        key: the run's key.
        number: the round, from 0.
        state: what the round before left.
        plan: who trains and who delivers.
        seats: where in the memory each client's part is, `Int32[G, L]`.
        assignment: which device trains which chain.
        federation: the federation, on the device.
        local_test: when and on what clients' own models are measured; None for never.

    Returns:
        The new state, and what the round has to report.
    """
    begun = open_round(setting, key, number, state, plan, federation)
    memory = jax.tree.map(lambda leaf: leaf.at[seats].get(mode="clip"), state.memory)
    chains = ChainClients(plan.clients, plan.delivered, memory, plan.limits)
    shared = RoundInputs(key, number, state.variables, begun.sent, federation, local_test, plan.bound)
    result = over_chains(setting, shared, chains, begun.chain_weights, assignment)
    state, info = close_round(setting, key, number, state, federation, begun, result)
    return state._replace(memory=update_memory(state.memory, plan, seats, result.records.memory)), info


class RoundStart(NamedTuple):
    """What is settled before anybody trains.

    Attributes:
        slots: the server parts' states after sending, by slot.
        sent: what they send, by slot.
        cohort: the cohort.
        chain_weights: how much each chain counts.
    """

    slots: dict[str, PyTree]
    sent: dict[str, PyTree]
    cohort: Cohort
    chain_weights: ChainWeights


def open_round(
    setting: Setting, key: Key, number: Array, state: State, plan: Plan, federation: Federation
) -> RoundStart:
    """Sends what is sent, and settles how much each chain counts; the arguments are those of `run_round`."""
    slots, sent = broadcast(setting, key, number, state)
    cohort = cohort_of(setting, number, plan, federation)
    return RoundStart(slots, sent, cohort, _chain_weights(setting, cohort))


def close_round(
    setting: Setting,
    key: Key,
    number: Array,
    state: State,
    federation: Federation,
    begun: RoundStart,
    result: CohortResult,
) -> tuple[State, Info]:
    """Updates the global model and the server's parts with what the cohort brings.

    Args:
        setting: the setting.
        key: the run's key.
        number: the round, from 0.
        state: the state before the round; its memory goes through unchanged.
        federation: the federation, on the device.
        begun: what was settled before.
        result: what the cohort brings.

    Returns:
        The state after, and what the round has to report.
    """
    slots, chain_weights = dict(begun.slots), begun.chain_weights
    aggregate = Aggregate(
        _reduced(setting, result, chain_weights.delta), result.sums.reports, chain_weights.delta, begun.cohort
    )
    own = jax.random.fold_in(key, number)
    variables, optimizer = _server_step(setting, own, number, state, slots, aggregate, result.sums.stats, federation)
    for part in setting.parts_with(Server):
        to_update = purpose_key(own, f"update/{part.slot}")
        slots[part.slot] = part.update(to_update, number, slots[part.slot], aggregate, variables)
    return State(variables, optimizer, state.memory, slots), _info(setting, begun.cohort, result, variables)


def broadcast(setting: Setting, key: Key, number: Array, state: State) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
    """What every server part sends at the start of a round.

    Returns:
        The server parts' new states and what they send, both by slot.
    """
    slots, sent = dict(state.server), {}
    for part in setting.parts_with(Server):
        own = purpose_key(jax.random.fold_in(key, number), f"broadcast/{part.slot}")
        slots[part.slot], sent[part.slot] = part.broadcast(own, number, slots[part.slot], state.variables)
    return slots, sent


def cohort_of(setting: Setting, number: Array, plan: Plan, federation: Federation) -> Cohort:
    """The cohort of a plan, as the server knows it before training."""
    counts = federation.class_counts.at[plan.clients].get(mode="clip") * plan.delivered[..., None]
    sizes = counts.sum(-1)
    steps = setting.visit_steps(sizes, plan.limits)
    return Cohort(
        sizes=sizes.sum(1).astype(float),
        class_counts=counts.sum(1).astype(float),
        steps=setting.passes * steps.sum(1),
        visit_steps=steps,
        passes=setting.passes,
        learning_rate=jnp.asarray(setting.local.optimizer.rate(number), float),
        momentum=setting.local.optimizer.momentum,
        delivered=plan.delivered.any(1),
        num_clients=federation.num_clients,
        total_size=federation.offsets[-1].astype(float),
        full_steps=setting.local.optimizer.full_steps(steps, setting.most_steps),
    )


def _chain_weights(setting: Setting, cohort: Cohort) -> ChainWeights:
    """How much each chain counts, known before any of them is trained."""
    parts = setting.parts_with(Weigh)
    statistics = _weights([part for part in parts if part.weighs_statistics], cohort)
    return ChainWeights(_weights(parts, cohort), statistics, cohort.delivered)


def _weights(parts: list[Weigh], cohort: Cohort) -> Array:
    weights = cohort.sizes * cohort.delivered
    for part in parts:
        weights = part.weigh(weights, cohort)
    total = weights.sum()
    return weights / jnp.where(total > 0, total, 1.0)


def _reduced(setting: Setting, result: CohortResult, weights: Array) -> PyTree:
    """The cohort's update: the weighted mean, or what the one part says that looks at each chain's."""
    reducers = setting.parts_with(Reduce)
    return reducers[0].reduce(result.deltas, weights) if reducers else result.sums.delta


def _server_step(
    setting: Setting,
    key: Key,
    number: Array,
    state: State,
    slots: dict[str, PyTree],
    aggregate: Aggregate,
    stats: PyTree,
    federation: Federation,
) -> tuple[Variables, PyTree]:
    params = state.variables.params
    delta = aggregate.delta
    for part in setting.parts_with(Step):
        delta = part.step(delta, aggregate.cohort, aggregate, slots.get(part.slot), params)
    transform = setting.server.transform(number)
    step = setting.server.clipped(jax.tree.map(jnp.negative, delta))
    updates, optimizer = transform.update(step, state.optimizer, params)
    new = Variables(optax.apply_updates(params, updates), stats)
    for part in setting.parts_with(Refine):
        new = part.refine(purpose_key(key, f"refine/{part.slot}"), new, setting.model, federation)
    # A round in which nothing arrives leaves model and optimizer alone, whatever momentum the server has.
    arrived = aggregate.weights.sum() > 0
    keep = partial(jax.tree.map, lambda a, b: jnp.where(arrived, a, b))
    return keep(new, state.variables), keep(optimizer, state.optimizer)


def update_memory(memory: PyTree, plan: Plan, seats: Array, new: PyTree) -> PyTree:
    """The memory with that of those who delivered replaced."""
    kept = jnp.where(plan.delivered, seats, jnp.iinfo(jnp.int32).max)
    return jax.tree.map(lambda all_, own: all_.at[kept].set(own, mode="drop"), memory, new)


def zero_info(setting: Setting, state: State, plan: Plan, federation: Federation, local_test: LocalTest) -> Info:
    """Zeros in the shapes of what a round reports, found without tracing any training; arguments as of `run_round`."""

    def untrained() -> Info:
        key, number = jax.random.key(0), jnp.zeros((), jnp.int32)
        begun = open_round(setting, key, number, state, plan, federation)
        memory = jax.tree.map(lambda leaf: leaf.at[plan.clients].get(mode="clip"), state.memory)
        chains = ChainClients(plan.clients, plan.delivered, memory, plan.limits)
        shared = RoundInputs(key, number, state.variables, begun.sent, federation, local_test, plan.bound)
        return _info(setting, begun.cohort, zero_cohort_result(setting, shared, chains), state.variables)

    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(untrained))


def _info(setting: Setting, cohort: Cohort, result: CohortResult, variables: Variables) -> Info:
    steps, losses, spread = result.records.steps, result.records.loss_sum, result.sums.spread
    mean = lambda total, count: jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)
    diversity = {} if spread is None else {"update_diversity": spread.diversity}
    return Info(
        metrics={"train_loss": mean(losses.sum(), steps.sum())}
        | diversity
        | summarise_cohort(setting, cohort, result.records.metrics),
        steps=steps,
        broken=result.records.broken,
        model_finite=all_finite(variables),
        losses=mean(losses, steps),
        probes=result.records.probes,
        norms=result.records.norm,
    )
