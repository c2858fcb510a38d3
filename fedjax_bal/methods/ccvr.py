"""CCVR: before each evaluation the classifier is calibrated on features drawn from all clients' class statistics."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.data import over_rows
from fedjax_bal.methods.combine import Count, NonNegative, Recipe, recipe
from fedjax_bal.methods.heads import UNUSED_FEATURES, check_kept, classifier_shapes, retrain_classifier
from fedjax_bal.methods.roles import CheckContext, Closing, part, static
from fedjax_bal.types import Array, Batch, Key, Outcome, ServerContext, Variables


class Moments(NamedTuple):
    """Sums of features by class, which are added up over clients.

    Attributes:
        counts: `Float[C]`.
        sums: `Float[C, F]`.
        products: `Float[C, F, F]`, of outer products.
    """

    counts: Array
    sums: Array
    products: Array


def class_moments(features: Array, labels: Array, real: Array, classes: int) -> Moments:
    """Computes the moments of a batch of features, `Float[B, F]`; padded rows (not `real`) are ignored."""
    own = jax.nn.one_hot(labels, classes) * real[:, None]
    return Moments(own.sum(0), own.T @ features, jnp.einsum("bc,bf,bg->cfg", own, features, features))


def class_gaussians(moments: Moments) -> tuple[Array, Array]:
    """Returns means `Float[C, F]` and unbiased covariances `Float[C, F, F]`; zeros for a class without rows."""
    counts = moments.counts[:, None]
    means = moments.sums / jnp.maximum(counts, 1.0)
    products = moments.products - counts[..., None] * means[:, :, None] * means[:, None, :]
    return means, products / jnp.maximum(counts - 1.0, 1.0)[..., None]


def draw_gaussians(key: Key, means: Array, covariances: Array, per_class: int) -> Array:
    """Draws features from each class's Gaussian, `Float[C, per_class, F]`; covariances may be singular."""
    noise = jax.random.normal(key, (len(means), per_class, means.shape[-1]), means.dtype)
    return means[:, None] + jnp.einsum("cmk,cfk->cmf", noise, roots(covariances))


def roots(covariances: Array) -> Array:
    """Computes lower triangular L with L L^T = covariances, `Float[C, F, F]`; a column without variance is zero.

    It works column by column instead of calling `jnp.linalg`: on several CPU devices jaxlib's batched LAPACK calls
    occupy all threads, then deadlock waiting for one.
    """
    covariances = jnp.asarray(covariances)
    places = jnp.arange(covariances.shape[-1])
    least = 1e-6 * jnp.einsum("cff->cf", covariances).max(-1)

    def with_column(column: Array, lower: Array) -> Array:
        rest = covariances[:, :, column] - jnp.einsum("cfk,ck->cf", lower, lower[:, column])
        pivot = rest[:, column, None]
        own = jnp.where((places >= column) & (pivot > least[:, None]), rest / jnp.sqrt(jnp.maximum(pivot, 1e-30)), 0.0)
        return lower.at[:, :, column].set(own)

    return jax.lax.fori_loop(0, len(places), with_column, jnp.zeros_like(covariances))


@part
class VirtualRepresentations(Closing):
    r"""Trains the classifier on features drawn from a Gaussian of each class, for evaluation only.

    Every client computes its rows' features with the global model and reports, by class, their number, sum and sum of
    outer products. These give the mean and the unbiased covariance over all clients,
    $\mu_c = \frac{1}{N_c} \sum_k N_{c,k} \mu_{c,k}$ and
    $\Sigma_c = \sum_k \frac{N_{c,k} - 1}{N_c - 1} \Sigma_{c,k} + \sum_k \frac{N_{c,k}}{N_c - 1} \mu_{c,k}
    \mu_{c,k}^\top - \frac{N_c}{N_c - 1} \mu_c \mu_c^\top$. The same number of features is drawn from
    $N(\mu_c, \Sigma_c)$ for each class that any client has, and the classifier is trained on them with SGD, starting
    from its parameters. Each evaluation draws new features, even if the model is unchanged since the last one, and all
    clients' reports count as traffic.

    Attributes:
        per_class: features drawn of each class.
        epochs: passes over these features.
        batch_size: features per step.
        learning_rate: SGD's learning rate.

    References:
        CCVR (Luo et al., 2021), eq. 3 and 4, Algorithm 1. The authors' code is not public: 200 features of each class
        and one epoch are FL-bench's. Clients send sums, which give the same mean and covariance. The paper calibrates
        once, after training; here each evaluation shows the calibrated model.
    """

    per_class: int = static(200)
    epochs: int = static(1)
    batch_size: int = static(50)
    learning_rate: float = 0.01

    def check(self, context: CheckContext) -> None:
        """Rejects a model without a classifier under its usual name, and layers below it that stay with the clients."""
        classifier_shapes(context.model)
        check_kept("ccvr", context, UNUSED_FEATURES, classifier=False)

    def closing_report(self, outcome: Outcome) -> Moments:
        """Computes the moments of the client's features."""
        model = outcome.ctx.model
        classes = outcome.ctx.class_counts.shape[-1]

        def moments(batch: Batch) -> Moments:
            outputs, _ = model.apply(outcome.end, batch.images, train=False)
            return class_moments(outputs.features, batch.labels, batch.real, classes)

        image = jnp.zeros((1, *model.input_shape), model.input_dtype)
        row = Batch(image, jnp.zeros(1, int), jnp.zeros(1, int), jnp.zeros(1, bool))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(moments, row))
        return over_rows(lambda sums, batch: jax.tree.map(jnp.add, sums, moments(batch)), zeros, outcome.ctx)

    def close(self, key: Key, variables: Variables, reports: Moments, server: ServerContext) -> Variables:
        """Returns the global model with the calibrated classifier."""
        draw, order = jax.random.split(key)
        features = draw_gaussians(draw, *class_gaussians(reports), self.per_class)
        by_row = lambda of_class: jnp.repeat(of_class, self.per_class)
        head = retrain_classifier(
            server.model,
            variables.params,
            features.reshape(-1, features.shape[-1]),
            by_row(jnp.arange(len(features))),
            order,
            by_row((reports.counts > 0).astype(features.dtype)),
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
        )
        return variables._replace(params={**variables.params, "head": head})


@recipe("heads", "luo2021ccvr")
def ccvr(
    per_class: Count = 200, epochs: Count = 1, batch_size: Count = 50, learning_rate: NonNegative = 0.01
) -> Recipe:
    """FedAvg whose classifier is calibrated, before each evaluation, on features drawn by class.

    Every evaluation takes a pass over all clients' rows: evaluate less often if there are many.

    Args:
        per_class: features drawn of each class, at least 1.
        epochs: passes over these features, at least 1.
        batch_size: features per step, at least 1.
        learning_rate: learning rate of SGD on the classifier, at least 0; 0 is FedAvg.

    Example:
        >>> ccvr().parts
        (VirtualRepresentations(per_class=200, epochs=1, batch_size=50, learning_rate=0.01),)
    """
    return Recipe("ccvr", (VirtualRepresentations(per_class, epochs, batch_size, learning_rate),))
