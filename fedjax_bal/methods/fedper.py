"""FedPer: the body is averaged; the classifier stays with each client."""

from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.heads import classifier_shapes
from fedjax_bal.methods.roles import CheckContext, Personal, part
from fedjax_bal.types import PyTree


@part
class OwnHead(Personal):
    """Gives every client its own classifier, `params["head"]`, on a shared body.

    References:
        FedPer (Arivazhagan et al., 2019), Algorithms 1 and 2, with one personal layer.
    """

    def check(self, context: CheckContext) -> None:
        """Rejects a model without a classifier of that name."""
        classifier_shapes(context.model)

    def personal(self, params: PyTree) -> PyTree:
        """Selects the classifier."""
        return {name: name == "head" for name in params}


@recipe("personal", "arivazhagan2019fedper")
def fedper() -> Recipe:
    """FedAvg of the body; the classifier stays with each client.

    Example:
        >>> fedper().parts
        (OwnHead(),)
    """
    return Recipe("fedper", (OwnHead(),))
