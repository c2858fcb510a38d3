"""FedRCL: a relaxed contrastive loss: rows of a class attract each other until they are too similar."""

from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Ge, Le

from fedjax_bal.methods.combine import NonNegative, Positive, Recipe, recipe
from fedjax_bal.methods.roles import Loss, part
from fedjax_bal.models import unit
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree

_NEGATIVES = 2  # most similar rows of other classes that count, as in the authors' code


def relaxed_contrast(
    features: Array, labels: Array, real: Array, temperature: Array | float, threshold: Array | float
) -> tuple[Array, Array]:
    r"""Computes the two losses of a batch, each the mean over its real rows, `Float[]`.

    With s the cosine of two rows and $\tau$ the temperature, the contrastive loss of row i is
    $-\log \frac{e^{p_i / \tau}}{e^{p_i / \tau} + \sum_j e^{n_{ij} / \tau}}$, where $p_i$ is the smallest s to a row of
    its class, itself included, and $n_{ij}$ are the two largest s to rows of other classes. Its penalty is
    $\log(1 + e^{(q_i - 1) / \tau})$, where $q_i$ is the smallest s to another row of its class, or -1 if that is below
    the threshold or there is none.

    Args:
        features: `Float[B, F]`.
        labels: `Int[B]`.
        real: `Bool[B]`; other rows are ignored.
        temperature: above 0.
        threshold: similarity from which on the rows of a class repel each other.
    """
    directions = unit(features)
    cosines = directions @ directions.T
    pairs = real & real[:, None]
    same = pairs & (labels == labels[:, None])
    others = same & ~jnp.eye(len(labels), dtype=bool)

    positive = jnp.where(same, cosines, jnp.inf).min(1)
    negatives = jnp.where(pairs & ~same, cosines, -jnp.inf)
    negatives = jax.lax.top_k(negatives, min(_NEGATIVES, len(labels)))[0]
    # Padding has no positive: any number does, as its loss isn't counted.
    positive = jnp.where(real, positive, 1.0)
    logits = jnp.concatenate([positive[:, None], negatives], 1) / temperature
    contrast = jax.nn.logsumexp(logits, 1) - logits[:, 0]

    least = jnp.where(others, cosines, jnp.inf).min(1)
    repelled = jnp.isfinite(least) & (least >= threshold)
    penalty = jax.nn.softplus((jnp.where(repelled, least, -1.0) - jnp.diagonal(cosines)) / temperature)

    mean = lambda losses: jnp.where(real, losses, 0.0).sum() / jnp.maximum(real.sum(), 1)
    return mean(contrast), mean(penalty)


@part
class RelaxedContrast(Loss):
    """Adds a supervised contrastive loss and a penalty on too similar rows of a class, on several levels.

    The levels are those of a residual network, `Outputs.levels`, averaged over pixels; for other models the features.
    The losses, see `relaxed_contrast`, are averaged over levels.

    Attributes:
        weight: weight of the contrastive loss.
        penalty: weight of the penalty; 0 is supervised contrastive learning.
        temperature: divisor of cosines.
        threshold: lambda, the similarity from which on the rows of a class repel each other.

    References:
        FedRCL (Seo et al., 2024), as in the authors' code, with its defaults: it takes the hardest pairs of each row,
        maps before their activation, and both losses on all levels. There gradients are clipped at norm 10 and the
        network has group normalisation; here the run's options say so.
    """

    weight: float = 1.0
    penalty: float = 1.0
    temperature: float = 0.05
    threshold: float = 0.7

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted sum of both losses, `Float[]`."""
        levels = outputs.levels or (outputs.features,)
        total = jnp.zeros(())
        for maps in levels:
            pooled = maps.reshape(len(maps), -1, maps.shape[-1]).mean(1)
            pair = relaxed_contrast(pooled, batch.labels, batch.real, self.temperature, self.threshold)
            total = total + self.weight * pair[0] + self.penalty * pair[1]
        return total / len(levels)


Cosine = Annotated[float, Ge(-1), Le(1)]


@recipe("drift", "seo2024fedrcl")
def fedrcl(
    weight: NonNegative = 1.0, penalty: NonNegative = 1.0, temperature: Positive = 0.05, threshold: Cosine = 0.7
) -> Recipe:
    """A contrastive loss on several levels of the network, relaxed for rows of a class that are too similar.

    Args:
        weight: weight of the contrastive loss, at least 0.
        penalty: weight of the penalty on rows of a class that are too similar, at least 0.
        temperature: divisor of cosines, above 0.
        threshold: cosine from which on rows of a class repel each other, from -1 to 1.

    Example:
        >>> fedrcl().parts
        (RelaxedContrast(weight=1.0, penalty=1.0, temperature=0.05, threshold=0.7),)
    """
    return Recipe("fedrcl", (RelaxedContrast(weight, penalty, temperature, threshold),))
