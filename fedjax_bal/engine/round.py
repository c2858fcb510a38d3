"""One round: broadcast, train all chains, reduce, step."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.engine.axis import over_chains
from fedjax_bal.engine.chain import ChainResult, Links, Round, all_finite, chain
from fedjax_bal.engine.keys import purpose_key
from fedjax_bal.engine.setting import Setting
from fedjax_bal.parts import Server, Step, Weigh
from fedjax_bal.types import (
    Aggregate,
    Array,
    Cohort,
    Federation,
    Info,
    Key,
    Plan,
    PyTree,
    State,
    Variables,
)


def run_round(
    setting: Setting, key: Key, number: Array, state: State, plan: Plan, federation: Federation
) -> tuple[State, Info]:
    """Trains one cohort and updates the global model.

    Args:
        setting: the setting.
        key: the run's key.
        number: the round, from 0.
        state: what the round before left.
        plan: who trains and who delivers.
        federation: the federation, on the device.

    Returns:
        The new state, and what the round has to report.
    """
    variables = state.variables
    slots, sent = broadcast(setting, key, number, state)
    shared = Round(key, number, variables, sent, federation)
    memory = jax.tree.map(lambda leaf: leaf.at[plan.clients].get(mode="clip"), state.memory)
    links = Links(plan.clients, plan.delivered, memory)
    results = over_chains(partial(chain, setting, shared), links, setting.strategy)

    aggregate = _reduce(setting, plan, federation, results)
    variables, optimizer = _server_step(setting, number, state, slots, aggregate, results)
    for part in setting.playing(Server):
        own = purpose_key(jax.random.fold_in(key, number), f"update/{part.slot}")
        slots[part.slot] = part.update(own, number, slots[part.slot], aggregate, variables)
    memory = _keep(state.memory, plan, federation, results)
    return State(variables, optimizer, memory, slots), _info(plan, results, variables)


def broadcast(setting: Setting, key: Key, number: Array, state: State) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
    """What every server part sends at the start of a round.

    Returns:
        The server parts' new states and what they send, both by slot.
    """
    slots, sent = dict(state.server), {}
    for part in setting.playing(Server):
        own = purpose_key(jax.random.fold_in(key, number), f"broadcast/{part.slot}")
        slots[part.slot], sent[part.slot] = part.broadcast(own, number, slots[part.slot], state.variables)
    return slots, sent


def cohort_of(setting: Setting, plan: Plan, federation: Federation) -> Cohort:
    """The cohort of a plan, as the server knows it before training."""
    counts = federation.class_counts.at[plan.clients].get(mode="clip") * plan.delivered[..., None]
    sizes = counts.sum(-1)
    steps = setting.passes * setting.local_epochs * setting.steps_per_epoch(sizes)
    return Cohort(
        sizes=sizes.sum(1).astype(jnp.float32),
        class_counts=counts.sum(1).astype(jnp.float32),
        steps=steps.sum(1),
        delivered=plan.delivered.any(1),
        num_clients=federation.num_clients,
        total_size=federation.class_counts.sum().astype(jnp.float32),
    )


def _reduce(setting: Setting, plan: Plan, federation: Federation, results: ChainResult) -> Aggregate:
    cohort = cohort_of(setting, plan, federation)
    weights = cohort.sizes * cohort.delivered
    for part in setting.playing(Weigh):
        weights = part.weigh(weights, cohort)
    total = weights.sum()
    weights = weights / jnp.where(total > 0, total, 1.0)
    return Aggregate(
        delta=_weighted_sum(weights, results.delta),
        reports=jax.tree.map(lambda leaf: leaf.sum(0), results.reports),
        weights=weights,
        cohort=cohort,
    )


def _server_step(
    setting: Setting, number: Array, state: State, slots: dict[str, PyTree], aggregate: Aggregate, results: ChainResult
) -> tuple[Variables, PyTree]:
    params = state.variables.params
    delta = aggregate.delta
    for part in setting.playing(Step):
        delta = part.step(delta, aggregate.cohort, aggregate, slots.get(part.slot), params)
    transform = setting.server.transform(number)
    updates, optimizer = transform.update(jax.tree.map(jnp.negative, delta), state.optimizer, params)
    new = Variables(optax.apply_updates(params, updates), _weighted_sum(aggregate.weights, results.stats))
    # A round in which nothing arrives leaves model and optimizer alone, whatever momentum the server has.
    arrived = aggregate.weights.sum() > 0
    keep = partial(jax.tree.map, lambda a, b: jnp.where(arrived, a, b))
    return keep(new, state.variables), keep(optimizer, state.optimizer)


def _keep(memory: PyTree, plan: Plan, federation: Federation, results: ChainResult) -> PyTree:
    owners = jnp.where(plan.delivered, plan.clients, federation.num_clients)
    return jax.tree.map(lambda old, new: old.at[owners].set(new, mode="drop"), memory, results.memory)


def _weighted_sum(weights: Array, stacked: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, 1, precision="highest"), stacked)


def _info(plan: Plan, results: ChainResult, variables: Variables) -> Info:
    steps = jnp.where(plan.delivered, results.steps, 0)
    loss = jnp.where(plan.delivered, results.loss_sum, 0.0).sum()
    return Info(
        train_loss=jnp.where(steps.sum() > 0, loss / jnp.maximum(steps.sum(), 1), jnp.nan),
        update_diversity=_diversity(plan.delivered.any(1), results.delta),
        steps=steps,
        finite=results.finite | ~plan.delivered,
        model_finite=all_finite(variables),
    )


def _diversity(delivered: Array, delta: PyTree) -> Array:
    """Mean over chains of the squared distance from the plain mean of the updates (ReBaFL eq. 24)."""
    count = jnp.maximum(delivered.sum(), 1)
    share = delivered / count

    def one(leaf: Array) -> Array:
        mean = jnp.tensordot(share, leaf, 1)
        return (share * ((leaf - mean) ** 2).reshape(leaf.shape[0], -1).sum(1)).sum()

    return jnp.where(delivered.any(), sum(map(one, jax.tree.leaves(delta))), jnp.nan)
