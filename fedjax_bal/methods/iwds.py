"""IWDS: rare classes are oversampled at first, and less so as training proceeds."""

from typing import Literal

import jax.numpy as jnp

from fedjax_bal.balance import decayed_beta, effective_number_weights
from fedjax_bal.methods.combine import Recipe, Share, recipe
from fedjax_bal.methods.roles import Draw, part, static
from fedjax_bal.types import Array, Context

BetaSchedule = Literal["decay", "fixed", "uniform"]


@part
class DecayedResampling(Draw):
    r"""Draws each sample with a weight that decreases with the number of the client's samples of its class.

    A sample of class c has the weight $(1 - \beta_t) / (1 - \beta_t^{n_c})$, the inverse of its class's effective
    number of samples: close to $1 / n_c$ for $\beta$ near 1, which balances classes, and constant for $\beta = 0$. In
    round t (from 0, the same for all clients) $\beta_t = \beta_m + (\beta_0 - \beta_m) \rho^t$.

    Attributes:
        beta_0: beta in the first round.
        beta_m: beta in the limit.
        rho: factor per round on the difference of beta from beta_m.
        schedule: "decay": as above; "fixed": beta_0 in all rounds; "uniform": beta = 0, equal weights.

    References:
        IWDS (Tang et al.), eq. 1 and the weight above it; effective numbers are from Cui et al., 2019, eq. 2. The
        poster states no values: the defaults are those of the authors' code, which also drops the last short batch of
        an epoch (`drop_last`).
    """

    beta_0: float = 0.9999
    beta_m: float = 0.8
    rho: float = 0.992
    schedule: BetaSchedule = static("decay")

    def log_weights(self, class_counts: Array, ctx: Context) -> Array:
        """Returns the log-weights, `Float[C]`; 0, which is never used, for a class without samples."""
        beta = jnp.asarray(self.beta_0 if self.schedule == "fixed" else 0.0, float)
        if self.schedule == "decay":
            beta = decayed_beta(ctx.round, self.beta_0, self.beta_m, self.rho)
        weights = effective_number_weights(class_counts, beta)
        return jnp.log(jnp.where(weights > 0, weights, 1.0))


@recipe("sampling", "tang2021iwds", "cui2019effective")
def iwds(beta_0: Share = 0.9999, beta_m: Share = 0.8, rho: Share = 0.992, schedule: BetaSchedule = "decay") -> Recipe:
    """Imbalanced weight decay sampling: rare classes are oversampled at first, less so from round to round.

    An epoch draws, with replacement, the client's number of samples. Aggregation doesn't change, so it combines with
    other methods. What corrects for the client's classes, such as the losses of balanced softmax, class-balanced and
    ReBaFL, or CBFL's fakes, corrects for those that are drawn on average; a loss for those of all clients
    (`counts="global"`) corrects as if nothing were weighted.

    Args:
        beta_0: beta in the first round, in [0, 1]; near 1 all classes are drawn equally often, at 0 all samples.
        beta_m: beta in the limit, in [0, 1].
        rho: factor per round on the difference of beta from beta_m, in [0, 1].
        schedule: "decay", "fixed" (beta_0 in all rounds, the poster's imbalanced sampling) or "uniform" (equal weights,
            the poster's uniform sampling).

    Example:
        >>> iwds(schedule="fixed").parts
        (DecayedResampling(beta_0=0.9999, beta_m=0.8, rho=0.992, schedule='fixed'),)
    """
    part = DecayedResampling(beta_0, beta_m, rho, schedule)
    return Recipe("iwds", (part,), drawing="replacement")
