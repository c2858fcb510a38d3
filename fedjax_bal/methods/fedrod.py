"""FedROD: beside the classifier that all share, each client trains one of its own on what that leaves over."""

import jax
import jax.numpy as jnp

from fedjax_bal.methods.balanced_softmax import PriorCalibration
from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.heads import batch_loss, check_alone, with_extra_heads
from fedjax_bal.methods.part import RunSetting, part
from fedjax_bal.methods.roles import Loss, Separate
from fedjax_bal.types import Array, Batch, Context, Model, Outputs, PyTree, Variables

_OWN = "own_head"


@part
class ResidualHead(Separate, Loss):
    r"""Adds the mean cross-entropy of personalised logits $\psi^\top f + \varphi_k^\top f$ to the loss.

    f are the features, $\psi$ is the shared classifier and $\varphi_k$ the client's own. The added gradient reaches
    $\varphi_k$ alone, so that the generic model is trained as without it. $\varphi_k$ is a second set of the
    classifier's parameters, `params["own_head"]`, and begins as zeros: a client that never trained is classified by the
    generic model.

    References:
        FedROD (Chen and Chao, 2022), section 4, its linear personalised head; the one that a hypernetwork makes is left
        out. How the paper's linear head begins is not stated.
    """

    own = (_OWN,)

    def bind(self, model: Model) -> Model:
        """The network with the second set; refuses a classifier that isn't linear in its parameters."""
        return with_extra_heads("fedrod", model, _OWN)

    def check(self, setting: RunSetting) -> None:
        """Refuses other classifiers and models of a client's own."""
        check_alone("fedrod", self, setting)

    def own_model(self, variables: Variables) -> Variables:
        """With the sum of both classifiers, whose logits are the sum of theirs."""
        params = variables.params
        return variables._replace(params={**params, "head": jax.tree.map(jnp.add, params["head"], params[_OWN])})

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """The personalised predictor's mean cross-entropy, `Float[]`."""
        generic, features = jax.lax.stop_gradient((outputs.logits, outputs.features))
        return batch_loss(generic + ctx.model.head({**params, "head": params[_OWN]}, features), batch)


@recipe("personal", "chen2022fedrod")
def fedrod() -> Recipe:
    """Balanced softmax for the global model, and beside its classifier one of each client's own.

    The test set sees the global model, which is that of `balanced_softmax`; clients' own test rows see the
    personalised ones.

    Example:
        >>> fedrod().parts
        (PriorCalibration(epsilon=0.0, tau=1.0, counts='local', absent=0), ResidualHead())
    """
    return Recipe("fedrod", (PriorCalibration(0.0), ResidualHead()))
