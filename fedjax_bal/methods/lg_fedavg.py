"""LG-FedAvg: the classifier is averaged; the body, and so the representation, stays with each client."""

from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.heads import classifier_shapes
from fedjax_bal.methods.roles import CheckContext, Personal, Separate, part, parts_with
from fedjax_bal.types import PyTree


@part
class OwnBody(Personal):
    """Gives every client its own body, with its running statistics, below a shared classifier, `params["head"]`.

    The test set is classified by the global model, whose body stays as initialised: look at `client_accuracy`.

    References:
        LG-FedAvg (Liang et al., 2020), Algorithm 1, without the auxiliary losses on the representation, and with one
        shared layer; the authors' code shares as many of the last layers as it is told to (one by default), begins with
        a model trained by FedAvg, averages clients uniformly (add `equal_weights`), and keeps each client's best model.
        In the paper new test rows are classified by the ensemble of all clients' models; here they aren't.
    """

    keeps_statistics = True

    def check(self, context: CheckContext) -> None:
        """Rejects a model without a classifier of that name, and parts that share more than that."""
        classifier_shapes(context.model)
        for other in parts_with(context.parts, Separate):
            if other.shared:
                raise ValueError(
                    f"lg_fedavg: received {other.slot}, which averages {' and '.join(other.shared)}, where only the "
                    "classifier is to be averaged; leave one of the two out"
                )

    def personal(self, params: PyTree) -> PyTree:
        """Selects all but the classifier."""
        return {name: name != "head" for name in params}


@recipe("personal", "liang2020lgfedavg")
def lg_fedavg() -> Recipe:
    """FedAvg of the classifier; the body stays with each client.

    Example:
        >>> lg_fedavg().parts
        (OwnBody(),)
    """
    return Recipe("lg_fedavg", (OwnBody(),))
