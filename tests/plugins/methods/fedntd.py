"""FedNTD (Lee et al., NeurIPS 2022): distil what the received model says about the classes that aren't the true one."""

from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt

import fedjax_bal
from fedjax_bal.parts import Loss, part
from fedjax_bal.recipes import Recipe


@part
class NotTrueDistillation(Loss):
    """Adds beta times the divergence from the received model's probabilities of all classes but the true one."""

    beta: float = 1.0
    temperature: float = 1.0

    def loss(self, outputs, batch, params, ctx):
        received, _ = ctx.model.apply(ctx.start, batch.images, train=False)
        true = jax.nn.one_hot(batch.labels, outputs.logits.shape[-1], dtype=bool)
        others = lambda logits: jax.nn.log_softmax(jnp.where(true, -1e9, logits / self.temperature))
        teacher, student = others(jax.lax.stop_gradient(received.logits)), others(outputs.logits)
        divergence = (jnp.exp(teacher) * (teacher - student)).sum(-1) * self.temperature**2
        return self.beta * jnp.where(batch.real, divergence, 0).sum() / jnp.maximum(batch.real.sum(), 1)


@fedjax_bal.register("recipe", "fedntd")
def fedntd(beta: Annotated[float, Ge(0)] = 1.0, temperature: Annotated[float, Gt(0)] = 1.0) -> Recipe:
    """Not-true distillation: keeps the received model's knowledge of classes that a client lacks."""
    return Recipe("fedntd", (NotTrueDistillation(beta, temperature),))
