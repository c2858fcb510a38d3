"""FedProto as a regulariser: features stay near the prototype of their class."""

import jax.numpy as jnp

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.prototypes import Prototypes, SharedPrototypes
from fedjax_bal.methods.roles import Loss, part
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class PrototypeDistance(SharedPrototypes, Loss):
    r"""Adds $\lambda$ times the mean squared distance, over rows and features, to the prototype of the row's class.

    Prototypes are the mean features over all rows of the clients that delivered in the previous round; a row of a class
    without a prototype adds 0.

    Attributes:
        weight: lambda.

    References:
        FedProto (Tan et al., 2022), Algorithm 1, combined with an averaged model. In the paper models are not averaged,
        and rows are classified by the nearest prototype. Clients compute prototypes with the model that they deliver;
        the authors' code uses the features that occur during the last epoch, and averages clients without weights. The
        default is that of the authors' code.
    """

    weight: float = 1.0

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted distance, `Float[]`."""
        known: Prototypes = ctx.broadcast[self.slot]
        distances = ((outputs.features - known.means[batch.labels]) ** 2).mean(-1)
        counted = batch.real & known.present[batch.labels]
        return self.weight * jnp.where(counted, distances, 0.0).sum() / jnp.maximum(batch.real.sum(), 1)


@recipe("drift", "tan2022fedproto")
def fedproto(weight: NonNegative = 1.0) -> Recipe:
    """FedAvg whose clients keep features near the prototype of their class, the mean feature over all clients.

    Args:
        weight: lambda, at least 0; 0 is FedAvg.

    Example:
        >>> fedproto(0.1).parts
        (PrototypeDistance(weight=0.1),)
    """
    return Recipe("fedproto", (PrototypeDistance(weight),))
