"""Lanes: several clients at a time, each followed by the next one as soon as it is done."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device.assignment import Assignment
from fedjax_bal.engine.device.chain import ChainClients, RoundInputs, client_context, only_visit_key
from fedjax_bal.engine.device.layout import Layout
from fedjax_bal.engine.device.local_training import LocalState, prepare, row_order, start_training, train_step
from fedjax_bal.engine.device.run_axis import Runs
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.types import Array, Context, PyTree, Variables


class Lanes(NamedTuple):
    """Where the lanes stand; leaves `[width, ...]`.

    Attributes:
        training: what each lane's client has come to.
        place: its place in the queues, `Int32[]`.
        step: steps that it has taken, `Int32[]`.
    """

    training: LocalState
    place: Array
    step: Array


def over_buckets(
    layout: Layout, assignment: Assignment, body: Callable[[Array, PyTree], PyTree], init: PyTree
) -> PyTree:
    """Folds a function over a device's chains, as many at a time as the layout is wide.

    Args:
        layout: the layout.
        assignment: this device's assignment.
        body: `body(numbers, carry) -> carry` for chain numbers `Int32[width]`, G in empty places.
        init: the carry to begin with.

    Returns:
        The last carry.
    """
    width = layout.width

    def one(index: Array, carry: PyTree) -> PyTree:
        return body(lax.dynamic_slice(assignment.chains, (index * width,), (width,)), carry)

    return lax.fori_loop(0, -(-assignment.count // width), one, init)


def take_chains(chains: ChainClients, numbers: Array) -> ChainClients:
    """The chains of some chains; in empty places somebody who doesn't deliver."""
    own = jax.tree.map(lambda leaf: leaf.at[numbers].get(mode="clip"), chains)
    there = (numbers < len(chains.id)).reshape(-1, 1) if numbers.ndim else numbers < len(chains.id)
    return own._replace(delivered=own.delivered & there)


def train_in_lanes(
    setting: Setting, shared: RoundInputs, chains: ChainClients, assignment: Assignment, runs: Runs
) -> tuple[Variables, Array]:
    """Takes the local steps of all of a device's chains, which have one client each.

    Args:
        setting: the setting.
        shared: what all chains of the round have in common.
        chains: the clients of all chains of the round, leaves `[G, 1, ...]`.
        assignment: this device's assignment.
        runs: whose chains they are.

    Returns:
        The variables after training, leaves `[G, ...]`, and the summed training losses, `Float[G]`; where this device
        does not train a chain, or it takes no step, the variables received and 0.
    """
    order, prepared = _enter(setting, shared, chains, assignment, runs)
    groups, queues, stops = len(chains.id), assignment.queues, assignment.starts[1:]

    def whose(number: Array) -> tuple[Setting, RoundInputs, ChainClients, Context]:
        client = jax.tree.map(lambda leaf: leaf[0], take_chains(chains, number))
        own, common = runs.view(setting, shared, number)
        return own, common, client, client_context(own, common, common.variables, client)

    def one_lane(number: Array, index: Array, training: LocalState) -> tuple[LocalState, Array]:
        own, common, client, ctx = whose(number)
        ctx = ctx._replace(prepared=jax.tree.map(lambda leaf: leaf.at[number].get(mode="clip"), prepared))
        trained = train_step(own, only_visit_key(common, client), ctx, index, order, number, training)
        return trained, index + 1 == ctx.steps

    def at(place: Array) -> Array:
        return jnp.where(place < stops, queues.at[place].get(mode="clip"), groups)

    def turn(_: Array, carry: tuple[Lanes, tuple[Variables, Array]]) -> tuple[Lanes, tuple[Variables, Array]]:
        lanes, ends = carry
        numbers = at(lanes.place)
        training, over = jax.vmap(one_lane)(numbers, lanes.step, lanes.training)
        lanes = Lanes(training, lanes.place + over, jnp.where(over, 0, lanes.step + 1))
        change = lambda lanes, ends: (_renew(start(at(lanes.place)), over, lanes), _write(ends, numbers, over, lanes))
        return lax.cond(over.any(), change, lambda *same: same, lanes, ends)

    def begun(number: Array) -> LocalState:
        own, _, _, ctx = whose(number)
        return start_training(own, ctx)

    start, places = runs.starts(begun), assignment.starts[:-1]
    lanes = Lanes(start(at(places)), places, jnp.zeros_like(places))
    received = start(jnp.arange(groups))
    return lax.fori_loop(0, assignment.turns, turn, (lanes, (received.variables, received.loss_sum)))[1]


def _enter(
    setting: Setting, shared: RoundInputs, chains: ChainClients, assignment: Assignment, runs: Runs
) -> tuple[Array, PyTree]:
    """What is drawn and prepared before training, for all of a device's chains; leaves `[G, ...]`."""

    def one(number: Array, client: ChainClients, longest: Array) -> tuple[Array, PyTree]:
        own, common = runs.view(setting, shared, number)
        client = jax.tree.map(lambda leaf: leaf[0], client)
        ctx = client_context(own, common, common.variables, client)
        key = only_visit_key(common, client)
        return row_order(own, key, ctx, longest), prepare(own, key, ctx).prepared

    def bucket(numbers: Array, entered: PyTree) -> PyTree:
        own = take_chains(chains, numbers)
        longest = runs.sizes(shared.federation, numbers, own).max()
        made = jax.vmap(one, (0, 0, None))(numbers, own, longest)
        return jax.tree.map(lambda all_, new: all_.at[numbers].set(new, mode="drop"), entered, made)

    alone = jax.tree.map(lambda leaf: leaf[0], chains)
    none = jnp.zeros((), jnp.int32)
    shapes = jax.eval_shape(one, none, alone, none)
    zeros = jax.tree.map(lambda leaf: jnp.zeros((len(chains.id), *leaf.shape), leaf.dtype), shapes)
    return over_buckets(setting.layout, assignment, bucket, zeros)


def _renew(fresh: LocalState, over: Array, lanes: Lanes) -> Lanes:
    """Gives the received variables and a fresh optimizer to the lanes whose client is done."""

    def one(new: Array, old: Array) -> Array:
        return jnp.where(over.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    return lanes._replace(training=jax.tree.map(one, fresh, lanes.training))


def _write(ends: tuple[Variables, Array], numbers: Array, over: Array, lanes: Lanes) -> tuple[Variables, Array]:
    done = jnp.where(over, numbers, len(ends[1]))
    ended = (lanes.training.variables, lanes.training.loss_sum)
    return jax.tree.map(lambda all_, new: all_.at[done].set(new, mode="drop"), ends, ended)
