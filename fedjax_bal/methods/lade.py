"""LADE: a regulariser disentangles logits from the class prior of the training rows."""

import jax
import jax.numpy as jnp

from fedjax_bal.balance import smoothed_prior
from fedjax_bal.methods.balanced_softmax import PriorCalibration, Scope, counts_in
from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.roles import Loss, part, static
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree

_SMALLEST = 1e-9  # added to a prior under a logarithm


def without_prior(logits: Array, prior: Array) -> Array:
    r"""Returns $z_c - \log p_c + \log \frac{1}{C}$, `Float[B, C]`: the logits for balanced classes."""
    return logits - jnp.log(prior + _SMALLEST) + jnp.log(1.0 / prior.shape[-1] + _SMALLEST)


def log_mean_exp(values: Array, real: Array) -> Array:
    """Returns the log of the mean exponential over real rows, `Float[C]`; over all rows if none is real."""
    counted = real | ~real.any()
    total = jax.nn.logsumexp(jnp.where(counted[:, None], values, -jnp.inf), axis=0)
    return total - jnp.log(counted.sum())


@part
class Disentangling(Loss):
    r"""Adds $\alpha \sum_c p_c (G_c - \bar z_c + \lambda G_c^2)$, for the prior p of the training rows.

    $\bar z_c$ is the mean logit of class c over the batch's rows of that class, 0 if there are none. $G_c$ is the log
    of the mean of $e^{z_c} / (C p_c)$ over all rows, i.e. for the logits of balanced classes.

    Attributes:
        weight: alpha.
        regularisation: lambda.
        counts: whose prior: "local", the client's, or "global", that of all clients' rows together.

    References:
        LADE (Hong et al., 2021), the LADER loss, and the authors' code. The defaults are the code's for CIFAR-100 and a
        balanced test set: its configuration has lambda 0.1, the command in its README 0.01.
    """

    weight: float = 0.1
    regularisation: float = 0.1
    counts: Scope = static("local")

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted loss, `Float[]`."""
        prior = smoothed_prior(counts_in(ctx, self.counts), 0.0)
        own = jax.nn.one_hot(batch.labels, prior.shape[-1]) * batch.real[:, None]
        means = (own * outputs.logits).sum(0) / jnp.maximum(own.sum(0), 1.0)
        spread = log_mean_exp(without_prior(outputs.logits, prior), batch.real)
        terms = prior * (spread - means + self.regularisation * spread**2)
        return jnp.where(batch.real.any(), self.weight * terms.sum(), 0.0)


@recipe("long_tail", "hong2021lade")
def lade(weight: NonNegative = 0.1, regularisation: NonNegative = 0.1, counts: Scope = "local") -> Recipe:
    """Balanced softmax with a term that disentangles logits from the class prior of the training rows.

    Args:
        weight: alpha, weight of this term, at least 0; 0 is balanced softmax.
        regularisation: lambda, weight of the squares in this term, at least 0.
        counts: whose prior: "local", the client's, or "global", that of all clients' rows, which clients would have to
            disclose.

    Example:
        >>> [part.slot for part in lade().parts]
        ['PriorCalibration', 'Disentangling']
    """
    return Recipe("lade", (PriorCalibration(0.0, 1.0, counts), Disentangling(weight, regularisation, counts)))
