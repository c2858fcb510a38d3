"""FedPAC: features are aligned with shared prototypes, and every client gets its own mixture of all classifiers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.balance import class_sums
from fedjax_bal.data import over_rows
from fedjax_bal.methods.combine import NonNegative, Positive, Recipe, Share, recipe
from fedjax_bal.methods.fedproto import PrototypeDistance
from fedjax_bal.methods.fedrep import HeadThenBody
from fedjax_bal.methods.heads import classifier_shapes
from fedjax_bal.methods.prototypes import num_features
from fedjax_bal.methods.roles import CheckContext, Personal, Prepare, Report, Update, part
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, PyTree, ServerContext, Variables


class FeatureStatistics(NamedTuple):
    """A client's features, as the server needs them to mix classifiers.

    Attributes:
        variance: of the estimate of `means`, summed over all entries, `Float[]`.
        means: mean features by class, times the share of the class, `Float[C, F]`.
    """

    variance: Array
    means: Array


@part
class MixedHeads(Personal, Prepare, Report, Update):
    r"""Keeps the classifier with the client, and replaces it at the end of the round by a mixture of the cohort's.

    Client i gets $\sum_j a_j \phi_j$, where $\phi_j$ is client j's trained classifier and the weights a, nonnegative
    with the sum 1, minimise $\sum_j a_j^2 V_j + \| \sum_j a_j (h_i - h_j) \|^2$: the variance and the bias of an
    estimate of client i's $h_i$ from the cohort's rows. Here $h_{jc}$ is the mean feature of class c times its share of
    client j's $n_j$ rows, and $V_j = (\frac{1}{n_j} \sum_x \|f(x)\|^2 - \|h_j\|^2) / n_j$. Features are those of the
    received model, before local training. A client that doesn't deliver keeps its classifier.

    Attributes:
        head_factor: factor on the classifier's updates, and so on its learning rate.

    References:
        FedPAC (Xu et al., 2023), Algorithm 1, and the authors' code sets weights below 0.001 to 0 and scales the others
        up, drops eigenvalues below 0.01 if rounding has made one of the quadratic form negative, and leaves the problem
        to a solver; here an active set is followed to the exact solution.
    """

    head_factor: float = 1.0

    by_client = True

    def check(self, context: CheckContext) -> None:
        """Rejects a model without a classifier of that name."""
        classifier_shapes(context.model)

    def personal(self, params: PyTree) -> PyTree:
        """Selects the classifier."""
        return {name: name == "head" for name in params}

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> FeatureStatistics:
        """Computes the statistics of the received model's features."""
        classes = ctx.federation.num_classes

        def add(sums: FeatureStatistics, batch: Batch) -> FeatureStatistics:
            features = ctx.model.apply(variables, batch.images, train=False)[0].features
            squares = jnp.where(batch.real, (features**2).sum(-1), 0.0).sum()
            of_classes = class_sums(features, batch.labels, batch.real, classes)[0]
            return FeatureStatistics(sums.variance + squares, sums.means + of_classes)

        zeros = jnp.zeros((classes, num_features(ctx.model, variables)))
        sums = over_rows(add, FeatureStatistics(jnp.zeros(()), zeros), ctx)
        size = jnp.maximum(ctx.size, 1)
        means = sums.means / size
        return FeatureStatistics((sums.variance / size - (means**2).sum()) / size, means)

    def report(self, outcome: Outcome) -> FeatureStatistics:
        """Returns the statistics."""
        return outcome.ctx.prepared[self.slot]

    def updates(self, updates: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Scales the classifier's."""
        return {**updates, "head": jax.tree.map(lambda leaf: self.head_factor * leaf, updates["head"])}

    def exchange(self, models: Variables, server: ServerContext) -> Variables:
        """Returns the models with mixed classifiers."""
        counted = server.cohort.local_steps > 0
        weights = mixture_weights(server.aggregate.reports[self.slot], counted)

        def mixed(leaf: Array) -> Array:
            on = counted.reshape(-1, *[1] * (leaf.ndim - 2))
            each = jnp.where(on, leaf.reshape(-1, *leaf.shape[2:]), 0.0)
            return jnp.tensordot(weights, each, 1).reshape(leaf.shape).astype(leaf.dtype)

        head = jax.tree.map(mixed, models.params["head"])
        return models._replace(params={**models.params, "head": head})


def mixture_weights(reports: FeatureStatistics, counted: Array) -> Array:
    """Returns the weights by which each client mixes the cohort's classifiers, `Float[M, M]`, a row for each client.

    Leaves of the reports are `[G, L, ...]`, and M = G L; `counted`, `Bool[G, L]`, marks the clients that deliver.
    """
    counted = counted.reshape(-1)
    variances = jnp.where(counted, reports.variance.reshape(-1), 0.0)
    means = reports.means.reshape(len(counted), -1)

    def of_client(own: Array) -> Array:
        apart = own - means
        return smallest_on_simplex(jnp.diag(variances) + apart @ apart.T, counted)

    return lax.map(of_client, means)


def smallest_on_simplex(matrix: Array, counted: Array) -> Array:
    r"""Minimises $a^T Q a$ over nonnegative a with the sum 1.

    By homogeneity a is b divided by its sum, where $b \geq 0$, $Q b \geq 1$, and one of the two holds with equality for
    each entry. Principal pivoting finds b: as long as an entry's condition fails, the first such entry changes sides.
    For a positive definite Q that ends (Murty, 1974). A zero on the diagonal, which gets all of the weight, counts as a
    very small number.

    Args:
        matrix: Q, `Float[M, M]`, positive semidefinite.
        counted: the entries that may be positive, `Bool[M]`, at least one.

    Returns:
        a, `Float[M]`.

    Example:
        >>> smallest_on_simplex(jnp.diag(jnp.array([1.0, 3.0, 1.0])), jnp.array([True, True, False])).round(4).tolist()
        [0.75, 0.25, 0.0]
    """
    epsilon = jnp.finfo(matrix.dtype).eps
    allowed = -jnp.sqrt(epsilon)
    largest = jnp.where(counted, matrix.diagonal(), 0.0).max()
    scaled = matrix / jnp.where(largest > 0, largest, 1.0)
    # Entries that don't count get a row of their own, in which nothing has to change.
    start = jnp.where(counted[:, None] & counted, scaled, 0.0) + jnp.diag(jnp.where(counted, 0.0, 1.0))

    def pivot(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        number, table, values, positive = carry
        chosen = jnp.argmax(values < allowed)
        at = jnp.arange(len(values)) == chosen
        # Solves the chosen equation for its other variable, and puts the solution into all equations.
        column = table[:, chosen]
        divisor = jnp.maximum(column[chosen], epsilon**2)
        row = table[chosen] / divisor
        value = values[chosen] / divisor
        values = jnp.where(at, -value, values - column * value)
        table = jnp.where(at[:, None], -row, table - column[:, None] * row)
        table = jnp.where(at, (jnp.where(at, 1.0, column) / divisor)[:, None], table)
        return number + 1, table, values, positive ^ at

    # With rounding, an entry whose two conditions nearly hold could change sides forever.
    unsolved = lambda carry: (carry[2] < allowed).any() & (carry[0] < 50 * len(matrix))
    begin = (jnp.zeros((), jnp.int32), start, jnp.where(counted, -1.0, 0.0), jnp.zeros_like(counted))
    _, _, values, positive = lax.while_loop(unsolved, pivot, begin)
    found = jnp.where(positive, jnp.maximum(values, 0.0), 0.0)
    return found / jnp.maximum(found.sum(), jnp.finfo(matrix.dtype).tiny)


@recipe("personal", "xu2023fedpac")
def fedpac(weight: NonNegative = 1.0, head_share: Share = 0.5, head_factor: Positive = 1.0) -> Recipe:
    """FedRep with aligned features, whose clients mix their classifiers with those of clients with similar features.

    Without the mixture it is `fedrep` and `fedproto`. The server solves a problem for each client of a cohort, in time
    that grows with the fourth power of the cohort's size.

    Args:
        weight: lambda, the weight of the squared distance of features to the prototype of their class, at least 0.
        head_share: share of a client's local steps for the classifier, in [0, 1]. The authors' 1 epoch for the
            classifier and 5 for the body correspond to 1 / 6, with 6 local epochs.
        head_factor: factor on the classifier's learning rate, above 0. The authors' 0.1, and 0.01 for the body,
            correspond to 10.

    Example:
        >>> [part.slot for part in fedpac().parts]
        ['HeadThenBody', 'PrototypeDistance', 'MixedHeads']

    References:
        Xu et al., 2023, Algorithm 1. Prototypes are those of `fedproto`: rows of a class that no client of the last
        round has aren't aligned, where the authors' code fails, and clients compute prototypes in evaluation mode.
    """
    return Recipe("fedpac", (HeadThenBody(head_share), PrototypeDistance(weight), MixedHeads(head_factor)))
