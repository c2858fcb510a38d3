"""ReBaFL: the classifier is also trained on features moved to other classes, such as those that the client lacks."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_bal.balance import prior_calibrated_cross_entropy, smoothed_prior, transfer_features
from fedjax_bal.methods.balanced_softmax import PriorCalibration
from fedjax_bal.methods.combine import Count, NonNegative, Recipe, Share, recipe, variants
from fedjax_bal.methods.prototypes import FeatureSums, Prototypes, SharedPrototypes, feature_sums, prototypes_of
from fedjax_bal.methods.roles import Loss, Prepare, part, static
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, Outputs, PyTree, ServerContext, Variables


@part
class FeatureTransfer(SharedPrototypes, Prepare, Loss):
    r"""Adds $\mu$ times the cross-entropy of the classifier on transferred features.

    Before training, a client computes prototypes of its own classes with the received extractor and takes those of the
    other classes from the server. In a mini-batch, sample j is moved to class $j \bmod C$; the cross-entropy of the
    moved features is calibrated with the smoothed frequencies of their new labels. Its gradient reaches only the
    classifier. After training, the client sends the sums of its new features, from which the server computes the
    prototypes of the next round. A class that no client delivered has no prototype; a round without updates keeps all
    prototypes.

    The term is off while the server has no prototypes (in the first round), and for a client with a single class.

    Attributes:
        mu: weight of the added loss.
        epsilon: smoothing of the moved labels' frequencies; in the paper the same as for the client's prior.
        scale: lambda, the factor on a feature's offset from its prototype.
        prototypes: "local_override" as above, or "global_only" to use the server's prototypes for all classes.
        carry: keep the old prototype of a class that no client delivered.
        min_classes: clients with fewer classes send no prototypes.

    References:
        ReBaFL (Xu et al., 2023), eq. 15 to 21 and 23, Algorithm 1. Frequencies per mini-batch and the single-class rule
        follow the authors' code; the local override follows the paper (the code computes but doesn't use it).
    """

    mu: float = 0.1
    epsilon: float = 0.01
    scale: float = 1.0
    prototypes: str = static("local_override")
    carry: bool = static(False)
    min_classes: int = static(1)

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Prototypes:
        """Returns the prototypes for training."""
        received: Prototypes = ctx.broadcast[self.slot]
        if self.prototypes == "global_only":
            return received
        own = prototypes_of(feature_sums(variables, ctx))
        means = jnp.where(own.present[:, None], own.means, received.means)
        return Prototypes(means, own.present | received.present)

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the classifier's loss on moved features, `Float[]`."""
        known: Prototypes = ctx.prepared[self.slot]
        features, labels = transfer_features(
            jax.lax.stop_gradient(outputs.features), batch.labels, known.means, known.present, self.scale
        )
        real = batch.real.astype(float)
        classes = known.means.shape[0]
        frequencies = (jax.nn.one_hot(labels, classes) * real[:, None]).sum(0)
        prior = smoothed_prior(frequencies, self.epsilon)
        losses = prior_calibrated_cross_entropy(ctx.model.head(params, features), labels, prior)
        mean = (losses * real).sum() / jnp.maximum(real.sum(), 1.0)
        on = ctx.broadcast[self.slot].present.any() & ((ctx.class_counts > 0).sum() > 1)
        return jnp.where(on, self.mu * mean, 0.0)

    def report(self, outcome: Outcome) -> FeatureSums:
        """Returns feature sums by class, computed with the trained extractor; zeros from clients with few classes."""
        sums = super().report(outcome)
        enough = (outcome.ctx.class_counts > 0).sum() >= self.min_classes
        return jax.tree.map(lambda s: jnp.where(enough, s, 0.0), sums)

    def update(self, key: Key, server: ServerContext) -> Prototypes:
        """Computes means over all samples of the clients that delivered in this round; may keep old prototypes."""
        old = server.state
        new = super().update(key, server)
        if not self.carry:
            return new
        return Prototypes(jnp.where(new.present[:, None], new.means, old.means), new.present | old.present)


@recipe("losses", "xu2023rebafl")
@variants(paper={}, code={"prototypes": "global_only", "min_classes": 2, "mu": 0.5})
def rebafl(
    epsilon: Share = 0.01,
    mu: NonNegative = 0.1,
    scale: NonNegative = 1.0,
    prototypes: Literal["local_override", "global_only"] = "local_override",
    carry: bool = False,
    min_classes: Count = 1,
) -> Recipe:
    """Relaxed balanced softmax and feature augmentation from class prototypes.

    `variant="paper"` or `variant="code"` sets all options in which the paper and the authors' code differ; explicit
    arguments override it.

    Args:
        epsilon: share of the uniform distribution in the class prior, in [0, 1].
        mu: weight of the feature augmentation's loss, at least 0.
        scale: lambda, the factor on a feature's offset from its prototype.
        prototypes: "local_override" or "global_only".
        carry: keep the prototype of a class that no client delivered.
        min_classes: clients with fewer classes send no prototypes.

    Example:
        >>> [part.slot for part in rebafl().parts]
        ['PriorCalibration', 'FeatureTransfer']
    """
    transfer = FeatureTransfer(mu, epsilon, scale, prototypes, carry, min_classes)
    return Recipe("rebafl", (PriorCalibration(epsilon), transfer))
