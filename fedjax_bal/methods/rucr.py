"""RUCR: features are pulled to global prototypes, and clients retrain classifiers on prototypes mixed with features."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.balance import class_sums
from fedjax_bal.data import stack_rows
from fedjax_bal.methods.combine import Count, CountOrZero, NonNegative, Positive, Recipe, Share, recipe
from fedjax_bal.methods.heads import (
    UNUSED_FEATURES,
    check_kept,
    classifier,
    classifier_shapes,
    retrain_classifier,
)
from fedjax_bal.methods.needs import begins_within, not_shown_before
from fedjax_bal.methods.prototypes import FeatureSums, num_features, prototypes_of
from fedjax_bal.methods.roles import CheckContext, Loss, Need, Prepare, Refine, Report, Server, part, static
from fedjax_bal.models import unit
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, Outputs, PyTree, ServerContext, Variables


class Unified(NamedTuple):
    """Sums over clients by class: a client's report in RUCR, and what the server sends.

    Attributes:
        features: sums of features and numbers of rows.
        directions: sums over clients of the number of rows times the mean feature scaled to length 1, `Float[C, F]`.
    """

    features: FeatureSums
    directions: Array


class Retrained(NamedTuple):
    """A classifier retrained by clients: summed in reports, averaged on the server.

    Attributes:
        head: the classifier, times the number of rows in reports.
        rows: the number of rows, `Float[]`; 0 if there is no such classifier.
    """

    head: PyTree
    rows: Array


def mixed_features(
    key: Key, prototypes: Array, features: Array, size: Array, per_class: int, low: Array | float, high: Array | float
) -> Array:
    r"""Mixes each class's prototype with random features, `Float[C, per_class, F]`: $u p_c + (1 - u) h / \|h\|$.

    Args:
        key: a JAX random key.
        prototypes: `Float[C, F]`.
        features: a client's, `Float[L, F]`, of which the first `size` count. A class draws them without replacement,
            and goes through them in the same order again if they don't suffice.
        size: `Int32[]`.
        per_class: features of each class.
        low: smallest u; u is uniform, and rounded to hundredths.
        high: largest u.
    """
    order_key, share_key = jax.random.split(key)

    # A random order of the client's rows for each class, with padding last. Each class has its own key, because draws
    # `[C, L]` from a single one would depend on the padded length L.
    draw = lambda class_key: jax.random.uniform(class_key, (len(features),))
    draws = jax.vmap(draw)(jax.random.split(order_key, len(prototypes)))
    order = jnp.argsort(jnp.where(jnp.arange(len(features)) < size, draws, 2.0), axis=1)
    places = order[:, jnp.arange(per_class) % jnp.maximum(size, 1)]

    shares = jax.random.uniform(share_key, (len(prototypes), per_class, 1), minval=low, maxval=high)
    shares = jnp.round(100.0 * shares) / 100.0
    return shares * prototypes[:, None] + (1.0 - shares) * unit(features)[places]


@part
class UnifiedPrototypes(Prepare, Report, Server, Loss, Refine):
    r"""Pulls features to global prototypes of their class, and evaluates with a classifier that clients retrain.

    The loss of a row with label y is the cross-entropy of $\cos(h, p_c) / T + [c = y] \log \pi_y$ over the classes c;
    cosines with classes that the client lacks are 0. Global prototypes $p_c$ are the mean features over all rows of the
    clients that delivered in the previous round, and $\pi_c$ is the class's share of these rows. In each round a client
    reports the features of the model that it received. After training, it mixes them with the means of all clients'
    prototypes, each scaled to length 1 and weighted by its number of rows, see `mixed_features`, and trains its
    classifier on these virtual features, equally many of each class. The server averages these classifiers by number of
    rows and puts the mean into the global model for evaluation only. A class that no client delivered keeps its sums;
    before it has any, its rows add 0, and it has no virtual features.

    Attributes:
        weight: of the added loss.
        temperature: T.
        start: the first round, from 0, in which clients retrain classifiers.
        per_class: virtual features of each class.
        epochs: passes over them.
        batch_size: virtual features per step.
        learning_rate: learning rate of SGD on the classifier.
        low: the smallest share of the prototype in a virtual feature.
        high: the largest.

    References:
        RUCR (TIFS 2024), in the form of its code, github.com/liuyuxia211/RUCR, with the constants of its command for
        CIFAR-10. There the cohort reports features before it trains, and uses prototypes in the same round; here they
        are used one round later. There classifiers are retrained in the last 21 rounds, with prototypes of all clients;
        here with those of the clients that have delivered so far. For the reported features, batch normalisation uses
        the statistics of batches there, the model's here.
    """

    weight: float = 0.15
    temperature: float = 0.9
    start: int = static(0)
    per_class: int = static(100)
    epochs: int = static(50)
    batch_size: int = static(256)
    learning_rate: float = 0.01
    low: float = 0.35
    high: float = 0.95

    evaluation_only = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that no earlier part puts in another classifier for evaluation, and that one is retrained at all."""
        return not_shown_before("rucr", self), begins_within("rucr's retraining", self.start + 1)

    def check(self, context: CheckContext) -> None:
        """Rejects a model without a classifier under its usual name, and layers below it that stay with the clients."""
        classifier_shapes(context.model)
        check_kept("rucr", context, UNUSED_FEATURES, classifier=False)

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Array:
        """Draws the seed of the client's virtual features."""
        return jax.random.bits(key, dtype=jnp.uint32)

    def init_server(self, server: ServerContext) -> tuple[Unified, Retrained]:
        """Returns no prototypes, and no classifier."""
        zeros = jnp.zeros((server.federation.num_classes, num_features(server.model, server.variables)))
        unified = Unified(FeatureSums(zeros, zeros[:, 0]), zeros)
        return unified, Retrained(classifier(server.variables.params), jnp.zeros(()))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[tuple[Unified, Retrained], Unified]:
        """Sends the prototypes to every client."""
        return server.state, server.state[0]

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted loss, `Float[]`."""
        known: FeatureSums = ctx.broadcast[self.slot].features
        cosines = unit(outputs.features) @ unit(prototypes_of(known).means).T
        cosines = jnp.where(ctx.class_counts > 0, cosines, 0.0) / self.temperature
        counted = batch.real & (known.counts[batch.labels] > 0)
        shares = jnp.where(known.counts > 0, known.counts / jnp.maximum(known.counts.sum(), 1.0), 1.0)
        margins = jnp.log(shares) * jax.nn.one_hot(batch.labels, len(shares))
        losses = optax.softmax_cross_entropy_with_integer_labels(cosines + margins, batch.labels)
        return self.weight * jnp.where(counted, losses, 0.0).sum() / jnp.maximum(batch.real.sum(), 1)

    def report(self, outcome: Outcome) -> tuple[Unified, Retrained]:
        """Returns the features of the client's classes, and its retrained classifier times its number of rows."""
        ctx = outcome.ctx

        def read(batch: Batch) -> tuple[Array, Array]:
            outputs, _ = ctx.model.apply(outcome.start, batch.images, train=False)
            return outputs.features, batch.labels

        features, labels = stack_rows(read, ctx)
        real = jnp.arange(ctx.row_length) < ctx.size
        own = FeatureSums(*class_sums(features, labels, real, len(ctx.class_counts)))
        unified = Unified(own, own.counts[:, None] * unit(prototypes_of(own).means))

        known: Unified = ctx.broadcast[self.slot]
        counts = known.features.counts
        begun = ctx.round >= self.start

        def retrain() -> PyTree:
            prototypes = known.directions / jnp.maximum(counts, 1.0)[:, None]
            mix_key, order_key = jax.random.split(jax.random.key(ctx.prepared[self.slot]))
            virtual = mixed_features(mix_key, prototypes, features, ctx.size, self.per_class, self.low, self.high)
            return retrain_classifier(
                ctx.model,
                outcome.end.params,
                virtual.reshape(-1, virtual.shape[-1]),
                jnp.repeat(jnp.arange(len(counts)), self.per_class),
                order_key,
                jnp.repeat((counts > 0).astype(virtual.dtype), self.per_class),
                epochs=self.epochs,
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
            )

        # The round has no client axis, so that this stays a branch, and earlier rounds retrain nothing.
        head = lax.cond(begun, retrain, lambda: classifier(outcome.end.params))
        weight = jnp.where(begun & (counts > 0).any(), own.counts.sum(), 0.0)
        return unified, Retrained(jax.tree.map(lambda leaf: weight * leaf, head), weight)

    def update(self, key: Key, server: ServerContext) -> tuple[Unified, Retrained]:
        """Returns the new prototypes and the mean of the retrained classifiers."""
        old = server.state[0]
        new, (sums, rows) = server.aggregate.reports[self.slot]
        present = new.features.counts > 0
        kept: Unified = jax.tree.map(lambda a, b: jnp.where(present.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old)
        return kept, Retrained(jax.tree.map(lambda leaf: leaf / jnp.maximum(rows, 1.0), sums), rows)

    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """Returns the global model with the retrained classifier, if there is one."""
        mean = server.state[1]
        own = classifier(variables.params)
        head = jax.tree.map(lambda new, old: jnp.where(mean.rows > 0, new, old), mean.head, own)
        return variables._replace(params={**variables.params, "head": head})


@recipe("heads", "liu2024rucr")
def rucr(
    weight: NonNegative = 0.15,
    temperature: Positive = 0.9,
    start: CountOrZero = 0,
    per_class: Count = 100,
    epochs: Count = 50,
    batch_size: Count = 256,
    learning_rate: NonNegative = 0.01,
    low: Share = 0.35,
    high: Share = 0.95,
) -> Recipe:
    """Features near global prototypes, and a classifier that clients retrain on prototypes mixed with their features.

    Args:
        weight: weight of the loss that pulls features to prototypes, at least 0.
        temperature: divisor of cosines, above 0.
        start: the first round, from 0, in which clients retrain classifiers, which takes long; until then the global
            model is evaluated as it is. The authors retrain in the last 21 of 150 rounds.
        per_class: virtual features of each class, at least 1.
        epochs: passes over them, at least 1.
        batch_size: virtual features per step, at least 1.
        learning_rate: learning rate of SGD on the classifier, at least 0.
        low: smallest share of the prototype in a virtual feature, in [0, 1].
        high: largest share, in [low, 1].

    Example:
        >>> rucr().parts[0].slot
        'UnifiedPrototypes'
    """
    if low > high:
        raise ValueError(f"rucr: low: received {low}, must be at most high={high}: lower it, or raise high")
    part = UnifiedPrototypes(weight, temperature, start, per_class, epochs, batch_size, learning_rate, low, high)
    return Recipe("rucr", (part,))
