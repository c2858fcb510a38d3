"""FedETF: all clients train towards the same fixed classifier, a simplex (equiangular tight frame)."""

from typing import Literal

from fedjax_bal.methods.balanced_softmax import PriorCalibration
from fedjax_bal.methods.combine import Positive, Recipe, recipe
from fedjax_bal.methods.roles import Part, part, static
from fedjax_bal.models import with_cosine_head
from fedjax_bal.types import Model


@part
class SimplexClassifier(Part):
    """Replaces the classifier by a dense layer with C outputs, whose direction is compared to a fixed simplex.

    Attributes:
        scale: initial value of the trained scale on the cosines.

    References:
        FedETF (Li et al., 2023), and the authors' code. The simplex has C dimensions, as in most of its networks. It
        isn't rotated, because the layer before it is initialised at random. Fine-tuning on each client is omitted.
    """

    scale: float = static(1.0)

    def bind(self, model: Model) -> Model:
        """Returns the network with the new classifier."""
        return with_cosine_head(model, "simplex", self.scale)


@recipe("heads", "li2023fedetf")
def fedetf(scale: Positive = 1.0, absent: Literal["excluded", "one"] = "excluded") -> Recipe:
    """Balanced softmax towards a classifier that is the same fixed simplex for all clients.

    Args:
        scale: initial value of the trained factor on cosines, above 0; the authors' code uses 1, and 10 for two small
            networks.
        absent: classes that a client lacks are "excluded" from its loss, as in the paper's formula, or count as having
            "one" row, as in the authors' code, which makes a difference for clients with few rows.

    Example:
        >>> [part.slot for part in fedetf().parts]
        ['SimplexClassifier', 'PriorCalibration']
    """
    return Recipe("fedetf", (SimplexClassifier(scale), PriorCalibration(0.0, absent=int(absent == "one"))))
