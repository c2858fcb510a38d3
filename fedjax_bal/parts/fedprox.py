"""FedProx: stay near the received model."""

import jax
import jax.numpy as jnp

from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Loss
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class Proximal(Loss):
    r"""Adds $\frac{\mu}{2} \| y - w \|^2$ over the trainable parameters.

    Attributes:
        mu: the penalty's weight; 0 is FedAvg.

    References:
        FedProx (Li et al., 2020), eq. 2. The penalty is part of the loss, so that momentum sees it; batch statistics
        are left out.
    """

    mu: float = 0.001

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """The penalty, `Float[]`."""
        squares = jax.tree.map(lambda y, w: jnp.sum((y - w) ** 2), params, ctx.start.params)
        return 0.5 * self.mu * jnp.stack(jax.tree.leaves(squares)).sum()
