"""FedLESAM and its variants S and D: gradients are taken at parameters shifted back along the global model's path."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.feddyn import DynamicRegularisation
from fedjax_bal.methods.fedsam import SMALLEST
from fedjax_bal.methods.roles import Memory, Shift, part
from fedjax_bal.methods.scaffold import ControlVariates
from fedjax_bal.types import Array, Context, Outcome, PyTree, Variables


class LastReceived(NamedTuple):
    """The global model that a client received in its last delivered training.

    Attributes:
        params: its parameters; zeros if there is none.
        there: whether there is one, `Bool[]`.
    """

    params: PyTree
    there: Array


@part
class GlobalAscent(Shift, Memory):
    r"""Takes the gradient at $y + \rho (w' - w) / \|w' - w\|$.

    w is the received model, w' the model that the client received in its last training. A client that never delivered
    takes its gradients at y.

    Attributes:
        rho: length of the shift.

    References:
        FedLESAM (Fan et al., 2024), Algorithm 1; the default is that of the authors' code, which uses a single element
        of the last global update for each tensor. Updates are averaged by number of samples; add `equal_weights` for
        the paper's uniform average.
    """

    rho: float = 0.1

    needs_gradient = False

    def init_memory(self, variables: Variables) -> LastReceived:
        """Returns an empty memory."""
        return LastReceived(jax.tree.map(jnp.zeros_like, variables.params), jnp.array(False))

    def remember(self, memory: LastReceived, outcome: Outcome) -> LastReceived:
        """Remembers the received model."""
        return LastReceived(outcome.start.params, jnp.array(True))

    def shift(self, params: PyTree, grads: PyTree | None, ctx: Context) -> PyTree:
        """Returns the shifted parameters."""
        last: LastReceived = ctx.memory[self.slot]
        back = ctx.only_trained(jax.tree.map(jnp.subtract, last.params, ctx.start.params))
        scale = jnp.where(last.there, self.rho / (optax.tree.norm(back) + SMALLEST), 0.0)
        return optax.tree.add_scale(params, scale, back)


@recipe("flatness", "fan2024fedlesam")
def fedlesam(rho: NonNegative = 0.1) -> Recipe:
    """FedAvg with gradients taken uphill, back along the path of the global model since the client last trained.

    Args:
        rho: length of the shift uphill, at least 0; 0 is FedAvg. It needs no second pass through the model, but each
            client remembers a model.

    Example:
        >>> fedlesam().parts
        (GlobalAscent(rho=0.1),)
    """
    return Recipe("fedlesam", (GlobalAscent(rho),))


@recipe("flatness", "fan2024fedlesam")
def fedlesam_s(rho: NonNegative = 0.1) -> Recipe:
    """FedLESAM with the control variates of SCAFFOLD, and its average without weights.

    Args:
        rho: length of the shift uphill, at least 0; 0 is `scaffold`.

    Example:
        >>> [part.slot for part in fedlesam_s().parts]
        ['GlobalAscent', 'ControlVariates']

    References:
        FedLESAM-S (Fan et al., 2024). The default is that of the authors' code; the command in its README has rho=0.5.
        The code multiplies the correction by the weight of its proximal term, 0.1; here it counts in full, as in their
        code of SCAFFOLD. Each client divides its drift by its own number of steps, the code by that of the first
        client. The code clips the corrected gradient at 10: set the optimizer's clip_norm, with clip_at "end".
    """
    return Recipe("fedlesam_s", (GlobalAscent(rho), ControlVariates()))


@recipe("flatness", "fan2024fedlesam")
def fedlesam_d(rho: NonNegative = 0.1, weight: NonNegative = 0.1, clip: NonNegative | None = 10.0) -> Recipe:
    """FedLESAM with the dynamic regularisation of FedDyn, whose mean the server adds.

    Args:
        rho: length of the shift uphill, at least 0; 0 is `feddyn` without its adaptive weight.
        weight: weight of the penalty on a client's accumulated drift, at least 0.
        clip: largest norm of a local gradient; None or 0 for no limit.

    Example:
        >>> [part.slot for part in fedlesam_d().parts]
        ['GlobalAscent', 'DynamicRegularisation']

    References:
        FedLESAM-D (Fan et al., 2024). The defaults are those of the authors' code, in which the penalty's part that
        shrinks the parameters is a weight decay, and therefore isn't clipped.
    """
    return Recipe("fedlesam_d", (GlobalAscent(rho), DynamicRegularisation(weight, False, clip or None, in_loss=False)))
