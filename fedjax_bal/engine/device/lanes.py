"""Lanes: several clients train at a time, and each lane takes its next client as soon as it is done with one."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device.chain import ChainClients, RoundInputs, client_context, single_pass_key, take_chains
from fedjax_bal.engine.device.local_training import LocalState, prepare, row_order, start_training, train_step
from fedjax_bal.engine.device.run_axis import Runs
from fedjax_bal.engine.device.schedule import Assignment, over_buckets
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.parts import Personal, Steps, parts_with
from fedjax_bal.types import Array, Context, PyTree


class Lanes(NamedTuple):
    """State of the lanes; leaves `[width, ...]`.

    Attributes:
        training: local training of each lane's client.
        place: the client's place in the queues, `Int32[]`.
        step: steps that it has taken, `Int32[]`.
    """

    training: LocalState
    place: Array
    step: Array


def train_in_lanes(
    setting: Setting, shared: RoundInputs, chains: ChainClients, assignment: Assignment, runs: Runs
) -> LocalState:
    """Takes the local steps of all of a device's chains, which have one client each.

    Returns the states after training without those of optimizers, leaves `[G, ...]`: the states before it for a chain
    that this device doesn't train, or that takes no step.
    """
    order, prepared = _enter(setting, shared, chains, assignment, runs)
    count, queues, stops = len(chains.id), assignment.queues, assignment.starts[1:]

    def client_of(number: Array) -> tuple[Setting, RoundInputs, ChainClients, Context]:
        client = jax.tree.map(lambda leaf: leaf[0], take_chains(chains, number))
        own, common = runs.view(setting, shared, number)
        ctx = client_context(own, common, common.variables, client)
        found = jax.tree.map(lambda leaf: leaf.at[number].get(mode="clip"), prepared)
        return own, common, client, ctx._replace(prepared=found)

    def step_lane(number: Array, index: Array, training: LocalState) -> tuple[LocalState, Array]:
        own, common, client, ctx = client_of(number)
        trained = train_step(own, single_pass_key(common, client), ctx, index, order, number, training)
        return trained, index + 1 == ctx.steps

    def chains_at(places: Array) -> Array:
        return jnp.where(places < stops, queues.at[places].get(mode="clip"), count)

    # In every turn all lanes take one local step together. A lane whose client is done moves on to the next place of
    # its queue, with fresh variables and optimizer, so no lane waits for the slowest client of a bucket; a lane whose
    # queue is empty computes steps that are never written. The host knows how many steps each client takes, so the
    # number of turns is given. Writing results and restarting lanes touch all parameters, so an inner loop takes turns
    # until some client is done: a branch in every turn would copy all lanes and results even where it changes nothing.
    def stretch(carry: tuple[Array, Lanes, LocalState]) -> tuple[Array, Lanes, LocalState]:
        turns, lanes, ends = carry
        numbers = chains_at(lanes.place)

        def turn(carry: tuple[Array, LocalState, Array, Array]) -> tuple[Array, LocalState, Array, Array]:
            turns, training, steps, _ = carry
            training, done = jax.vmap(step_lane)(numbers, steps, training)
            return turns + 1, training, steps + 1, done

        none_done = lambda carry: (carry[0] < assignment.turns) & ~carry[3].any()
        first = (turns, lanes.training, lanes.step, jnp.zeros(numbers.shape, bool))
        turns, training, steps, done = lax.while_loop(none_done, turn, first)
        lanes = Lanes(training, lanes.place + done, jnp.where(done, 0, steps))
        return turns, _restart(start(chains_at(lanes.place)), done, lanes), _write(ends, numbers, done, lanes)

    def start_lane(number: Array) -> LocalState:
        own, _, _, ctx = client_of(number)
        return start_training(own, ctx)

    # What clients start from differs between those of a run only if they keep leaves, or carry something through steps.
    apart = parts_with(setting.parts, Personal, Steps)
    start, places = jax.vmap(start_lane) if apart else runs.starts(start_lane), assignment.starts[:-1]
    lanes = Lanes(start(chains_at(places)), places, jnp.zeros_like(places))
    untrained = start(jnp.arange(count))._replace(optimizer=None)
    first = (jnp.zeros((), jnp.int32), lanes, untrained)
    return lax.while_loop(lambda carry: carry[0] < assignment.turns, stretch, first)[2]


def _enter(
    setting: Setting, shared: RoundInputs, chains: ChainClients, assignment: Assignment, runs: Runs
) -> tuple[Array, PyTree]:
    """Row orders and prepared values of all of a device's chains; leaves `[G, ...]`."""

    def one(number: Array, client: ChainClients, longest: Array) -> tuple[Array, PyTree]:
        own, common = runs.view(setting, shared, number)
        client = jax.tree.map(lambda leaf: leaf[0], client)
        ctx = client_context(own, common, common.variables, client)
        key = single_pass_key(common, client)
        return row_order(own, key, ctx, longest), prepare(own, key, ctx).prepared

    def bucket(numbers: Array, entered: PyTree) -> PyTree:
        own = take_chains(chains, numbers)
        longest = runs.sizes(shared.federation, numbers, own).max()
        made = jax.vmap(one, (0, 0, None))(numbers, own, longest)
        return jax.tree.map(lambda all_, new: all_.at[numbers].set(new, mode="drop"), entered, made)

    zero = jnp.zeros((), jnp.int32)
    shapes = jax.eval_shape(one, zero, jax.tree.map(lambda leaf: leaf[0], chains), zero)
    zeros = jax.tree.map(lambda leaf: jnp.zeros((len(chains.id), *leaf.shape), leaf.dtype), shapes)
    return over_buckets(setting.layout, assignment, bucket, zeros)


def _restart(fresh: LocalState, done: Array, lanes: Lanes) -> Lanes:
    """Gives the received variables and a fresh optimizer to the lanes whose client is done."""

    def one(new: Array, old: Array) -> Array:
        return jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    return lanes._replace(training=jax.tree.map(one, fresh, lanes.training))


def _write(ends: LocalState, numbers: Array, done: Array, lanes: Lanes) -> LocalState:
    """The results of all chains, with those of the lanes whose client is done."""
    places = jnp.where(done, numbers, len(ends.loss_sum))
    trained = lanes.training._replace(optimizer=None)
    return jax.tree.map(lambda all_, new: all_.at[places].set(new, mode="drop"), ends, trained)
