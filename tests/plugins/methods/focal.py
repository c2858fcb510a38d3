"""Focal loss: examples that the model already classifies well count less."""

from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Ge

import fedjax_bal
from fedjax_bal.parts import Criterion, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.types import Array, Context

from .bibtex import FOCAL


@part
class FocalLoss(Criterion):
    r"""The cross-entropy of an image, times $(1 - p_y)^\gamma$ with $p_y$ the probability of its label.

    Attributes:
        gamma: focusing; 0 is the cross-entropy.

    References:
        Focal loss (Lin et al., ICCV 2017, arXiv:1708.02002), eq. 4, over the softmax and without class weights alpha.
        Fed-Focal (Sarkar et al., 2020, arXiv:2011.06283) trains clients with it; its selection of clients is left out.
    """

    gamma: float = 2.0

    def losses(self, logits: Array, labels: Array, ctx: Context) -> Array:
        """The loss of each row, `Float[B]`."""
        log_probability = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)[:, 0]
        # The bound keeps the gradient finite where the probability is 1 and gamma is below 1.
        doubt = jnp.maximum(-jnp.expm1(log_probability), 1e-12)
        return -(doubt**self.gamma) * log_probability


@fedjax_bal.register("recipe", "focal", citation=FOCAL)
def focal(gamma: Annotated[float, Ge(0)] = 2.0) -> Recipe:
    """FedAvg with the focal loss in local training.

    Args:
        gamma: focusing, at least 0; 0 is FedAvg.

    References:
        Lin et al., 2017; in federated learning Sarkar et al., 2020.
    """
    return Recipe("focal", (FocalLoss(gamma),))
