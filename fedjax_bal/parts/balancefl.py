"""BalanceFL: predictions among a client's own classes are kept from becoming too sure."""

import jax
import jax.numpy as jnp

from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Loss
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class PredictionEntropy(Loss):
    r"""Takes $\gamma$ times the entropy of the probabilities among a client's own classes off the loss.

    It is the sum over the rows of a batch, not their mean.

    Attributes:
        weight: gamma.

    References:
        BalanceFL (Shuai et al., 2022), smooth regularisation, in the form and with the weight of the authors' code.
    """

    weight: float = 0.002

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """The negative weighted entropy, `Float[]`."""
        present = ctx.class_counts > 0
        own = jnp.broadcast_to(present | ~present.any(), outputs.logits.shape)  # all classes, for a client without rows
        terms = jax.nn.softmax(outputs.logits, where=own) * jax.nn.log_softmax(outputs.logits, where=own)
        return self.weight * jnp.where(own & batch.real[:, None], terms, 0.0).sum()
