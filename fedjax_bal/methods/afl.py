"""AFL and Fed3R: before each evaluation the classifier fits all clients' rows by least squares, in closed form."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.data import over_rows
from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.heads import check_dense, with_dense_head
from fedjax_bal.methods.prototypes import num_features
from fedjax_bal.methods.roles import CheckContext, Closing, part, static
from fedjax_bal.types import Array, Batch, Key, Outcome, ServerContext, Variables


class Products(NamedTuple):
    """Sums over rows, from which the fit is computed; F counts the constant 1 of a bias.

    Attributes:
        gram: of each row's features times its features, `Float[F, F]`.
        targets: of its features times its label as a unit vector, `Float[F, C]`.
    """

    gram: Array
    targets: Array


@part
class LeastSquares(Closing):
    r"""Evaluates with the classifier that fits unit vectors of the labels best, in the sense of least squares.

    Every client computes its rows' features $f$ with the global model and reports the sums of $f f^T$ and $f y^T$, from
    which the server computes $W = (\sum f f^T + \lambda I)^{-1} \sum f y^T$. The result doesn't depend on how rows are
    divided among clients. Without a ridge, and with fewer rows than features or with a feature that is always 0, it is
    the fit of least norm. Training continues with the unchanged classifier.

    Attributes:
        ridge: $\lambda$; it also penalises the bias.
        bias: whether the fit has a bias, where the network's classifier has one; without, the bias is 0.
        unit_length: whether each class vector is divided by its length, and its bias by the same.

    References:
        AFL (He et al., 2025) and Fed3R (Fani et al., 2024), on a network with pretrained features. Here each evaluation
        shows the classifier on the features of that round: with `simulate(..., variables=...)` and a local learning
        rate of 0 it is the papers'.
    """

    ridge: float = 0.0
    bias: bool = static(False)
    unit_length: bool = static(False)

    def check(self, context: CheckContext) -> None:
        """Rejects a model that doesn't end in a dense layer, or of which layers below it stay with the clients."""
        check_dense("least squares", context)

    def closing_report(self, outcome: Outcome) -> Products:
        """Computes the sums of the client's rows."""
        ctx = outcome.ctx
        classes = ctx.federation.num_classes
        width = num_features(ctx.model, outcome.end) + self.bias

        def add(sums: Products, batch: Batch) -> Products:
            outputs, _ = ctx.model.apply(outcome.end, batch.images, train=False)
            features = outputs.features
            if self.bias:
                features = jnp.concatenate([features, jnp.ones((len(features), 1), features.dtype)], axis=1)
            features = jnp.where(batch.real[:, None], features, 0.0)
            wanted = jax.nn.one_hot(batch.labels, classes, dtype=features.dtype)
            return Products(sums.gram + features.T @ features, sums.targets + features.T @ wanted)

        return over_rows(add, Products(jnp.zeros((width, width)), jnp.zeros((width, classes))), ctx)

    def close(self, key: Key, variables: Variables, reports: Products, server: ServerContext) -> Variables:
        """Returns the global model with the fit as its classifier."""
        gram = reports.gram + self.ridge * jnp.eye(len(reports.gram))
        fit = jnp.linalg.pinv(gram, hermitian=True) @ reports.targets
        vectors = fit[:-1] if self.bias else fit
        bias = fit[-1] if self.bias else jnp.zeros(fit.shape[-1])
        if self.unit_length:
            lengths = jnp.linalg.norm(vectors, axis=0)
            lengths = jnp.where(lengths > 0, lengths, 1.0)
            vectors = vectors / lengths
            bias = bias / lengths
        return with_dense_head(variables, vectors, bias)


@recipe("heads", "he2025afl")
def afl(ridge: NonNegative = 0.0) -> Recipe:
    """FedAvg that is evaluated with the classifier that fits all clients' rows by least squares.

    Every evaluation takes a pass over all clients' rows: evaluate less often if there are many.

    Args:
        ridge: weight of the squared norm of the classifier, at least 0.

    Example:
        >>> afl().parts
        (LeastSquares(ridge=0.0, bias=False, unit_length=False),)

    References:
        He et al., 2025. There each client sends its own fit, with a ridge that makes it unique, and the server combines
        two fits at a time and removes the ridges at the end (the code's option `clean_reg`): the same result, computed
        from the same sums. Without that option the code's is the fit with a ridge of the number of clients times `rg`.
    """
    return Recipe("afl", (LeastSquares(ridge),))


@recipe("heads", "fani2024fed3r")
def fed3r(ridge: NonNegative = 0.01) -> Recipe:
    """FedAvg that is evaluated with a ridge regression over all clients' rows, whose class vectors have equal length.

    Every evaluation takes a pass over all clients' rows: evaluate less often if there are many.

    Args:
        ridge: weight of the squared norm of the classifier, at least 0.

    Example:
        >>> fed3r().parts
        (LeastSquares(ridge=0.01, bias=True, unit_length=True),)

    References:
        Fani et al., 2024, with the normalisation and the default of the authors' code. Random features (Fed3R-RF) and
        the fine-tuning that follows (Fed3R+FT) aren't included. A class that no client has gets a vector of zeros.
    """
    return Recipe("fed3r", (LeastSquares(ridge, True, True),))
