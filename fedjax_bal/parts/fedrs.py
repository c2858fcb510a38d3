"""FedRS: classes that a client lacks are held back in its softmax."""

from fedjax_bal.balance import restricted_scale
from fedjax_bal.parts.part import part, static
from fedjax_bal.parts.roles import Logits
from fedjax_bal.types import Array, Batch, Context


@part
class RestrictedSoftmax(Logits):
    """Scales the training logits of classes that the client lacks or has little of.

    Attributes:
        alpha: factor for an absent class, in [0, 1]; 1 is FedAvg.
        mode: "hard", 1 for every class that is present; "soft", in between by its count relative to the largest.

    References:
        FedRS (Li and Zhan, 2021), the restricted softmax, for "hard"; "soft" is the authors' code, which applies it to
        a classifier without bias. Here the whole logit is scaled, the bias too.
    """

    alpha: float = 0.5
    mode: str = static("hard")

    def logits(self, logits: Array, batch: Batch, ctx: Context) -> Array:
        """`Float[B, C]` to `Float[B, C]`."""
        return logits * restricted_scale(ctx.class_counts, self.alpha, self.mode)
