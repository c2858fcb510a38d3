"""IWDS: rare classes are drawn more often at first, and less so as training goes on."""

import jax.numpy as jnp

from fedjax_bal.balance import decayed_beta, effective_number_weights
from fedjax_bal.parts.part import part, static
from fedjax_bal.parts.roles import Draw
from fedjax_bal.types import Array, Context

SCHEDULES = ("decay", "fixed", "uniform")


@part
class DecayedResampling(Draw):
    r"""Draws each sample with a weight that falls with the number of samples of its class on the client.

    A sample of class c weighs $(1 - \beta_t) / (1 - \beta_t^{n_c})$, the inverse of its class's effective number of
    samples: close to $1 / n_c$ for $\beta$ near 1, which balances classes, and constant for $\beta = 0$. In round t
    (from 0, the same for all clients) $\beta_t = \beta_m + (\beta_0 - \beta_m) \rho^t$.

    Attributes:
        beta_0: beta in the first round.
        beta_m: beta in the limit.
        rho: the decay of their difference in a round.
        schedule: "decay" as above; "fixed" stays at beta_0; "uniform" is beta = 0, all samples alike.

    References:
        IWDS (Tang et al.), eq. 1 and the weight above it; effective numbers are from Cui et al., 2019, eq. 2.
    """

    beta_0: float = 0.9999
    beta_m: float = 0.8
    rho: float = 0.992
    schedule: str = static("decay")

    def log_weights(self, class_counts: Array, ctx: Context) -> Array:
        """`Float[C]`; 0, which is never used, for a class without samples."""
        weights = effective_number_weights(class_counts, self._beta(ctx.round))
        return jnp.log(jnp.where(weights > 0, weights, 1.0))

    def _beta(self, round: Array) -> Array:
        if self.schedule == "decay":
            return decayed_beta(round, self.beta_0, self.beta_m, self.rho)
        return jnp.asarray(self.beta_0 if self.schedule == "fixed" else 0.0, float)
