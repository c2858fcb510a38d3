"""BalanceFL: balanced sampling, distillation on absent classes, and a penalty on overconfident predictions."""

import jax
import jax.numpy as jnp

from fedjax_bal.methods.balanced_softmax import PriorCalibration
from fedjax_bal.methods.combine import NonNegative, Positive, Recipe, recipe
from fedjax_bal.methods.fedvls import VacantClassDistillation
from fedjax_bal.methods.iwds import DecayedResampling
from fedjax_bal.methods.roles import Loss, part
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class PredictionEntropy(Loss):
    r"""Subtracts from the loss $\gamma$ times the entropy of the probabilities among the client's own classes.

    The entropy is summed over the rows of a batch, not averaged.

    Attributes:
        weight: gamma.

    References:
        BalanceFL (Shuai et al., 2022), smooth regularisation, in the form and with the weight of the authors' code.
    """

    weight: float = 0.002

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the negative weighted entropy, `Float[]`."""
        present = ctx.class_counts > 0
        own = jnp.broadcast_to(present | ~present.any(), outputs.logits.shape)  # all classes, for a client without rows
        terms = jax.nn.softmax(outputs.logits, where=own) * jax.nn.log_softmax(outputs.logits, where=own)
        return self.weight * jnp.where(own & batch.real[:, None], terms, 0.0).sum()


@recipe("losses", "shuai2022balancefl")
def balancefl(weight: NonNegative = 1.0, temperature: Positive = 2.0, smoothing: NonNegative = 0.002) -> Recipe:
    """Class-balanced draws, a loss over the client's own classes, and distillation on the classes that it lacks.

    Args:
        weight: lambda, weight of the distillation, without the usual factor of the squared temperature; at least 0.
        temperature: temperature of the distillation, above 0.
        smoothing: weight of the entropy of predictions, summed over a batch, at least 0.

    Example:
        >>> [part.slot for part in balancefl().parts]
        ['DecayedResampling', 'PriorCalibration', 'VacantClassDistillation', 'PredictionEntropy']

    References:
        Shuai et al., 2022, without its noise on the features of rare classes. The defaults are those of the authors'
        code. That code uses the classes of each batch in place of the client's, and a teacher in training mode; here it
        is in evaluation mode.
    """
    drawn = DecayedResampling(1.0, schedule="fixed")  # with weight 1 / (number of samples of the class)
    kept = VacantClassDistillation(weight / temperature**2, temperature)
    parts = (drawn, PriorCalibration(0.0, 0.0), kept, PredictionEntropy(smoothing))
    return Recipe("balancefl", parts, drawing="replacement")
