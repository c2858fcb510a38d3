"""LDAM: rows of rarer classes must be classified correctly by a larger margin."""

import jax
import jax.numpy as jnp

from fedjax_bal.balance import logit_calibration
from fedjax_bal.methods.balanced_softmax import Scope, counts_in
from fedjax_bal.methods.class_balanced import ClassBalancedLoss
from fedjax_bal.methods.combine import CountOrZero, NonNegative, Positive, Recipe, Share, recipe
from fedjax_bal.methods.roles import Logits, part, static
from fedjax_bal.models import with_cosine_head
from fedjax_bal.types import Array, Batch, Context, Model


@part
class LabelMargins(Logits):
    r"""Subtracts $s m_y$ from the training logit of a row's own class; the classifier computes cosines times s.

    $m_c$ is proportional to $n_c^{-1/4}$; the rarest class that is present has the largest margin.

    Attributes:
        margin: the largest margin, in units of cosines.
        scale: s.
        counts: whose $n_c$: "local", the client's, or "global", those of all clients together.

    References:
        LDAM (Cao et al., 2019), section 3.2, with the normalised classifier of its experiments. The scale is part of
        the classifier and therefore also used in evaluation. With deferred weights, the authors' code divides a batch's
        weighted losses by the sum of the weights, this package by the number of rows.
    """

    margin: float = 0.5
    scale: float = static(30.0)
    counts: Scope = static("local")

    def bind(self, model: Model) -> Model:
        """Returns the network with a cosine classifier."""
        return with_cosine_head(model, "trained", self.scale)

    def logits(self, logits: Array, batch: Batch, ctx: Context) -> Array:
        """Maps `Float[B, C]` to `Float[B, C]`."""
        counts = counts_in(ctx, self.counts)
        margins = jnp.where(counts > 0, logit_calibration(counts, 1.0), 0.0)
        margins = self.margin * margins / jnp.maximum(margins.max(), jnp.finfo(margins.dtype).tiny)
        return logits - self.scale * margins * jax.nn.one_hot(batch.labels, logits.shape[-1], dtype=logits.dtype)


@recipe("long_tail", "cao2019ldam")
def ldam(
    margin: NonNegative = 0.5,
    scale: Positive = 30.0,
    reweight_from: CountOrZero | None = None,
    beta: Share = 0.9999,
    counts: Scope = "local",
) -> Recipe:
    """Larger margins for rarer classes, on a cosine classifier, and class-balanced weights late in training.

    Args:
        margin: margin of the rarest class, at least 0.
        scale: factor on cosines, above 0.
        reweight_from: the round, from 0, from which weights apply (LDAM-DRW): in the paper after four fifths of
            training, 160 epochs of 200. None for never.
        beta: beta of the weights, see `class_balanced`.
        counts: whose samples: "local", the client's, or "global", all clients', which clients would have to disclose.

    Example:
        >>> ldam().parts
        (LabelMargins(margin=0.5, scale=30.0, counts='local'),)
        >>> [part.slot for part in ldam(reweight_from=160).parts]
        ['LabelMargins', 'ClassBalancedLoss']
    """
    margins = LabelMargins(margin, scale, counts)
    if reweight_from is None:
        return Recipe("ldam", (margins,))
    return Recipe("ldam", (margins, ClassBalancedLoss(beta, counts, reweight_from)))
