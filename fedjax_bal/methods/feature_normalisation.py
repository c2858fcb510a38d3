"""Feature normalisation: features of a fixed norm, which clients with few classes can't inflate."""

from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.roles import Part, part
from fedjax_bal.models import with_normalised_features
from fedjax_bal.types import Model


@part
class NormalisedFeatures(Part):
    r"""Scales the features f of each row to $\sqrt F f / \|f\|$, in training and in evaluation.

    Other parts see the scaled features, too; a row of zeros stays as it is.

    References:
        Zhang et al., 2024, feature normalisation with the scale of the authors' code for ResNets ("fn"; "v" in their
        smaller networks). As there, the classifier keeps its form.
    """

    def bind(self, model: Model) -> Model:
        """Returns the network with scaled features."""
        return with_normalised_features(model)


@recipe("heads", "zhang2024understanding")
def feature_normalisation() -> Recipe:
    """Features of a fixed norm before the classifier; combine it with any method.

    Example:
        >>> from fedjax_bal.recipes import combine, fedlc
        >>> combine(feature_normalisation(), fedlc()).name
        'feature_normalisation+fedlc'
    """
    return Recipe("feature_normalisation", (NormalisedFeatures(),))
