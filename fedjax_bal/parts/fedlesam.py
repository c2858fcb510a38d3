"""FedLESAM: take the gradient where the global model came from."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.parts.fedsam import SMALLEST
from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Memory, Shift
from fedjax_bal.types import Array, Context, Outcome, PyTree, Variables


class LastReceived(NamedTuple):
    """The global model that a client trained from the last time.

    Attributes:
        params: its parameters; zeros for a client that never trained.
        there: whether it has trained, `Bool[]`.
    """

    params: PyTree
    there: Array


@part
class GlobalAscent(Shift, Memory):
    r"""Takes the gradient at $y + \rho (w' - w) / \|w' - w\|$.

    w is the model received, w' the one that the client received when it trained last. A client that never delivered
    takes its gradients at y.

    Attributes:
        rho: how far uphill.

    References:
        FedLESAM (Fan et al., 2024), Algorithm 1; the default is that of the authors' code, which uses one element
        of the last global update for each whole tensor.
    """

    rho: float = 0.1

    needs_gradient = False

    def init_memory(self, variables: Variables) -> LastReceived:
        """No model."""
        return LastReceived(jax.tree.map(jnp.zeros_like, variables.params), jnp.array(False))

    def remember(self, memory: LastReceived, outcome: Outcome) -> LastReceived:
        """The model received."""
        return LastReceived(outcome.start.params, jnp.array(True))

    def shift(self, params: PyTree, grads: PyTree | None, ctx: Context) -> PyTree:
        """Parameters to parameters."""
        last: LastReceived = ctx.memory[self.slot]
        back = ctx.only_trained(jax.tree.map(jnp.subtract, last.params, ctx.start.params))
        scale = jnp.where(last.there, self.rho / (optax.tree.norm(back) + SMALLEST), 0.0)
        return optax.tree.add_scale(params, scale, back)
