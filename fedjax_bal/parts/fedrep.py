"""FedRep: in a local training first the classifier is trained, then the body."""

import jax.numpy as jnp

from fedjax_bal.parts.fedbabu import classifier
from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Freeze, Steps
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
