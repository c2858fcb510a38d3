"""FedGAMMA: control variates against client drift, with gradients taken uphill."""

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.fedsam import Ascent
from fedjax_bal.methods.scaffold import ControlVariates


@recipe("flatness", "dai2023fedgamma")
def fedgamma(rho: NonNegative = 0.01) -> Recipe:
    r"""SCAFFOLD with gradients taken uphill, where the loss in the neighbourhood is largest.

    A local step is $y \leftarrow y - \eta (\nabla f(y + \rho g / \|g\|) - c_k + c)$, where g is the client's gradient
    at y, uncorrected. The control variates measure the drift along these steps.

    Args:
        rho: length of the shift uphill, at least 0; 0 is `scaffold`. Each local step takes two passes through the
            model.

    Example:
        >>> [part.slot for part in fedgamma().parts]
        ['Ascent', 'ControlVariates']

    References:
        FedGAMMA (Dai et al., 2023), as in github.com/woodenchild95/FL-Simulator, whose README gives rho=0.01 for its
        results; the default of its command line is 0.1. Each client divides its drift by its own number of steps, the
        code by that of the first client. The code clips the corrected gradient at 10 and has a weight decay of 0.001:
        set the optimizer's clip_norm, with clip_at "end", and weight_decay. The paper's text wasn't at hand.
    """
    return Recipe("fedgamma", (Ascent(rho), ControlVariates()))
