"""FedRep: in a local training first the classifier is trained, then the body."""

import jax
import jax.numpy as jnp

from fedjax_bal.parts.fedbabu import classifier
from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Gradient, Steps, Update
from fedjax_bal.types import Array, Batch, Context, Outputs, PyTree


@part
class HeadThenBody(Steps, Gradient, Update):
    """Trains `params["head"]` alone in the first local steps and all else in the others.

    What isn't trained has no gradient, so that no momentum builds up, and doesn't move.

    Attributes:
        head_share: share of a client's local steps, in [0, 1], for the classifier; rounded down to whole steps.

    References:
        FedRep (Collins et al., 2021), Algorithm 1.
    """

    head_share: float = 0.5

    def init_steps(self, ctx: Context) -> Array:
        """No step has been taken."""
        return jnp.zeros((), jnp.int32)

    def next_steps(self, carry: Array, outputs: Outputs, batch: Batch, ctx: Context) -> Array:
        """One more."""
        return carry + 1

    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Zeros for what isn't trained in this step."""
        return self._masked(grads, ctx)

    def updates(self, updates: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Zeros for what isn't trained in this step."""
        return self._masked(updates, ctx)

    def _masked(self, tree: PyTree, ctx: Context) -> PyTree:
        # A share such as 0.29 of 100 steps is 28.99... in binary, and means 29.
        on_head = ctx.steps_state[self.slot] < jnp.floor(self.head_share * ctx.steps + 1e-4)
        zeros = jax.tree.map(jnp.zeros_like, tree)
        first = {**zeros, "head": classifier(tree)}
        then = {**tree, "head": zeros["head"]}
        return jax.tree.map(lambda head, body: jnp.where(on_head, head, body), first, then)
