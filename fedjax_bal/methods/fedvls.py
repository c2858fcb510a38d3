"""FedVLS: distillation preserves knowledge of absent classes, and the logits of wrong classes are suppressed."""

import jax
import jax.numpy as jnp

from fedjax_bal.balance import smoothed_prior
from fedjax_bal.methods.balanced_softmax import PriorCalibration
from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.distillation import distil_received
from fedjax_bal.methods.lade import log_mean_exp, without_prior
from fedjax_bal.methods.roles import Loss, part
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class VacantClassDistillation(Loss):
    r"""Adds $\lambda$ times the divergence from the received model's probabilities among classes that a client lacks.

    Attributes:
        weight: lambda.
        temperature: T, with the usual factor $T^2$.

    References:
        FedVLS (Guo et al., 2025), vacant-class distillation, at T = 1.
    """

    weight: float = 0.1
    temperature: float = 1.0

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted divergence, `Float[]`; 0 for a client with all classes."""
        absent = jnp.broadcast_to(ctx.class_counts == 0, outputs.logits.shape)
        return self.weight * distil_received(
            outputs.logits, batch, ctx, self.temperature, taught=absent, learned=absent
        )


@part
class LogitSuppression(Loss):
    r"""Adds $\beta \sum_c p_c \log \frac{1}{B} \sum_j e^{s_{jc}}$, for the client's prior p.

    $s_{jc}$ is $z_{jc} - \log p_c + \log \frac{1}{C}$, and 0 where c is the label of row j.

    Attributes:
        weight: beta.

    References:
        FedVLS (Guo et al., 2025), logit suppression, in the form and with the weight of the authors' code.
    """

    weight: float = 0.005

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted loss, `Float[]`."""
        prior = smoothed_prior(ctx.class_counts, 0.0)
        own = jax.nn.one_hot(batch.labels, prior.shape[-1], dtype=bool)
        spread = jnp.where(own, 0.0, without_prior(outputs.logits, prior))
        return jnp.where(batch.real.any(), self.weight * (prior * log_mean_exp(spread, batch.real)).sum(), 0.0)


@recipe("losses", "guo2025fedvls")
def fedvls(weight: NonNegative = 0.1, suppression: NonNegative = 0.005) -> Recipe:
    """Balanced softmax with distillation on the classes that a client lacks, and suppression of wrong classes' logits.

    Args:
        weight: lambda, weight of the distillation, at least 0; the authors use 0.1 for ten classes, 0.5 for a hundred.
        suppression: beta, weight of the logit suppression, at least 0.

    Example:
        >>> [part.slot for part in fedvls().parts]
        ['PriorCalibration', 'VacantClassDistillation', 'LogitSuppression']

    References:
        Guo et al., 2025, and the authors' code, whose balanced softmax adds 1e-9 to the prior; here absent classes are
        excluded exactly.
    """
    return Recipe("fedvls", (PriorCalibration(0.0), VacantClassDistillation(weight), LogitSuppression(suppression)))
