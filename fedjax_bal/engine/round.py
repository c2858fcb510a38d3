"""One round: broadcast, train all chains, add up, step."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.engine.axis import Brought, over_chains
from fedjax_bal.engine.chain import Links, Round, all_finite
from fedjax_bal.engine.deal import Deal
from fedjax_bal.engine.keys import purpose_key
from fedjax_bal.engine.setting import Setting
from fedjax_bal.engine.tally import Shares
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
    setting: Setting,
    key: Key,
    number: Array,
    state: State,
    plan: Plan,
    seats: Array,
    deal: Deal,
    federation: Federation,
) -> tuple[State, Info]:
    """Trains one cohort and updates the global model.

    Args:
        setting: the setting.
        key: the run's key.
        number: the round, from 0.
        state: what the round before left.
        plan: who trains and who delivers.
        seats: where in the memory each client's part is, `Int32[G, L]`.
        deal: which device trains which chain.
        federation: the federation, on the device.

    Returns:
        The new state, and what the round has to report.
    """
    variables = state.variables
    slots, sent = broadcast(setting, key, number, state)
    cohort = cohort_of(setting, plan, federation)
    shares = _shares(setting, cohort)
    memory = jax.tree.map(lambda leaf: leaf.at[seats].get(mode="clip"), state.memory)
    links = Links(plan.clients, plan.delivered, memory)
    brought = over_chains(setting, Round(key, number, variables, sent, federation), links, shares, deal)

    aggregate = Aggregate(brought.tally.delta, brought.tally.reports, shares.delta, cohort)
    variables, optimizer = _server_step(setting, number, state, slots, aggregate, brought.tally.stats)
    for part in setting.playing(Server):
        own = purpose_key(jax.random.fold_in(key, number), f"update/{part.slot}")
        slots[part.slot] = part.update(own, number, slots[part.slot], aggregate, variables)
    memory = _keep(state.memory, plan, seats, brought.shown.memory)
    return State(variables, optimizer, memory, slots), _info(plan, brought, variables)


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
        total_size=federation.offsets[-1].astype(jnp.float32),
    )


def _shares(setting: Setting, cohort: Cohort) -> Shares:
    """How much each chain counts, known before any of them is trained."""
    parts = setting.playing(Weigh)
    statistics = _weights([part for part in parts if part.weighs_statistics], cohort)
    return Shares(_weights(parts, cohort), statistics, cohort.delivered)


def _weights(parts: list[Weigh], cohort: Cohort) -> Array:
    weights = cohort.sizes * cohort.delivered
    for part in parts:
        weights = part.weigh(weights, cohort)
    total = weights.sum()
    return weights / jnp.where(total > 0, total, 1.0)


def _server_step(
    setting: Setting, number: Array, state: State, slots: dict[str, PyTree], aggregate: Aggregate, stats: PyTree
) -> tuple[Variables, PyTree]:
    params = state.variables.params
    delta = aggregate.delta
    for part in setting.playing(Step):
        delta = part.step(delta, aggregate.cohort, aggregate, slots.get(part.slot), params)
    transform = setting.server.transform(number)
    updates, optimizer = transform.update(jax.tree.map(jnp.negative, delta), state.optimizer, params)
    new = Variables(optax.apply_updates(params, updates), stats)
    # A round in which nothing arrives leaves model and optimizer alone, whatever momentum the server has.
    arrived = aggregate.weights.sum() > 0
    keep = partial(jax.tree.map, lambda a, b: jnp.where(arrived, a, b))
    return keep(new, state.variables), keep(optimizer, state.optimizer)


def _keep(memory: PyTree, plan: Plan, seats: Array, new: PyTree) -> PyTree:
    kept = jnp.where(plan.delivered, seats, jnp.iinfo(jnp.int32).max)
    return jax.tree.map(lambda all_, own: all_.at[kept].set(own, mode="drop"), memory, new)


def _info(plan: Plan, brought: Brought, variables: Variables) -> Info:
    steps, loss, spread = brought.shown.steps, brought.shown.loss_sum.sum(), brought.tally.spread
    return Info(
        train_loss=jnp.where(steps.sum() > 0, loss / jnp.maximum(steps.sum(), 1), jnp.nan),
        update_diversity=jnp.array(jnp.nan) if spread is None else spread.diversity,
        steps=steps,
        finite=brought.shown.broken == 0,
        model_finite=all_finite(variables),
    )
