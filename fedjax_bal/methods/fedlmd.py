"""FedLMD: keep what the received model knows of classes that a client has little of."""

import jax

from fedjax_bal.methods.combine import NonNegative, Positive, Recipe, recipe
from fedjax_bal.methods.distillation import distil_received
from fedjax_bal.methods.part import part
from fedjax_bal.methods.roles import Loss
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class LabelMaskingDistillation(Loss):
    r"""Adds $\beta$ times the divergence from the received model's probabilities among a client's minority classes.

    These are the classes with no more rows than the mean over classes, without the row's own. The model in training is
    compared by its probabilities among all classes but the row's own.

    Attributes:
        weight: beta.
        temperature: T.

    References:
        FedLMD (Lu et al., 2023), and the authors' code, which masks by taking 1000 off logits: where no class is left,
        it distils from all of them; here such a row adds nothing. The defaults are those of the authors' code.
    """

    weight: float = 1.0
    temperature: float = 1.0

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """The weighted divergence, `Float[]`."""
        others = ~jax.nn.one_hot(batch.labels, outputs.logits.shape[-1], dtype=bool)
        minority = ctx.class_counts <= ctx.class_counts.mean()
        return self.weight * distil_received(
            outputs.logits, batch, ctx, self.temperature, taught=others & minority, learned=others
        )


@recipe("losses", "lu2023fedlmd")
def fedlmd(weight: NonNegative = 1.0, temperature: Positive = 1.0) -> Recipe:
    """Distillation from the received model on the classes that a client has little of.

    Args:
        weight: beta, at least 0; 0 is FedAvg.
        temperature: what logits are divided by, above 0.

    Example:
        >>> fedlmd().parts
        (LabelMaskingDistillation(weight=1.0, temperature=1.0),)
    """
    return Recipe("fedlmd", (LabelMaskingDistillation(weight, temperature),))
