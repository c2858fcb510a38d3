"""FedNTD: distil what the received model says about the classes that aren't the true one."""

from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt

import fedjax_bal
from fedjax_bal.parts import Loss, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree

from .bibtex import FEDNTD


@part
class NotTrueDistillation(Loss):
    r"""Adds $\beta$ times the divergence from the received model's probabilities of all classes but the true one.

    With $\tilde q(c) \propto e^{z_c / T}$ over the classes $c \neq y$, of the model in training and, with index g, of
    the received one, the loss of an image is $\sum_{c \neq y} \tilde q_g(c) \log (\tilde q_g(c) / \tilde q(c))$. The
    received model is applied in evaluation mode and gets no gradient.

    Attributes:
        beta: weight of the added loss; 0 is FedAvg.
        temperature: T.

    References:
        FedNTD (Lee et al., NeurIPS 2022, arXiv:2106.03097), eq. 5 to 7, without a factor of T squared, as in the
        authors' code. Its configurations have T = 1 and beta = 1.
    """

    beta: float = 1.0
    temperature: float = 1.0

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """The mean divergence over the real rows, `Float[]`."""
        received, _ = ctx.model.apply(ctx.start, batch.images, train=False)
        divergences = not_true_divergence(
            outputs.logits, jax.lax.stop_gradient(received.logits), batch.labels, self.temperature
        )
        return self.beta * jnp.where(batch.real, divergences, 0.0).sum() / jnp.maximum(batch.real.sum(), 1)


def not_true_divergence(student: Array, teacher: Array, labels: Array, temperature: float) -> Array:
    """The divergence of the student's softened probabilities of all classes but the true one, `Float[B]`."""
    true = jax.nn.one_hot(labels, student.shape[-1], dtype=bool)
    others = lambda logits: jax.nn.log_softmax(jnp.where(true, -1e9, logits / temperature))
    wanted, found = others(teacher), others(student)
    return (jnp.exp(wanted) * (wanted - found)).sum(-1)


@fedjax_bal.register("recipe", "fedntd", citation=FEDNTD)
def fedntd(beta: Annotated[float, Ge(0)] = 1.0, temperature: Annotated[float, Gt(0)] = 1.0) -> Recipe:
    """Not-true distillation: keeps the received model's knowledge of classes that a client lacks.

    Args:
        beta: weight of the distillation, at least 0; 0 is FedAvg.
        temperature: of the softened probabilities, above 0.

    References:
        Lee et al., 2022, Algorithm 1.
    """
    return Recipe("fedntd", (NotTrueDistillation(beta, temperature),))
