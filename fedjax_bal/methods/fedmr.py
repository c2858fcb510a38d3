"""FedMR: features are decorrelated within each class, and stay as far from other classes as global prototypes are."""

import jax.numpy as jnp

from fedjax_bal.balance import class_prototypes, class_sums
from fedjax_bal.methods.combine import NonNegative, Recipe, recipe, variants
from fedjax_bal.methods.prototypes import Prototypes, SharedPrototypes, keep_absent
from fedjax_bal.methods.roles import Loss, part
from fedjax_bal.types import Array, Batch, Context, Key, Outputs, PyTree, ServerContext

_SMALLEST = 1e-8  # added to a variance, as in the authors' code, and to a squared distance


@part
class ClassDecorrelation(Loss):
    r"""Adds $\mu$ times the squared correlations of two features within a class, so that classes don't collapse.

    A class with $n_c > 1$ rows in the batch adds the mean of $((n_c - 1) r)^2$ over all pairs of features, where r is
    their correlation over these rows. The sum over classes is divided by the number of their rows.

    Attributes:
        weight: mu.

    References:
        FedMR (Fan et al., 2023), intra-class loss, in the form and with the default weight of the authors' code; their
        command has 0.00001.
    """

    weight: float = 0.01

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted sum, `Float[]`; 0 without a class of two rows, or with a single feature."""
        classes = ctx.federation.num_classes
        width = outputs.features.shape[-1]
        means, counts = class_prototypes(outputs.features, batch.labels, batch.real, classes)
        counted = batch.real & (counts > 1)[batch.labels]
        centred = jnp.where(counted[:, None], outputs.features - means[batch.labels], 0.0)
        squares, _ = class_sums(centred**2, batch.labels, counted, classes)
        variances = squares / jnp.maximum(counts - 1, 1)[:, None]
        scaled = centred / jnp.sqrt(variances + _SMALLEST)[batch.labels]
        # The matrix of a class's features would be Float[C, F, F]. That of its rows has the same sum of squares, from
        # which the products of features with themselves are subtracted.
        same = batch.labels[:, None] == batch.labels
        products = jnp.where(same, scaled @ scaled.T, 0.0)
        with_themselves, _ = class_sums(scaled**2, batch.labels, counted, classes)
        pairs = (products**2).sum() - (with_themselves**2).sum()
        return self.weight * pairs / max(width * (width - 1), 1) / jnp.maximum(counted.sum(), 1)


@part
class PrototypeMargin(SharedPrototypes, Loss):
    r"""Adds $\mu$ times the mean of $\max(\|g_c - g_j\| - \|h_c - g_j\|, 0)$, so that classes don't invade others.

    $g_c$ are global prototypes, the mean features over all rows of the clients that delivered in the last round; a
    class that none of them has keeps its prototype. $h_c$ is the mean feature of the batch's rows of class c. The mean
    is over all pairs of a class c in the batch and another class j, if both have prototypes.

    Attributes:
        weight: mu.

    References:
        FedMR (Fan et al., 2023), inter-class loss, which the authors' code leaves out. Its form here, a margin to the
        other classes' prototypes, follows the paper's description and hasn't been checked against its equation; the
        mean over pairs and the default weight are this package's, as is that clients compute prototypes with the model
        that they deliver.
    """

    weight: float = 0.01

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted mean, `Float[]`; 0 without such a pair."""
        known: Prototypes = ctx.broadcast[self.slot]
        classes = ctx.federation.num_classes
        means, counts = class_prototypes(outputs.features, batch.labels, batch.real, classes)
        pairs = ((counts > 0) & known.present)[:, None] & known.present & ~jnp.eye(classes, dtype=bool)
        to_others = lambda own: jnp.sqrt(((own[:, None] - known.means) ** 2).sum(-1) + _SMALLEST)
        lacking = jnp.maximum(to_others(known.means) - to_others(means), 0.0)
        return self.weight * jnp.where(pairs, lacking, 0.0).sum() / jnp.maximum(pairs.sum(), 1)

    def update(self, key: Key, server: ServerContext) -> Prototypes:
        """Computes the new prototypes; keeps that of a class that no client delivered."""
        return keep_absent(super().update(key, server), server.state)


@recipe("losses", "fan2023fedmr")
@variants(code={"inter": 0.0})
def fedmr(intra: NonNegative = 0.01, inter: NonNegative = 0.01) -> Recipe:
    """FedAvg for clients with few classes: features are decorrelated within a class, and classes kept apart.

    Args:
        intra: weight of the correlations within a class, at least 0.
        inter: weight of the distances that fall short of those between global prototypes, at least 0; with 0 no
            prototypes are sent, and with both 0 this is FedAvg.

    Example:
        >>> fedmr().parts
        (ClassDecorrelation(weight=0.01), PrototypeMargin(weight=0.01))
        >>> fedmr(variant="code").parts
        (ClassDecorrelation(weight=0.01),)
    """
    parts = (ClassDecorrelation(intra), PrototypeMargin(inter))
    return Recipe("fedmr", parts if inter else parts[:1])
