"""FedRS: logits of classes that a client lacks are scaled down in its softmax."""

from typing import Literal

from fedjax_bal.balance import restricted_scale
from fedjax_bal.methods.combine import Recipe, Share, recipe, variants
from fedjax_bal.methods.roles import Logits, part, static
from fedjax_bal.types import Array, Batch, Context


@part
class RestrictedSoftmax(Logits):
    """Scales the training logits of classes that are absent or rare on the client.

    Attributes:
        alpha: factor for an absent class, in [0, 1]; 1 is FedAvg.
        mode: "hard": factor 1 for every present class; "soft": a factor between alpha and 1, by the class's count
            relative to the largest.

    References:
        FedRS (Li and Zhan, 2021), the restricted softmax, for "hard"; "soft" is from the authors' code, which applies
        it to a classifier without bias and tries alpha 0.9, 0.5 and 0.1. Here the whole logit is scaled, including the
        bias.
    """

    alpha: float = 0.5
    mode: Literal["hard", "soft"] = static("hard")

    def logits(self, logits: Array, batch: Batch, ctx: Context) -> Array:
        """Maps `Float[B, C]` to `Float[B, C]`."""
        return logits * restricted_scale(ctx.class_counts, self.alpha, self.mode)


@recipe("losses", "li2021fedrs")
@variants(paper={}, code={"mode": "soft"})
def fedrs(alpha: Share = 0.5, mode: Literal["hard", "soft"] = "hard") -> Recipe:
    """Restricted softmax: FedAvg whose local training scales down the logits of classes that a client lacks.

    `variant="paper"` or `variant="code"` sets all options in which the paper and the authors' code differ; explicit
    arguments override it.

    Args:
        alpha: factor for an absent class, in [0, 1]; 1 is FedAvg.
        mode: "hard": by whether a class is present; "soft": by its count relative to the client's largest count.

    Example:
        >>> fedrs().parts
        (RestrictedSoftmax(alpha=0.5, mode='hard'),)
    """
    return Recipe("fedrs", (RestrictedSoftmax(alpha, mode),))
