"""BalanceFL: predictions among a client's own classes are kept from becoming too sure."""

import jax
import jax.numpy as jnp

from fedjax_bal.methods.balanced_softmax import PriorCalibration
from fedjax_bal.methods.combine import NonNegative, Positive, Recipe, recipe
from fedjax_bal.methods.fedvls import VacantClassDistillation
from fedjax_bal.methods.iwds import DecayedResampling
from fedjax_bal.methods.part import part
from fedjax_bal.methods.roles import Loss
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class PredictionEntropy(Loss):
    r"""Takes $\gamma$ times the entropy of the probabilities among a client's own classes off the loss.

    It is the sum over the rows of a batch, not their mean.

    Attributes:
        weight: gamma.

    References:
        BalanceFL (Shuai et al., 2022), smooth regularisation, in the form and with the weight of the authors' code.
    """

    weight: float = 0.002

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """The negative weighted entropy, `Float[]`."""
        present = ctx.class_counts > 0
        own = jnp.broadcast_to(present | ~present.any(), outputs.logits.shape)  # all classes, for a client without rows
        terms = jax.nn.softmax(outputs.logits, where=own) * jax.nn.log_softmax(outputs.logits, where=own)
        return self.weight * jnp.where(own & batch.real[:, None], terms, 0.0).sum()


@recipe("losses", "shuai2022balancefl")
def balancefl(weight: NonNegative = 1.0, temperature: Positive = 2.0, smoothing: NonNegative = 0.002) -> Recipe:
    """Classes drawn alike, a loss among those that a client has, and distillation on those that it lacks.

    Args:
        weight: lambda, of the distillation, without the usual factor of the squared temperature; at least 0.
        temperature: of the distillation, above 0.
        smoothing: weight of the entropy of predictions, summed over a batch, at least 0.

    Example:
        >>> [part.slot for part in balancefl().parts]
        ['DecayedResampling', 'PriorCalibration', 'VacantClassDistillation', 'PredictionEntropy']

    References:
        Shuai et al., 2022, without its noise on the features of rare classes. The defaults are those of the authors'
        code, which takes the classes of each batch for those of the client, and whose teacher is in training mode; here
        it is in evaluation mode.
    """
    drawn = DecayedResampling(1.0, schedule="fixed")  # by one over the number of the class's samples
    kept = VacantClassDistillation(weight / temperature**2, temperature)
    parts = (drawn, PriorCalibration(0.0, 0.0), kept, PredictionEntropy(smoothing))
    return Recipe("balancefl", parts, drawing="replacement")
