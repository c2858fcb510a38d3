"""Focal loss: rows that the model already classifies well get less weight."""

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.roles import Criterion, part
from fedjax_bal.types import Array, Context


@part
class FocalLoss(Criterion):
    r"""Multiplies the cross-entropy of a row by $(1 - p_y)^\gamma$, with the probability $p_y$ of its label.

    Attributes:
        gamma: focusing; 0 is the cross-entropy.

    References:
        Focal loss (Lin et al., 2017), eq. 4, over the softmax and without the class weights alpha. In federated
        learning Sarkar et al., 2020, without their selection of clients.
    """

    gamma: float = 2.0

    def losses(self, logits: Array, labels: Array, ctx: Context) -> Array:
        """Returns the loss of each row, `Float[B]`."""
        log_probability = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)[:, 0]
        # The bound keeps the gradient finite where the probability is 1 and gamma is below 1.
        doubt = jnp.maximum(-jnp.expm1(log_probability), 1e-12)
        return -(doubt**self.gamma) * log_probability


@recipe("long_tail", "lin2017focal", "sarkar2020fedfocal")
def focal(gamma: NonNegative = 2.0) -> Recipe:
    """Cross-entropy in which rows that the model already classifies well get less weight.

    Args:
        gamma: focusing, at least 0; 0 is FedAvg.

    Example:
        >>> focal().parts
        (FocalLoss(gamma=2.0),)
    """
    return Recipe("focal", (FocalLoss(gamma),))
