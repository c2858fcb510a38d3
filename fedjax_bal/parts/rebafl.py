"""ReBaFL's feature augmentation: train the classifier on features moved to the classes a client lacks."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.balance import class_sums, prior_calibrated_cross_entropy, smoothed_prior, transfer_features
from fedjax_bal.data import over_rows
from fedjax_bal.parts.part import part, static
from fedjax_bal.parts.roles import Loss, Prepare, Report, Server
from fedjax_bal.types import (
    Array,
    Batch,
    Context,
    Exhibit,
    Key,
    Model,
    Outcome,
    Outputs,
    PyTree,
    ServerContext,
    Variables,
)


class Prototypes(NamedTuple):
    """Mean features by class.

    Attributes:
        means: `Float[C, F]`, zeros where unknown.
        present: `Bool[C]`.
    """

    means: Array
    present: Array


class FeatureSums(NamedTuple):
    """Sums of features by class, which add up over clients and give prototypes.

    Attributes:
        sums: `Float[C, F]`.
        counts: `Float[C]`.
    """

    sums: Array
    counts: Array


def feature_sums(variables: Variables, ctx: Context) -> FeatureSums:
    """One evaluation pass over a client's rows: summed features and counts by class."""
    classes = ctx.federation.num_classes

    def add(carry: FeatureSums, batch: Batch) -> FeatureSums:
        outputs, _ = ctx.model.apply(variables, batch.images, train=False)
        sums, counts = class_sums(outputs.features, batch.labels, batch.real, classes)
        return FeatureSums(carry.sums + sums, carry.counts + counts)

    width = num_features(ctx.model, variables)
    return over_rows(add, FeatureSums(jnp.zeros((classes, width)), jnp.zeros(classes)), ctx)


def num_features(model: Model, variables: Variables) -> int:
    """F, the width of the classifier's input."""
    image = jnp.zeros((1, *model.input_shape), model.input_dtype)
    return jax.eval_shape(lambda: model.apply(variables, image, train=False)[0].features).shape[-1]


def prototypes_of(sums: FeatureSums) -> Prototypes:
    """Means of the classes that have samples."""
    present = sums.counts > 0
    return Prototypes(sums.sums / jnp.where(present, sums.counts, 1.0)[:, None], present)


@part
class FeatureTransfer(Prepare, Loss, Report, Server):
    r"""Adds $\mu$ times the cross-entropy of the classifier on transferred features.

    Before training a client computes prototypes of its own classes with the received extractor and takes those of the
    other classes from the server. In a mini-batch, sample j is moved to class $j \bmod C$; the cross-entropy of the
    moved features is calibrated with the smoothed frequencies of their new labels. Its gradient reaches the
    classifier only. After training the client sends the sums of its new features, from which the server makes the
    prototypes of the next round: a class that no client delivered has none.

    The term is off while the server has no prototypes at all (in the first round), and for a client with a single
    class.

    Attributes:
        mu: weight of the added loss.
        epsilon: smoothing of the moved labels' frequencies; the same as the client's prior in the paper.
        scale: lambda, the factor on a feature's offset from its prototype.
        prototypes: "local_override" as above, or "global_only" to use the server's for all classes.
        carry: keep the old prototype of a class that no client delivered.
        min_classes: clients with fewer classes send no prototypes.

    References:
        ReBaFL (Xu et al., 2023), eq. 15 to 21 and 23, Algorithm 1. Frequencies per mini-batch and the single-class rule
        follow the authors' code; the local override follows the paper (their code computes but does not use it).
    """

    mu: float = 0.1
    epsilon: float = 0.01
    scale: float = 1.0
    prototypes: str = static("local_override")
    carry: bool = static(False)
    min_classes: int = static(1)

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Prototypes:
        """The prototypes to train with."""
        received: Prototypes = ctx.broadcast[self.slot]
        if self.prototypes == "global_only":
            return received
        own = prototypes_of(feature_sums(variables, ctx))
        means = jnp.where(own.present[:, None], own.means, received.means)
        return Prototypes(means, own.present | received.present)

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """The classifier's loss on moved features, `Float[]`."""
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
        """Feature sums by class with the updated extractor."""
        sums = feature_sums(outcome.end, outcome.ctx)
        enough = (outcome.ctx.class_counts > 0).sum() >= self.min_classes
        return jax.tree.map(lambda s: jnp.where(enough, s, 0.0), sums)

    def init_server(self, server: ServerContext) -> Prototypes:
        """No prototypes."""
        classes, width = server.federation.num_classes, num_features(server.model, server.variables)
        return Prototypes(jnp.zeros((classes, width)), jnp.zeros(classes, bool))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[Prototypes, Prototypes]:
        """The prototypes go to every client."""
        return server.state, server.state

    def show(self, key: Key, server: ServerContext) -> Exhibit:
        """The prototypes that all clients get."""
        return Exhibit(prototypes=tuple(server.state))

    def update(self, key: Key, server: ServerContext) -> Prototypes:
        """Means over all samples delivered this round."""
        old, new = server.state, prototypes_of(server.aggregate.reports[self.slot])
        if not self.carry:
            return new
        return Prototypes(jnp.where(new.present[:, None], new.means, old.means), new.present | old.present)
