"""Balanced softmax, plain, relaxed and with a power: train against the class distribution of the training rows."""

import jax.numpy as jnp

from fedjax_bal.balance import prior_calibrated_logits, smoothed_prior
from fedjax_bal.parts.class_counts import counts_in
from fedjax_bal.parts.part import part, static
from fedjax_bal.parts.roles import Logits
from fedjax_bal.types import Array, Batch, Context


@part
class PriorCalibration(Logits):
    r"""Adds $\tau \log p_c$ to the training logits, with the smoothed class prior p.

    Attributes:
        epsilon: share of the uniform prior; 0 is balanced softmax (absent classes excluded exactly), 1 plain
            cross-entropy.
        tau: the strength; 0 is cross-entropy over the classes that are present.
        counts: whose prior: "local", the client's, or "global", that of all clients' rows together.
        absent: as many rows an absent class counts as having.

    References:
        ReBaFL (Xu et al., 2023), eq. 9 and 10; balanced softmax (Ren et al., 2020), eq. 4; logit adjustment (Menon et
        al., 2021), eq. 10.
    """

    epsilon: float = 0.0
    tau: float = 1.0
    counts: str = static("local")
    absent: int = static(0)

    def logits(self, logits: Array, batch: Batch, ctx: Context) -> Array:
        """`Float[B, C]` to `Float[B, C]`."""
        counts = counts_in(ctx, self.counts)
        prior = smoothed_prior(jnp.where(counts > 0, counts, self.absent), self.epsilon)
        return prior_calibrated_logits(logits, prior, self.tau)
