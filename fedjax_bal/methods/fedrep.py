"""FedRep: local training first trains the classifier, then the body."""

import jax.numpy as jnp

from fedjax_bal.methods.combine import Recipe, Share, recipe
from fedjax_bal.methods.fedper import OwnHead
from fedjax_bal.methods.heads import classifier
from fedjax_bal.methods.roles import Freeze, Steps, part
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class HeadThenBody(Steps, Freeze):
    """Trains only `params["head"]` in the first local steps, and all else in the remaining ones.

    Attributes:
        head_share: share of a client's local steps, in [0, 1], for the classifier; rounded down to whole steps.

    References:
        FedRep (Collins et al., 2021), Algorithm 1.
    """

    head_share: float = 0.5

    always = False

    def init_steps(self, ctx: Context) -> Array:
        """Returns the initial number of steps, 0."""
        return jnp.zeros((), jnp.int32)

    def next_steps(self, carry: Array, outputs: Outputs, batch: Batch, ctx: Context) -> Array:
        """Counts the step."""
        return carry + 1

    def frozen(self, params: PyTree) -> PyTree:
        """Selects all but the classifier."""
        classifier(params)
        return {name: name != "head" for name in params}

    def trained(self, ctx: Context) -> tuple[Array, Array]:
        """Trains the classifier in the first steps, the body afterwards."""
        # Rounding: a share of 0.29 of 100 steps is 28.99... in binary but means 29.
        on_head = ctx.steps_state[self.slot] < jnp.floor(self.head_share * ctx.steps + 1e-4)
        return ~on_head, on_head


@recipe("personal", "collins2021fedrep")
def fedrep(head_share: Share = 0.5) -> Recipe:
    """FedPer whose clients first train their classifier, on the received body, and then the body.

    Args:
        head_share: share of a client's local steps for the classifier, in [0, 1]. The authors' 10 epochs for the
            classifier and 1 for the body correspond to 10 / 11, with 11 local epochs.

    Example:
        >>> fedrep().parts
        (OwnHead(), HeadThenBody(head_share=0.5))
    """
    return Recipe("fedrep", (OwnHead(), HeadThenBody(head_share)))
