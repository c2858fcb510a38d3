"""FedProx: a penalty keeps local training near the received model."""

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.roles import Loss, part
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class Proximal(Loss):
    r"""Adds $\frac{\mu}{2} \| y - w \|^2$ over the trainable parameters.

    Attributes:
        mu: the penalty's weight; 0 is FedAvg.

    References:
        FedProx (Li et al., 2020), eq. 2. The penalty is part of the loss, so that momentum sees it; batch statistics
        aren't penalised. The paper's partial work of slow clients isn't part of this method.
    """

    mu: float = 0.001

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the penalty, `Float[]`."""
        squares = jax.tree.map(lambda y, w: jnp.sum((y - w) ** 2), params, ctx.start.params)
        return 0.5 * self.mu * jnp.stack(jax.tree.leaves(squares)).sum()


@recipe("averaging", "li2020fedprox")
def fedprox(mu: NonNegative = 0.001) -> Recipe:
    """FedAvg with a proximal term.

    Args:
        mu: weight of the penalty, at least 0.

    Example:
        >>> fedprox(0.01).parts
        (Proximal(mu=0.01),)
    """
    return Recipe("fedprox", (Proximal(mu),))
