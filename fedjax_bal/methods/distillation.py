"""Distillation from the received model on a subset of the classes, which several methods share."""

import jax.numpy as jnp

from fedjax_bal.balance import distillation_loss
from fedjax_bal.types import Array, Batch, Context


def distil_received(
    logits: Array, batch: Batch, ctx: Context, temperature: Array | float, *, taught: Array, learned: Array
) -> Array:
    r"""Computes $T^2 KL$ from the received model's probabilities to those of the model in training, `Float[]`.

    The received model's probabilities are taken among the classes `taught`, `Bool[B, C]`, those of the model in
    training among `learned`, which include `taught`. The result is the mean over real rows; a row without a `taught`
    class adds 0. The received model is applied in evaluation mode and gets no gradient.
    """
    received, _ = ctx.model.apply(ctx.start, batch.images, train=False)
    counted = batch.real & taught.any(-1)
    among = lambda values, classes: jnp.where(classes, values, -jnp.inf)
    mean = distillation_loss(among(logits, learned), among(received.logits, taught), temperature, real=counted)
    return mean * counted.sum() / jnp.maximum(batch.real.sum(), 1)
