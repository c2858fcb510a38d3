"""FedDecorr: features of a batch are kept uncorrelated, so that they don't collapse onto few dimensions."""

import jax.numpy as jnp

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.roles import Loss, part
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree

_SMALLEST = 1e-8  # added to a variance


@part
class Decorrelation(Loss):
    r"""Adds $\beta \frac{(n - 1)^2}{n}$ times the mean squared correlation of two features over the batch's n rows.

    Attributes:
        weight: beta.

    References:
        FedDecorr (Shi et al., 2023), in the form and with the default weight of the authors' code. The paper has no
        factor of n, and includes the correlations of features with themselves, which are constant.
    """

    weight: float = 0.1

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted mean, `Float[]`; 0 with a single row or a single feature."""
        rows = batch.real.sum()
        width = outputs.features.shape[-1]
        real = batch.real[:, None]
        mean = jnp.where(real, outputs.features, 0.0).sum(0) / jnp.maximum(rows, 1)
        centred = jnp.where(real, outputs.features - mean, 0.0)
        scaled = centred / jnp.sqrt((centred**2).sum(0) / jnp.maximum(rows - 1, 1) + _SMALLEST)
        products = jnp.where(jnp.eye(width, dtype=bool), 0.0, scaled.T @ scaled)
        return self.weight * (products**2).sum() / max(width * (width - 1), 1) / jnp.maximum(rows, 1)


@recipe("drift", "shi2023feddecorr")
def feddecorr(weight: NonNegative = 0.1) -> Recipe:
    """FedAvg whose clients keep features uncorrelated, to prevent their collapse onto few dimensions.

    Args:
        weight: beta, at least 0; 0 is FedAvg.

    Example:
        >>> feddecorr().parts
        (Decorrelation(weight=0.1),)
    """
    return Recipe("feddecorr", (Decorrelation(weight),))
