"""FedNH: the classifier is made of prototypes, which start evenly spread and then follow the clients' features."""

import jax.numpy as jnp

from fedjax_bal.methods.combine import Positive, Recipe, Share, recipe
from fedjax_bal.methods.heads import classifier
from fedjax_bal.methods.part import part, static
from fedjax_bal.methods.prototypes import feature_sums
from fedjax_bal.methods.roles import Freeze, Refine, Report
from fedjax_bal.models import unit, with_cosine_head
from fedjax_bal.types import Array, Key, Model, Outcome, PyTree, ServerContext, Variables


@part
class PrototypeClassifier(Freeze, Report, Refine):
    r"""Classifies by cosine to prototypes, which clients don't train and the server moves.

    A client sends, for each of its classes, the direction of the mean of its unit features times their number. The
    server adds these up; with their direction p, a prototype becomes the direction of $\rho w + (1 - \rho) p$. That of
    a class that no client delivered stays.

    Attributes:
        rho: how much of the old prototype stays.
        scale: start of the trained scale on the cosines.

    References:
        FedNH (Dai et al., 2023), Algorithm 1, and the authors' code, whose scale is trained from 1, in ResNets from 20,
        unless it is fixed to 30. Updates are averaged by number of samples, in the code without weights.
    """

    rho: float = 0.9
    scale: float = static(1.0)

    def bind(self, model: Model) -> Model:
        """The network with orthogonal prototypes for a classifier."""
        return with_cosine_head(model, "orthogonal", self.scale)

    def frozen(self, params: PyTree) -> PyTree:
        """The prototypes."""
        return dict.fromkeys(params, False) | {"head": {name: name == "kernel" for name in classifier(params)}}

    def report(self, outcome: Outcome) -> Array:
        """The direction of each class's mean unit feature, times its number, `Float[C, F]`."""
        own = feature_sums(outcome.end, outcome.ctx, unit)
        return unit(own.sums) * own.counts[:, None]

    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """The model with moved prototypes."""
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
        rho: how much of the old prototypes stays in a round, in [0, 1].
        scale: start of the trained factor on cosines, above 0; the authors' code has 20 for ResNets.

    Example:
        >>> fednh().parts
        (PrototypeClassifier(rho=0.9, scale=1.0),)
    """
    return Recipe("fednh", (PrototypeClassifier(rho, scale),))
