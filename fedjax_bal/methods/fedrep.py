"""FedRep: in a local training first the classifier is trained, then the body."""

import jax.numpy as jnp

from fedjax_bal.methods.combine import Recipe, Share, recipe
from fedjax_bal.methods.fedper import OwnHead
from fedjax_bal.methods.heads import classifier
from fedjax_bal.methods.part import part
from fedjax_bal.methods.roles import Freeze, Steps
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class HeadThenBody(Steps, Freeze):
    """Trains `params["head"]` alone in the first local steps and all else in the others.

    Attributes:
        head_share: share of a client's local steps, in [0, 1], for the classifier; rounded down to whole steps.

    References:
        FedRep (Collins et al., 2021), Algorithm 1.
    """

    head_share: float = 0.5

    always = False

    def init_steps(self, ctx: Context) -> Array:
        """No step has been taken."""
        return jnp.zeros((), jnp.int32)

    def next_steps(self, carry: Array, outputs: Outputs, batch: Batch, ctx: Context) -> Array:
        """One more."""
        return carry + 1

    def frozen(self, params: PyTree) -> PyTree:
        """All but the classifier."""
        classifier(params)
        return {name: name != "head" for name in params}

    def trained(self, ctx: Context) -> tuple[Array, Array]:
        """The body once the classifier has had its steps."""
        # A share such as 0.29 of 100 steps is 28.99... in binary, and means 29.
        on_head = ctx.steps_state[self.slot] < jnp.floor(self.head_share * ctx.steps + 1e-4)
        return ~on_head, on_head


@recipe("personal", "collins2021fedrep")
def fedrep(head_share: Share = 0.5) -> Recipe:
    """FedPer whose clients train first their classifier, on the body received, and then the body.

    Args:
        head_share: share of a client's local steps for the classifier, in [0, 1]. With the authors' 10 epochs for the
            classifier and 1 for the body it is 10 / 11, and the number of local epochs 11.

    Example:
        >>> fedrep().parts
        (OwnHead(), HeadThenBody(head_share=0.5))
    """
    return Recipe("fedrep", (OwnHead(), HeadThenBody(head_share)))
