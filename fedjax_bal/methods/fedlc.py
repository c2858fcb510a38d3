"""FedLC: training logits are lowered by a margin that is larger for classes that are rarer on the client."""

from fedjax_bal.balance import logit_calibration
from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.roles import Logits, part
from fedjax_bal.types import Array, Batch, Context


@part
class LogitCalibration(Logits):
    r"""Subtracts $\tau n_c^{-1/4}$ from the training logit of class c.

    The margin depends on counts, not on shares: it shrinks as a client's counts grow. A class that the client lacks
    gets an offset of about 100 for $\tau = 1$, which practically excludes it.

    Attributes:
        tau: the margin's size; 0 is FedAvg.

    References:
        FedLC (Zhang et al., 2022), the fine-grained calibrated cross-entropy. The paper doesn't define it for absent
        classes; here their count is bounded away from 0. The authors' code isn't public; ReBaFL's comparison uses
        tau = 1.
    """

    tau: float = 1.0

    def logits(self, logits: Array, batch: Batch, ctx: Context) -> Array:
        """Maps `Float[B, C]` to `Float[B, C]`."""
        return logits - logit_calibration(ctx.class_counts, self.tau)


@recipe("losses", "zhang2022fedlc")
def fedlc(tau: NonNegative = 1.0) -> Recipe:
    """Logit calibration: FedAvg whose training logits are lowered by a margin that is larger for rarer classes.

    Args:
        tau: size of the margin, at least 0; 0 is FedAvg.

    Example:
        >>> fedlc().parts
        (LogitCalibration(tau=1.0),)
    """
    return Recipe("fedlc", (LogitCalibration(tau),))
