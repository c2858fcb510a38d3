"""One visit to one client: prepare, draw, train."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.engine.drawing import shuffled, weighted
from fedjax_bal.engine.keys import purpose_key
from fedjax_bal.engine.setting import Setting
from fedjax_bal.parts import Draw, Gradient, Logits, Loss, Prepare
from fedjax_bal.rows import gather
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, PyTree, Variables


class Training(NamedTuple):
    """What a local step carries to the next."""

    variables: Variables
    optimizer: PyTree
    loss_sum: Array


def mean_cross_entropy(logits: Array, batch: Batch) -> Array:
    """Mean cross-entropy over the real rows of a batch, `Float[]`; 0 where there are none."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    real = batch.real.astype(losses.dtype)
    return (jnp.where(batch.real, losses, 0.0)).sum() / jnp.maximum(real.sum(), 1.0)


def visit(setting: Setting, key: Key, ctx: Context) -> tuple[Outcome, Array]:
    """Trains one client on its own rows.

    Args:
        setting: the setting.
        key: the visit's key.
        ctx: the visit's context, without `prepared`; its size may be 0, which leaves the variables as received.

    Returns:
        The outcome, and the sum of the training loss over the steps.
    """
    ctx = ctx._replace(
        prepared={
            part.slot: part.prepare(purpose_key(key, f"prepare/{part.slot}"), ctx.start, ctx)
            for part in setting.playing(Prepare)
        }
    )
    optimizer = setting.local.transform(ctx.round).init(ctx.start.params)
    carry = Training(ctx.start, optimizer, jnp.zeros(()))
    carry = lax.fori_loop(0, setting.local_epochs, lambda epoch, c: _epoch(setting, key, ctx, epoch, c), carry)
    steps = setting.local_epochs * setting.steps_per_epoch(ctx.size)
    outcome = Outcome(ctx.start, carry.variables, steps, steps * ctx.learning_rate, ctx)
    return outcome, carry.loss_sum


def _epoch(setting: Setting, key: Key, ctx: Context, epoch: Array, carry: Training) -> Training:
    key = jax.random.fold_in(key, epoch)
    length = max(1, -(-setting.max_size // setting.batch_size)) * setting.batch_size
    order = _order(setting, purpose_key(key, "draw"), ctx, length)
    first = ctx.federation.offsets.at[ctx.client].get(mode="clip")
    lanes = jnp.arange(setting.batch_size)

    def one(step: Array, carry: Training) -> Training:
        places = lax.dynamic_slice(order, (step * setting.batch_size,), (setting.batch_size,))
        real = step * setting.batch_size + lanes < ctx.size
        batch = gather(ctx.federation, first + places, real)
        return _step(setting, jax.random.fold_in(purpose_key(key, "model"), step), ctx, batch, carry)

    return lax.fori_loop(0, setting.steps_per_epoch(ctx.size), one, carry)


def _order(setting: Setting, key: Key, ctx: Context, length: int) -> Array:
    if setting.drawing == "epochs":
        return shuffled(key, ctx.size, length)
    flat = jnp.zeros(ctx.class_counts.shape)
    weights = sum((part.log_weights(ctx.class_counts, ctx) for part in setting.playing(Draw)), flat)
    return weighted(key, ctx.class_counts, weights, length)


def _step(setting: Setting, key: Key, ctx: Context, batch: Batch, carry: Training) -> Training:
    params, stats = carry.variables

    def objective(params: PyTree) -> tuple[Array, PyTree]:
        outputs, after = ctx.model.apply(Variables(params, stats), batch.images, train=True, key=key, real=batch.real)
        logits = outputs.logits
        for part in setting.playing(Logits):
            logits = part.logits(logits, batch, ctx)
        added = [part.loss(outputs, batch, params, ctx) for part in setting.playing(Loss)]
        return sum(added, mean_cross_entropy(logits, batch)), after.stats

    (loss, stats), grads = jax.value_and_grad(objective, has_aux=True)(params)
    for part in setting.playing(Gradient):
        grads = part.gradient(grads, params, ctx)
    transform = setting.local.transform(ctx.round)
    updates, optimizer = transform.update(grads, carry.optimizer, params)
    return Training(Variables(optax.apply_updates(params, updates), stats), optimizer, carry.loss_sum + loss)
