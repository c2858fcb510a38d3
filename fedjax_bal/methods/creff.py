"""CReFF: the server learns balanced features from clients' gradients and retrains the classifier on them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.data import over_rows
from fedjax_bal.methods.combine import Count, CountOrZero, NonNegative, Recipe, recipe
from fedjax_bal.methods.heads import (
    UNUSED_FEATURES,
    check_kept,
    classifier,
    classifier_shapes,
    retrain_classifier,
)
from fedjax_bal.methods.needs import not_shown_before
from fedjax_bal.methods.prototypes import num_features
from fedjax_bal.methods.roles import CheckContext, Need, Refine, Report, Server, part, static
from fedjax_bal.types import Array, Batch, Key, Model, Outcome, PyTree, ServerContext, Variables


class FederatedFeatures(NamedTuple):
    """The server's state in CReFF.

    Attributes:
        features: `Float[C, M, F]`, M for each class.
        head: the classifier trained on these features.
    """

    features: Array
    head: PyTree


class ClassGradients(NamedTuple):
    """Gradients of the classifier by class, which are summed over clients.

    Attributes:
        gradients: like the classifier, with a first axis of C classes; zeros for a class that a client lacks.
        clients: the number of clients that have the class, `Float[C]`.
    """

    gradients: PyTree
    clients: Array


@part
class FeatureMatching(Server, Report, Refine):
    r"""Learns features whose gradients match the clients', and evaluates with a classifier trained on these features.

    A client computes the classifier's mean gradient $g_c^k$ over its rows of each class c, with the received model and
    the last retrained classifier in place of the model's own. The server averages these gradients over the clients that
    have the class, and moves its features of the class by gradient descent on $\sum_c D(\hat g_c, g_c)$. $\hat g_c$ is
    the gradient on the features. D is the sum of $1 - \cos$ over the rows of the weights, one for each output; the
    biases count as one row. Then a classifier with new random weights is trained on the features of all classes that
    any client has. It is sent to the clients of the next round, and replaces the global classifier in evaluation. The
    global model itself is FedAvg's.

    Attributes:
        per_class: M, features of each class.
        match_steps: steps on the features in a round.
        match_rate: learning rate of these steps.
        epochs: passes over the features, for the classifier.
        batch_size: features per step of the classifier.
        learning_rate: learning rate of the classifier's SGD.

    References:
        CReFF (Shang et al., 2022), eq. 5 to 8, Algorithm 1, with the constants of the authors' code. The code estimates
        $g_c^k$ from ten draws of 32 augmented images; the paper and this part use all rows. The clients' first
        retrained classifier is the initial model's; in the code it is another random one.
    """

    per_class: int = static(100)
    match_steps: int = static(100)
    match_rate: float = 0.1
    epochs: int = static(300)
    batch_size: int = static(32)
    learning_rate: float = 0.01

    evaluation_only = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that no earlier part puts in another classifier for evaluation."""
        return (not_shown_before("creff", self),)

    def check(self, context: CheckContext) -> None:
        """Rejects a model without a classifier under its usual name, and layers below it that stay with the clients."""
        classifier_shapes(context.model)
        check_kept("creff", context, UNUSED_FEATURES, classifier=False)

    def init_server(self, server: ServerContext) -> FederatedFeatures:
        """Returns random features and the initial classifier."""
        shape = (server.federation.num_classes, self.per_class, num_features(server.model, server.variables))
        return FederatedFeatures(jax.random.normal(server.key, shape), classifier(server.variables.params))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[FederatedFeatures, PyTree]:
        """Sends the retrained classifier to every client."""
        return server.state, server.state.head

    def report(self, outcome: Outcome) -> ClassGradients:
        """Returns the client's mean gradient for each of its classes."""
        ctx = outcome.ctx
        params = {**outcome.start.params, "head": outcome.ctx.broadcast[self.slot]}
        counts = ctx.class_counts.astype(float)

        def add(sums: PyTree, batch: Batch) -> PyTree:
            outputs, _ = ctx.model.apply(outcome.start, batch.images, train=False)
            own = class_gradients(ctx.model, params, outputs.features, batch.labels, batch.real, len(counts))
            return jax.tree.map(jnp.add, sums, own)

        zeros = jax.tree.map(lambda leaf: jnp.zeros((len(counts), *leaf.shape), leaf.dtype), params["head"])
        sums = over_rows(add, zeros, ctx)
        return ClassGradients(_over(sums, counts), (counts > 0).astype(float))

    def update(self, key: Key, server: ServerContext) -> FederatedFeatures:
        """Moves the features so that their gradients match the reported ones, and trains a classifier on them."""
        old = server.state
        sums, clients = server.aggregate.reports[self.slot]
        params = {**server.variables.params, "head": old.head}
        features = matched_features(
            server.model, params, old.features, _over(sums, clients), clients > 0, self.match_steps, self.match_rate
        )
        held = jnp.asarray(server.federation.class_counts).any(0)
        begin, order = jax.random.split(key)
        fresh = {**params, "head": classifier(server.model.init(begin).params)}
        head = retrain_classifier(
            server.model,
            fresh,
            features.reshape(-1, features.shape[-1]),
            jnp.repeat(jnp.arange(len(features)), self.per_class),
            order,
            # Features of a class that no client has stay random forever, so that they teach nothing.
            jnp.repeat(held.astype(features.dtype), self.per_class),
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
        )
        return FederatedFeatures(features, head)

    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """Returns the global model with the retrained classifier."""
        return variables._replace(params={**variables.params, "head": server.state.head})


def class_gradients(model: Model, params: PyTree, features: Array, labels: Array, real: Array, classes: int) -> PyTree:
    """Returns the classifier's gradient of the summed cross-entropy of each class's real rows, leaves `[C, ...]`."""
    own = jax.nn.one_hot(labels, classes) * real[:, None]

    def losses(head: PyTree) -> Array:
        logits = model.head({**params, "head": head}, features)
        return own.T @ optax.softmax_cross_entropy_with_integer_labels(logits, labels)

    return jax.jacrev(losses)(params["head"])


def matched_features(
    model: Model, params: PyTree, features: Array, wanted: PyTree, present: Array, steps: int, rate: Array | float
) -> Array:
    """Returns features `Float[C, M, F]` after gradient descent towards the wanted gradients of the present classes."""

    def distance(features: Array) -> Array:
        def one(features: Array, label: Array, wanted: PyTree) -> Array:
            def loss(head: PyTree) -> Array:
                logits = model.head({**params, "head": head}, features)
                return -jax.nn.log_softmax(logits)[:, label].mean()

            return gradient_distance(jax.grad(loss)(params["head"]), wanted)

        return jnp.where(present, jax.vmap(one)(features, jnp.arange(len(present)), wanted), 0.0).sum()

    return lax.fori_loop(0, steps, lambda _, own: own - rate * jax.grad(distance)(own), features)


def gradient_distance(found: PyTree, wanted: PyTree) -> Array:
    """Returns the sum of 1 - cos over the rows of all leaves, `Float[]`; weights `[..., out]` have a row per output."""

    def one(a: Array, b: Array) -> Array:
        a, b = (x.reshape(-1, x.shape[-1] if x.ndim > 1 else 1) for x in (a, b))
        norm = lambda x: jnp.sqrt(jnp.maximum((x * x).sum(0), 1e-24))  # with a finite gradient at 0
        return (1.0 - (a * b).sum(0) / (norm(a) * norm(b) + 1e-6)).sum()

    return sum(jax.tree.leaves(jax.tree.map(one, found, wanted)), jnp.zeros(()))


def _over(sums: PyTree, counts: Array) -> PyTree:
    """Returns means by class, from leaves `[C, ...]`."""
    share = 1.0 / jnp.maximum(counts, 1.0)
    return jax.tree.map(lambda leaf: leaf * share.reshape(-1, *[1] * (leaf.ndim - 1)), sums)


@recipe("heads", "shang2022creff")
def creff(
    per_class: Count = 100,
    match_steps: CountOrZero = 100,
    match_rate: NonNegative = 0.1,
    epochs: Count = 300,
    batch_size: Count = 32,
    learning_rate: NonNegative = 0.01,
) -> Recipe:
    """FedAvg evaluated with a classifier that the server trains on features learned from clients' gradients.

    Args:
        per_class: features of each class, at least 1.
        match_steps: steps on the features in a round.
        match_rate: learning rate of these steps, at least 0.
        epochs: passes over the features for the classifier, at least 1.
        batch_size: features per step, at least 1.
        learning_rate: learning rate of SGD on the classifier, at least 0.

    Example:
        >>> creff().parts[0].slot
        'FeatureMatching'
    """
    return Recipe("creff", (FeatureMatching(per_class, match_steps, match_rate, epochs, batch_size, learning_rate),))
