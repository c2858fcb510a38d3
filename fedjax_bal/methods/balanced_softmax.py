"""Balanced softmax (plain, relaxed, or with a power: logit adjustment) compensates for the class distribution."""

from typing import Literal

import jax.numpy as jnp
import numpy as np

from fedjax_bal.balance import prior_calibrated_logits, smoothed_prior
from fedjax_bal.methods.combine import NonNegative, Recipe, Share, recipe
from fedjax_bal.methods.roles import CheckContext, Logits, part, static
from fedjax_bal.types import Array, Batch, Context

Scope = Literal["local", "global"]
"""The client's own counts, which it knows, or the sum over all clients, which the server would have to collect."""


def counts_in(ctx: Context, scope: Scope) -> Array:
    """Returns the number of samples of each class, `Int32[C]`."""
    return ctx.class_counts if scope == "local" else ctx.federation.class_counts.sum(0)


_SMALL_EPSILON = 0.1  # the prior of a single class is then above 0.9, and so is its calibrated probability
_MOST_SINGLE = 0.5


@part
class PriorCalibration(Logits):
    r"""Adds $\tau \log p_c$ to the training logits, with the smoothed class prior p.

    Attributes:
        epsilon: share of the uniform prior; 0 is balanced softmax (absent classes excluded exactly), 1 plain
            cross-entropy.
        tau: the strength; 0 is cross-entropy over the classes that are present.
        counts: whose prior: "local", the client's, or "global", that of all clients' rows together.
        absent: the number of rows assumed for an absent class.

    References:
        ReBaFL (Xu et al., 2023), eq. 9 and 10; balanced softmax (Ren et al., 2020), eq. 4; logit adjustment (Menon et
        al., 2021), eq. 10.
    """

    epsilon: float = 0.0
    tau: float = 1.0
    counts: Scope = static("local")
    absent: int = static(0)

    def caution(self, context: CheckContext, cohort: int) -> str:
        """Counts the clients of a single class if they are the majority: their calibrated loss is close to 0."""
        smoothed = self.epsilon > _SMALL_EPSILON or (self.epsilon > 0 and self.tau < 1)
        if self.counts == "global" or self.absent or smoothed:
            return ""
        classes = (np.asarray(context.federation.class_counts) > 0).sum(1)
        clients, single = np.count_nonzero(classes), np.count_nonzero(classes == 1)
        if single <= _MOST_SINGLE * clients:
            return ""
        return (
            f"{single:,} of {clients:,} clients have rows of a single class, which their class prior already predicts: "
            "their cross-entropy is close to 0 and teaches almost nothing; use fewer clients or a partition with more "
            "classes a client, or another method"
        )

    def logits(self, logits: Array, batch: Batch, ctx: Context) -> Array:
        """Maps `Float[B, C]` to `Float[B, C]`."""
        counts = counts_in(ctx, self.counts)
        prior = smoothed_prior(jnp.where(counts > 0, counts, self.absent), self.epsilon)
        return prior_calibrated_logits(logits, prior, self.tau)


@recipe("long_tail", "menon2021adjustment")
def logit_adjustment(tau: NonNegative = 1.0, counts: Scope = "local", epsilon: Share = 0.0) -> Recipe:
    """Cross-entropy of logits to which tau times the log of the class prior is added.

    Args:
        tau: the strength, at least 0. With 1 and a client's own counts this is `balanced_softmax`.
        counts: whose prior: "local", the client's, or "global", that of all clients' rows, which clients would have to
            disclose.
        epsilon: share of the uniform distribution in the prior, in [0, 1]. At 0 a class without samples is excluded.

    Example:
        >>> logit_adjustment(1.5, "global").parts
        (PriorCalibration(epsilon=0.0, tau=1.5, counts='global', absent=0),)
    """
    prior = PriorCalibration(epsilon, tau, counts)
    return Recipe("logit_adjustment", (prior,))


@recipe("losses", "ren2020balanced")
def balanced_softmax() -> Recipe:
    """FedAvg with a local loss that is calibrated with the client's class prior (BSM-FedAvg).

    Example:
        >>> balanced_softmax().parts
        (PriorCalibration(epsilon=0.0, tau=1.0, counts='local', absent=0),)

    References:
        Ren et al., 2020, eq. 4; in federated learning ReBaFL, eq. 8. The generic model of `fedrod` is trained this way.
    """
    return Recipe("balanced_softmax", (PriorCalibration(0.0),))
