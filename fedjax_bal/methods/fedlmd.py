"""FedLMD: distillation preserves the received model's knowledge of the client's minority classes."""

import jax

from fedjax_bal.methods.combine import NonNegative, Positive, Recipe, recipe
from fedjax_bal.methods.distillation import distil_received
from fedjax_bal.methods.roles import Loss, part
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class LabelMaskingDistillation(Loss):
    r"""Adds $\beta$ times the divergence from the received model's probabilities among a client's minority classes.

    These are the classes with at most the mean number of rows over classes, except the row's own class. The
    probabilities of the model in training are taken among all classes except the row's own.

    Attributes:
        weight: beta.
        temperature: T.

    References:
        FedLMD (Lu et al., 2023), and the authors' code with its defaults. That code masks by subtracting 1000 from
        logits, so that it distils from all classes if none is left; here such a row adds 0.
    """

    weight: float = 1.0
    temperature: float = 1.0

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the weighted divergence, `Float[]`."""
        others = ~jax.nn.one_hot(batch.labels, outputs.logits.shape[-1], dtype=bool)
        # In integers, as a compiled mean can fall short of equal counts by a rounding error.
        minority = ctx.class_counts <= ctx.class_counts.sum() // len(ctx.class_counts)
        return self.weight * distil_received(
            outputs.logits, batch, ctx, self.temperature, taught=others & minority, learned=others
        )


@recipe("losses", "lu2023fedlmd")
def fedlmd(weight: NonNegative = 1.0, temperature: Positive = 1.0) -> Recipe:
    """Distillation from the received model on the client's minority classes.

    Args:
        weight: beta, at least 0; 0 is FedAvg.
        temperature: divisor of logits, above 0.

    Example:
        >>> fedlmd().parts
        (LabelMaskingDistillation(weight=1.0, temperature=1.0),)
    """
    return Recipe("fedlmd", (LabelMaskingDistillation(weight, temperature),))
