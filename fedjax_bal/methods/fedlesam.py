"""FedLESAM: take the gradient where the global model came from."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.fedsam import SMALLEST
from fedjax_bal.methods.part import part
from fedjax_bal.methods.roles import Memory, Shift
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
        FedLESAM (Fan et al., 2024), Algorithm 1; the default is that of the authors' code, which uses one element of
        the last global update for each whole tensor. Updates are averaged by number of samples; add `equal_weights` for
        the paper's uniform average.
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


@recipe("flatness", "fan2024fedlesam")
def fedlesam(rho: NonNegative = 0.1) -> Recipe:
    """Gradients taken uphill, back along the path of the global model since the client last trained.

    Args:
        rho: how far uphill, at least 0; 0 is FedAvg. It takes no second pass through the model, but each client
            remembers a model.

    Example:
        >>> fedlesam().parts
        (GlobalAscent(rho=0.1),)
    """
    return Recipe("fedlesam", (GlobalAscent(rho),))
