"""FedROD: in addition to the shared classifier, each client trains a personal one that is added to it."""

import jax
import jax.numpy as jnp

from fedjax_bal.methods.balanced_softmax import PriorCalibration
from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.heads import batch_loss, check_exclusive_head, with_extra_heads
from fedjax_bal.methods.roles import CheckContext, Loss, Separate, part
from fedjax_bal.types import Array, Batch, Context, Model, Outputs, PyTree, Variables

_OWN = "own_head"


@part
class ResidualHead(Separate, Loss):
    r"""Adds the mean cross-entropy of personalised logits $\psi^\top f + \varphi_k^\top f$ to the loss.

    f are the features, $\psi$ is the shared classifier and $\varphi_k$ the client's own. The added loss has a gradient
    only for $\varphi_k$, so that it doesn't affect the generic model. $\varphi_k$ is a second set of the classifier's
    parameters, `params["own_head"]`, and starts as zeros: for a client that never trained, the generic model
    classifies.

    References:
        FedROD (Chen and Chao, 2022), section 4, with the linear personalised head, whose initialisation isn't stated;
        the head from a hypernetwork is omitted.
    """

    own = (_OWN,)

    def bind(self, model: Model) -> Model:
        """Returns the network with the second set; rejects a classifier that isn't linear in its parameters."""
        return with_extra_heads("fedrod", model, _OWN)

    def check(self, context: CheckContext) -> None:
        """Rejects parts with other classifiers or personal models."""
        check_exclusive_head("fedrod", self, context)

    def own_model(self, variables: Variables) -> Variables:
        """Replaces the classifier by the sum of both; as it is linear, logits are added, too."""
        params = variables.params
        return variables._replace(params={**params, "head": jax.tree.map(jnp.add, params["head"], params[_OWN])})

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the personalised predictor's mean cross-entropy, `Float[]`."""
        generic, features = jax.lax.stop_gradient((outputs.logits, outputs.features))
        return batch_loss(generic + ctx.model.head({**params, "head": params[_OWN]}, features), batch)


@recipe("personal", "chen2022fedrod")
def fedrod() -> Recipe:
    """Balanced softmax for the global model, plus a personal classifier for each client.

    The test set is classified by the global model, which is that of `balanced_softmax`, clients' own test rows by the
    personalised models.

    Example:
        >>> fedrod().parts
        (PriorCalibration(epsilon=0.0, tau=1.0, counts='local', absent=0), ResidualHead())
    """
    return Recipe("fedrod", (PriorCalibration(0.0), ResidualHead()))
