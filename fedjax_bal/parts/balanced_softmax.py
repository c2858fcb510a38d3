"""Balanced softmax, plain and relaxed: train against the client's own class distribution."""

from fedjax_bal.balance import prior_calibrated_logits, smoothed_prior
from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Logits
from fedjax_bal.types import Array, Batch, Context


@part
class PriorCalibration(Logits):
    """Adds the log of the client's smoothed class prior to the training logits.

    Attributes:
        epsilon: share of the uniform prior; 0 is balanced softmax (absent classes excluded exactly), 1 plain
            cross-entropy.

    References:
        ReBaFL (Xu et al., 2023), eq. 9 and 10; balanced softmax (Ren et al., 2020), eq. 4.
    """

    epsilon: float = 0.0

    def logits(self, logits: Array, batch: Batch, ctx: Context) -> Array:
        """`Float[B, C]` to `Float[B, C]`."""
        return prior_calibrated_logits(logits, smoothed_prior(ctx.class_counts, self.epsilon))
