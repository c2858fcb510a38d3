"""FedNH: the classifier consists of prototypes, which start evenly spread and then follow the clients' features."""

import jax.numpy as jnp

from fedjax_bal.methods.combine import Positive, Recipe, Share, recipe
from fedjax_bal.methods.heads import check_kept, classifier
from fedjax_bal.methods.prototypes import feature_sums
from fedjax_bal.methods.roles import CheckContext, Freeze, Refine, Report, part, static
from fedjax_bal.models import unit, with_cosine_head
from fedjax_bal.types import Array, Key, Model, Outcome, PyTree, ServerContext, Variables


@part
class PrototypeClassifier(Freeze, Report, Refine):
    r"""Classifies by cosine to prototypes, which are updated by the server and not trained by clients.

    For each of its classes, a client sends the direction of its mean unit feature, times the number of its rows. The
    server sums these; with the direction p of the sum, a prototype w becomes the direction of
    $\rho w + (1 - \rho) p$. The prototype of a class that no client delivered is kept.

    Attributes:
        rho: weight of the old prototype.
        scale: initial value of the trained scale on the cosines.

    References:
        FedNH (Dai et al., 2023), Algorithm 1, and the authors' code, whose scale is trained from 1 (20 in ResNets) or
        fixed to 30. Updates are averaged by number of samples; the code averages them uniformly.
    """

    rho: float = 0.9
    scale: float = static(1.0)

    def bind(self, model: Model) -> Model:
        """Returns the network with orthogonal prototypes as its classifier."""
        return with_cosine_head(model, "orthogonal", self.scale)

    def check(self, context: CheckContext) -> None:
        """Rejects parts by which each client keeps its own classifier, which the server's prototypes never reach."""
        why = "by which the classifier stays with the clients, so they would never get the server's prototypes"
        check_kept("fednh", context, why, classifier=True)

    def frozen(self, params: PyTree) -> PyTree:
        """Selects the prototypes."""
        return dict.fromkeys(params, False) | {"head": {name: name == "kernel" for name in classifier(params)}}

    def report(self, outcome: Outcome) -> Array:
        """Returns the direction of each class's mean unit feature, times the number of its rows, `Float[C, F]`."""
        own = feature_sums(outcome.end, outcome.ctx, unit)
        return unit(own.sums) * own.counts[:, None]

    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """Returns the model with updated prototypes."""
        head = classifier(variables.params)
        sums = server.aggregate.reports[self.slot]
        old = head["kernel"].T
        moved = unit(self.rho * old + (1.0 - self.rho) * unit(sums))
        kept = jnp.where((sums != 0).any(-1, keepdims=True), moved, old).T
        return variables._replace(params={**variables.params, "head": {**head, "kernel": kept}})


@recipe("heads", "dai2023fednh")
def fednh(rho: Share = 0.9, scale: Positive = 1.0) -> Recipe:
    """A classifier of prototypes, which the server moves towards the clients' features.

    Args:
        rho: weight of the old prototypes in a round, in [0, 1].
        scale: initial value of the trained factor on cosines, above 0; the authors' code uses 20 for ResNets.

    Example:
        >>> fednh().parts
        (PrototypeClassifier(rho=0.9, scale=1.0),)
    """
    return Recipe("fednh", (PrototypeClassifier(rho, scale),))
