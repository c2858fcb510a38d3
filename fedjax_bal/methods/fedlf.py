"""FedLF: scaled logits for locally rare classes, features near global class centres, and decorrelated features."""

import jax
import jax.numpy as jnp

from fedjax_bal.balance import class_sums
from fedjax_bal.methods.combine import CountOrZero, NonNegative, Recipe, Share, recipe
from fedjax_bal.methods.feddecorr import Decorrelation
from fedjax_bal.methods.fedrs import RestrictedSoftmax
from fedjax_bal.methods.moon import cosine_similarity
from fedjax_bal.methods.prototypes import (
    FeatureSums,
    Prototypes,
    SharedPrototypes,
    keep_absent,
    num_features,
    prototypes_of,
)
from fedjax_bal.methods.roles import Loss, Steps, part, static
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, Outputs, PyTree, ServerContext


@part
class ClassCentres(SharedPrototypes, Steps, Loss):
    r"""Adds $\lambda$ times the mean distance $|h_c - g_c|$ of a client's class centres from the global ones.

    The centre $h_c$ is the mean feature of the client's rows of class c in this epoch so far, including the batch's,
    through which alone it has a gradient; with `batches_per_epoch`, an epoch here is still as many rows as the client
    has. The mean distance is over all features and all C classes, of which those without rows or without a global
    centre add 0. After training, the client sends its last centres. The server's centre of a class is their mean over
    the clients that have the class, weighted by the cosine between the client's centre and the previous global one;
    negative ones count as 0. The first global centres are plain means. A class that no client delivered keeps its
    centre.

    Attributes:
        weight: lambda.
        warm_up: the rounds before the first global centres are computed.

    References:
        FedLF (Lu et al., 2025), continuous class-centred optimisation, in the form and with the constants of the
        authors' code, algorithm/our.py. There the features of the client's centres are detached, so that the term has
        no gradient and doesn't change training. Negative cosines keep their sign there; behind a ReLU there are none.
        The first global centres also count clients without the class there,
        as zeros, and a class that no client has makes its centre undefined.
    """

    weight: float = 0.5
    warm_up: int = static(10)

    @property
    def first_round(self) -> int:
        """The round after which the first global centres are computed."""
        return self.warm_up

    def init_steps(self, ctx: Context) -> FeatureSums:
        """Returns empty sums."""
        classes = ctx.federation.num_classes
        return FeatureSums(jnp.zeros((classes, num_features(ctx.model, ctx.start))), jnp.zeros(classes))

    def next_steps(self, carry: FeatureSums, outputs: Outputs, batch: Batch, ctx: Context) -> FeatureSums:
        """Returns the sums with the batch's rows."""
        return _with_batch(carry, outputs, batch, ctx)

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted distance, `Float[]`."""
        known: Prototypes = ctx.broadcast[self.slot]
        own = prototypes_of(_with_batch(ctx.steps_state[self.slot], outputs, batch, ctx))
        counted = (own.present & known.present)[:, None]
        return self.weight * jnp.where(counted, jnp.abs(own.means - known.means), 0.0).mean()

    def report(self, outcome: Outcome) -> FeatureSums:
        """Returns the client's weighted centres and their weights."""
        known: Prototypes = outcome.ctx.broadcast[self.slot]
        own = prototypes_of(outcome.ctx.steps_state[self.slot])
        similarity = jnp.maximum(cosine_similarity(own.means, known.means), 0.0)
        weights = jnp.where(own.present, jnp.where(known.present, similarity, 1.0), 0.0)
        return FeatureSums(weights[:, None] * own.means, weights)

    def update(self, key: Key, server: ServerContext) -> Prototypes:
        """Computes the weighted means; keeps the old centre of a class that no client delivered."""
        return keep_absent(super().update(key, server), server.state)


def _with_batch(carry: FeatureSums, outputs: Outputs, batch: Batch, ctx: Context) -> FeatureSums:
    """Adds a batch's rows to the sums, which start again if they would exceed an epoch."""
    # FedYoYo's batches have two views of each row, the second ones after all rows.
    views = batch.real.sum() / jnp.maximum(batch.real[: ctx.batch_size].sum(), 1)
    begins = carry.counts.sum() + batch.real.sum() > views * ctx.size
    sums, counts = class_sums(outputs.features, batch.labels, batch.real, len(carry.counts))
    kept: FeatureSums = jax.tree.map(lambda leaf: jnp.where(begins, 0.0, leaf), carry)
    return FeatureSums(kept.sums + sums, kept.counts + counts)


@recipe("losses", "lu2025fedlf")
def fedlf(
    alpha: Share = 0.25, centres: NonNegative = 0.5, decorrelation: NonNegative = 0.1, warm_up: CountOrZero = 10
) -> Recipe:
    """Logits scaled by local class frequency, features near global class centres, and decorrelated features.

    Args:
        alpha: factor on the logit of a class that the client lacks, in [0, 1]; 1 scales none. The client's largest
            class has factor 1; factors of the others grow with their counts, as in `fedrs` with mode "soft".
        centres: weight of the distance to class centres, at least 0.
        decorrelation: weight of the correlations, at least 0, see `feddecorr`, whose default this is.
        warm_up: rounds before the first global centres are computed.

    Example:
        >>> [part.slot for part in fedlf().parts]
        ['RestrictedSoftmax', 'ClassCentres', 'Decorrelation']

    References:
        Lu et al., 2025. The authors' code doesn't contain the decorrelation, and its class centres have no gradient:
        `centres=0` and `decorrelation=0` train like it, up to the classifier's bias, which it leaves out in training.
    """
    softmax = RestrictedSoftmax(alpha, "soft")
    return Recipe("fedlf", (softmax, ClassCentres(centres, warm_up), Decorrelation(decorrelation)))
