"""Lanes: several clients train at a time, and each lane starts its next client as soon as it has finished one.

Three lanes and the clients A to G; a letter is a local step, and a column is a turn, in which all lanes take a step:

    lane 0   A A A A A A A A F F F
    lane 1   B B B B B B E E E G G
    lane 2   C C C C C D D D D . .
    stretch  1 1 1 1 1 2 3 3 4 5 5

Buckets of three would take 8 + 4 + 2 turns, as each waits for its longest client. A stretch is the turns until a client
is done; a dot is a step that is computed and never written.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.device.chain import ChainClients, RoundInputs, client_context, single_pass_key, take_chains
from fedjax_bal.engine.device.layout import Assignment, over_buckets
from fedjax_bal.engine.device.local_training import LocalState, prepare, row_order, start_training, train_step
from fedjax_bal.engine.device.run_axis import Runs
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.trees import put, take, zeros_of
from fedjax_bal.parts import Personal, Steps
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

    Returns the states after training, without optimizer states, leaves `[G, ...]`. A chain that this device doesn't
    train, or that takes no step, has its initial state.
    """
    order, prepared = _prepare_all(setting, shared, chains, assignment, runs)
    count = len(chains.id)
    queue_ends = assignment.starts[1:]

    # Functions of one client, given its chain's number; `vmap` applies them to all lanes.

    def context_of(number: Array) -> tuple[Setting, RoundInputs, ChainClients, Context]:
        chain = take_chains(chains, number)
        client = jax.tree.map(lambda leaf: leaf[0], chain)
        its_setting, inputs = runs.view(setting, shared, number, chain)
        ctx = client_context(its_setting, inputs, inputs.variables, client)
        return its_setting, inputs, client, ctx._replace(prepared=take(prepared, number))

    def start(number: Array) -> LocalState:
        its_setting, _, _, ctx = context_of(number)
        return start_training(its_setting, ctx)

    def step(number: Array, index: Array, training: LocalState) -> tuple[LocalState, Array]:
        its_setting, inputs, client, ctx = context_of(number)
        key = single_pass_key(inputs, client)
        trained = train_step(its_setting, key, ctx, index, order, number, training)
        return trained, index + 1 == ctx.steps

    def chains_at(places: Array) -> Array:
        # An empty queue gives chain G. Its lane continues to compute, as all lanes take each step together, but `put`
        # drops its result.
        return jnp.where(places < queue_ends, take(assignment.queues, places), count)

    # Clients of a run start from different states only if they keep leaves, carry values through their steps, or
    # received the model in different rounds.
    differ = setting.max_staleness or setting.parts_with(Personal, Steps)
    starts = jax.vmap(start) if differ else runs.starts(start)

    # The host knows how many steps each client takes, so the number of turns is given. Writing results and restarting
    # lanes touch all parameters, and a branch in every turn would copy all lanes and results even if it changes
    # nothing. So an inner loop takes turns until a client is done, and only then the outer loop writes and restarts.
    def stretch(carry: tuple[Array, Lanes, LocalState]) -> tuple[Array, Lanes, LocalState]:
        turns, lanes, results = carry
        numbers = chains_at(lanes.place)

        def turn(carry: tuple[Array, LocalState, Array, Array]) -> tuple[Array, LocalState, Array, Array]:
            turns, training, steps, _ = carry
            training, done = jax.vmap(step)(numbers, steps, training)
            return turns + 1, training, steps + 1, done

        def none_is_done(carry: tuple[Array, LocalState, Array, Array]) -> Array:
            turns, _, _, done = carry
            return (turns < assignment.turns) & ~done.any()

        begin = (turns, lanes.training, lanes.step, jnp.zeros(numbers.shape, bool))
        turns, training, steps, done = lax.while_loop(none_is_done, turn, begin)
        # A lane that is done moves to the next client of its queue, the others continue where they were.
        places = lanes.place + done
        steps = jnp.where(done, 0, steps)
        fresh = starts(chains_at(places))
        restarted = jax.tree.map(
            lambda new, old: jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new, old), fresh, training
        )
        # Lanes that are still training write to chain G, which `put` drops.
        finished = jnp.where(done, numbers, count)
        results = put(results, finished, training._replace(optimizer=None))
        return turns, Lanes(restarted, places, steps), results

    places = assignment.starts[:-1]
    lanes = Lanes(starts(chains_at(places)), places, jnp.zeros_like(places))
    # Not ideal: this holds a model for each of the G chains, also for those that other devices train. Lanes finish in
    # any order, but the results must be added up in the order of the buckets.
    untrained = starts(jnp.arange(count))._replace(optimizer=None)
    first = (jnp.zeros((), jnp.int32), lanes, untrained)
    return lax.while_loop(lambda carry: carry[0] < assignment.turns, stretch, first)[2]


def _prepare_all(
    setting: Setting, shared: RoundInputs, chains: ChainClients, assignment: Assignment, runs: Runs
) -> tuple[Array, PyTree]:
    """Computes row orders and prepared values of all of a device's chains; leaves `[G, ...]`."""
    # Computed before the first turn: within the loop, every restart would compute them for all lanes.

    def prepare_one(number: Array, chain: ChainClients, longest: Array) -> tuple[Array, PyTree]:
        its_setting, inputs = runs.view(setting, shared, number, chain)
        client = jax.tree.map(lambda leaf: leaf[0], chain)
        ctx = client_context(its_setting, inputs, inputs.variables, client)
        key = single_pass_key(inputs, client)
        return row_order(its_setting, key, ctx, longest), prepare(its_setting, key, ctx).prepared

    def prepare_bucket(numbers: Array, prepared: PyTree) -> PyTree:
        bucket = take_chains(chains, numbers)
        longest = runs.sizes(shared.federation, numbers, bucket).max()
        return put(prepared, numbers, jax.vmap(prepare_one, (0, 0, None))(numbers, bucket, longest))

    zero = jnp.zeros((), jnp.int32)
    shapes = jax.eval_shape(prepare_one, zero, jax.tree.map(lambda leaf: leaf[0], chains), zero)
    return over_buckets(setting.layout, assignment, prepare_bucket, zeros_of(shapes, len(chains.id)))
