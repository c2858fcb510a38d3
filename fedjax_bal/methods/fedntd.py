"""FedNTD: distillation preserves the received model's predictions for all classes except the true one."""

import jax

from fedjax_bal.methods.combine import NonNegative, Positive, Recipe, recipe
from fedjax_bal.methods.distillation import distil_received
from fedjax_bal.methods.roles import Loss, part
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class NotTrueDistillation(Loss):
    r"""Adds $\beta$ times the divergence from the received model's probabilities among all classes but the row's own.

    Attributes:
        weight: beta.
        temperature: T, with the usual factor $T^2$.

    References:
        FedNTD (Lee et al., 2022), eq. 5 to 7; the factor is in the authors' code. The defaults are those of the
        authors' configurations.
    """

    weight: float = 1.0
    temperature: float = 1.0

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted divergence, `Float[]`."""
        others = ~jax.nn.one_hot(batch.labels, outputs.logits.shape[-1], dtype=bool)
        return self.weight * distil_received(
            outputs.logits, batch, ctx, self.temperature, taught=others, learned=others
        )


@recipe("losses", "lee2022fedntd")
def fedntd(weight: NonNegative = 1.0, temperature: Positive = 1.0) -> Recipe:
    """Distillation from the received model on all classes but the true one.

    Args:
        weight: beta, at least 0; 0 is FedAvg.
        temperature: divisor of logits, above 0.

    Example:
        >>> fedntd().parts
        (NotTrueDistillation(weight=1.0, temperature=1.0),)
    """
    return Recipe("fedntd", (NotTrueDistillation(weight, temperature),))
