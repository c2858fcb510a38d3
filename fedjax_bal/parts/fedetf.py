"""FedETF: all clients train towards the same fixed classifier, a simplex."""

from fedjax_bal.models import with_cosine_head
from fedjax_bal.parts.part import Part, part, static
from fedjax_bal.types import Model


@part
class SimplexClassifier(Part):
    """Replaces the classifier with a dense layer to C numbers, whose direction is compared to a fixed simplex.

    Attributes:
        scale: start of the trained scale on the cosines.

    References:
        FedETF (Li et al., 2023), and the authors' code. The simplex has the dimension C, as in most of its networks,
        and is not rotated: the layer before it starts at random. Fine-tuning on each client is left out.
    """

    scale: float = static(1.0)

    def bind(self, model: Model) -> Model:
        """The network with the new classifier."""
        return with_cosine_head(model, "simplex", self.scale)
