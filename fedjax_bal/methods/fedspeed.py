"""FedSpeed: a proximal term corrected by each client's accumulated drift, with gradients taken uphill."""

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.feddyn import DynamicRegularisation
from fedjax_bal.methods.fedsam import Ascent


@recipe("flatness", "sun2023fedspeed")
def fedspeed(rho: NonNegative = 0.1, weight: NonNegative = 0.1, clip: NonNegative | None = 10.0) -> Recipe:
    """A proximal term corrected by each client's accumulated drift, with gradients taken uphill.

    Args:
        rho: length of the shift uphill, at least 0; 0 is `feddyn` without its adaptive weight.
        weight: weight of the proximal term, one over the paper's lambda, at least 0.
        clip: largest norm of a local gradient; None or 0 for no limit.

    Example:
        >>> [part.slot for part in fedspeed().parts]
        ['Ascent', 'DynamicRegularisation']

    References:
        Sun et al., 2023, Algorithm 1, with its gradient taken only uphill. This, the defaults, and a server that adds
        the mean correction of all clients, as in FedDyn, are from the authors' code.
    """
    return Recipe("fedspeed", (Ascent(rho), DynamicRegularisation(weight, False, clip or None, in_loss=False)))
