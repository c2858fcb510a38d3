"""One visit to one client: prepare, draw, train."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.data import gather
from fedjax_bal.engine.device.drawing import shuffled, weighted
from fedjax_bal.engine.device.keys import purpose_key
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.parts import Batches, Draw, Gradient, Logits, Loss, Prepare, Start, Update
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, PyTree, Variables


class LocalState(NamedTuple):
    """What a local step carries to the next."""

    variables: Variables
    optimizer: PyTree
    loss_sum: Array


def mean_cross_entropy(logits: Array, batch: Batch) -> Array:
    """Mean cross-entropy over the real rows of a batch, `Float[]`; 0 where there are none."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    real = batch.real.astype(losses.dtype)
    return (jnp.where(batch.real, losses, 0.0)).sum() / jnp.maximum(real.sum(), 1.0)


def train_locally(
    setting: Setting, key: Key, ctx: Context, longest: Array, optimizer: PyTree
) -> tuple[Outcome, LocalState]:
    """Trains one client on its own rows.

    Args:
        setting: the setting.
        key: the visit's key.
        ctx: the visit's context, without `prepared`; its size may be 0, which leaves the variables as received.
        longest: the largest size among all that are trained along with this one, itself included, `Int32[]`.
        optimizer: the state that the local optimizer begins with; None for a fresh one.

    Returns:
        The outcome, and what the last step left.
    """
    ctx = prepare(setting, key, ctx)
    order = row_order(setting, key, ctx, longest)
    one = lambda index, carry: train_step(setting, key, ctx, index, order[None], jnp.zeros((), jnp.int32), carry)
    start = start_training(setting, ctx) if optimizer is None else LocalState(ctx.start, optimizer, jnp.zeros(()))
    end = lax.fori_loop(0, ctx.steps, one, start)
    return outcome_of(setting, ctx, end.variables), end


def prepare(setting: Setting, key: Key, ctx: Context) -> Context:
    """The context with what the parts prepare before training."""
    made = {
        part.slot: part.prepare(purpose_key(key, f"prepare/{part.slot}"), ctx.start, ctx)
        for part in setting.parts_with(Prepare)
    }
    return ctx._replace(prepared=made)


def row_order(setting: Setting, key: Key, ctx: Context, longest: Array) -> Array:
    """In which order the client's positions are seen, `Int32[places]`.

    Epochs have `row_length` places each. Where steps are counted, as many whole batches of an epoch as the client has
    lie behind each other instead, since a small client needs many epochs and a large one only part of one.
    """

    def one(epoch: Array) -> Array:
        return _order(setting, purpose_key(jax.random.fold_in(key, epoch), "draw"), ctx, longest)

    if setting.local.steps is None:
        return jax.vmap(one)(jnp.arange(setting.epochs)).reshape(-1)
    used = jnp.maximum(setting.steps_per_epoch(ctx.size), 1) * setting.batch_size
    epochs = -(-ctx.steps * setting.batch_size // used)

    def put(epoch: Array, places: Array) -> Array:
        return lax.dynamic_update_slice(places, one(epoch).astype(jnp.int32), (epoch * used,))

    # The last epoch may reach beyond the last step.
    length = setting.local.steps * setting.batch_size + setting.row_length
    return lax.fori_loop(0, epochs, put, jnp.zeros(length, jnp.int32))


def start_training(setting: Setting, ctx: Context) -> LocalState:
    """A client that has received the model and not trained yet."""
    return LocalState(ctx.start, setting.local.optimizer.transform(ctx.round).init(ctx.start.params), jnp.zeros(()))


def outcome_of(setting: Setting, ctx: Context, end: Variables) -> Outcome:
    """What a visit that ended with these variables produced."""
    full = setting.local.optimizer.full_steps(ctx.steps, setting.most_steps)
    return Outcome(ctx.start, end, ctx.steps, (ctx.steps if full is None else full) * ctx.learning_rate, ctx)


def train_step(
    setting: Setting, key: Key, ctx: Context, index: Array, order: Array, row: Array, carry: LocalState
) -> LocalState:
    """One local step.

    Args:
        setting: the setting.
        key: the visit's key.
        ctx: the visit's context.
        index: which step of the visit it is, from 0, `Int32[]`.
        order: orders of one or more clients, `Int32[clients, places]`.
        row: which of them is this client's, `Int32[]`.
        carry: what the step before left.

    Returns:
        What this step leaves.
    """
    epoch, within = jnp.divmod(index, jnp.maximum(setting.steps_per_epoch(ctx.size), 1))
    start = epoch * setting.row_length + within * setting.batch_size
    start = start if setting.local.steps is None else index * setting.batch_size
    places = lax.dynamic_slice(order, (row, start), (1, setting.batch_size))[0]
    real = within * setting.batch_size + jnp.arange(setting.batch_size) < ctx.size
    first = ctx.federation.offsets.at[ctx.client].get(mode="clip")
    batch = gather(ctx.federation, first + places, real)
    carry = _begin(setting, ctx, index, carry)
    ctx = ctx._replace(learning_rate=jnp.asarray(setting.local.optimizer.rate_at(ctx.round, index), float))
    own = lambda purpose: jax.random.fold_in(purpose_key(jax.random.fold_in(key, epoch), purpose), within)

    def step(setting: Setting, carry: LocalState) -> LocalState:
        filled = batch
        for part in setting.parts_with(Batches):
            filled = part.batch(own(f"batch/{part.slot}"), filled, ctx)
        return _learn(setting, own("model"), ctx, index, filled, carry)

    # A branch, as the round is the same for all clients: what hasn't begun costs nothing.
    begun = setting.beginnings
    place = sum(((ctx.round >= start).astype(jnp.int32) for start in begun[1:]), jnp.zeros((), jnp.int32))
    return lax.switch(place, [partial(step, setting.since(start)) for start in begun], carry)


def _begin(setting: Setting, ctx: Context, index: Array, carry: LocalState) -> LocalState:
    """What a local step begins with; before the first one, with the model that the Start parts say."""
    for part in setting.parts_with(Start):
        pairs = part.start(carry.variables, ctx), carry.variables
        carry = carry._replace(variables=jax.tree.map(lambda new, old: jnp.where(index == 0, new, old), *pairs))
    return carry


def _order(setting: Setting, key: Key, ctx: Context, longest: Array) -> Array:
    if setting.local.drawing == "epochs":
        return shuffled(key, ctx.size, setting.row_length, longest)
    flat = jnp.zeros(ctx.class_counts.shape)
    weights = sum((part.log_weights(ctx.class_counts, ctx) for part in setting.parts_with(Draw)), flat)
    return weighted(key, ctx.class_counts, weights, setting.row_length)


def _learn(setting: Setting, key: Key, ctx: Context, index: Array, batch: Batch, carry: LocalState) -> LocalState:
    params, stats = carry.variables

    def objective(params: PyTree) -> tuple[Array, PyTree]:
        outputs, after = ctx.model.apply(Variables(params, stats), batch.images, train=True, key=key, real=batch.seen)
        logits = outputs.logits
        for part in setting.parts_with(Logits):
            logits = part.logits(logits, batch, ctx)
        added = [part.loss(outputs, batch, params, ctx) for part in setting.parts_with(Loss)]
        return sum(added, mean_cross_entropy(logits, batch)), after.stats

    (loss, stats), grads = jax.value_and_grad(objective, has_aux=True)(params)
    grads = setting.local.optimizer.clipped(grads)
    for part in setting.parts_with(Gradient):
        grads = part.gradient(grads, params, ctx)
    transform = setting.local.optimizer.transform(ctx.round, index)
    updates, optimizer = transform.update(grads, carry.optimizer, params)
    for part in setting.parts_with(Update):
        updates = part.updates(updates, params, ctx)
    return LocalState(Variables(optax.apply_updates(params, updates), stats), optimizer, carry.loss_sum + loss)
