"""Ditto: in addition to the global model, every client trains a personal model that is kept near the global one."""

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.heads import batch_loss
from fedjax_bal.methods.roles import CheckContext, Loss, Need, Separate, part
from fedjax_bal.methods.twins import check_twin, no_statistics, with_twin, without
from fedjax_bal.types import Array, Batch, Context, Model, Outputs, PyTree, Variables

_TWIN = "own_model"


@part
class SeparateModel(Separate, Loss):
    r"""Trains a personal model v along with the global one, on $F_k(v) + \frac{\lambda}{2} \|v - w\|^2$.

    Both take their steps on the same batches with the same optimizer; w is the received model. The personal model
    doesn't influence the global one, and loss terms, corrections and ascents of other parts don't affect the personal
    one. It is a second set of parameters, `params["own_model"]`, initialised like the first.

    Attributes:
        attraction: lambda; 0 trains the personal model only on the client's rows.

    References:
        Ditto (Li et al., 2021), Algorithm 1, with equally many steps for v and w. The personal model is trained with
        plain cross-entropy and without dropout. Updates are averaged by number of samples; add `equal_weights` for the
        paper's uniform average.
    """

    attraction: float = 0.1

    own = (_TWIN,)

    def bind(self, model: Model) -> Model:
        """Returns the network with the second set of parameters."""
        return with_twin(model, _TWIN)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires a model without batch statistics, as two models would need two sets of them."""
        return (no_statistics("ditto"),)

    def check(self, context: CheckContext) -> None:
        """Rejects parts that change the network after it was doubled."""
        check_twin("ditto", _TWIN, context)

    def own_model(self, variables: Variables) -> Variables:
        """Replaces the first set of parameters by the second."""
        own = variables.params[_TWIN]
        return variables._replace(params={**own, _TWIN: own})

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the personal model's objective, `Float[]`."""
        own = params[_TWIN]
        received = without(ctx.start.params, _TWIN)
        theirs, _ = ctx.model.apply(
            self.own_model(Variables(params, ctx.start.stats)), batch.images, train=True, real=batch.seen
        )
        distance = optax.tree.norm(jax.tree.map(jnp.subtract, own, received), squared=True)
        return batch_loss(theirs.logits, batch) + 0.5 * self.attraction * distance


@recipe("personal", "li2021ditto")
def ditto(attraction: NonNegative = 0.1) -> Recipe:
    """FedAvg, plus a personal model for each client that is kept near the global one.

    Args:
        attraction: lambda, the weight of the squared distance, at least 0; with 0 the personal models are `local`'s.

    Example:
        >>> ditto().parts
        (SeparateModel(attraction=0.1),)
    """
    return Recipe("ditto", (SeparateModel(attraction),))
