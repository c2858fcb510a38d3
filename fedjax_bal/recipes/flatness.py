"""Methods that look for flat minima: gradients are taken at shifted parameters."""

from fedjax_bal.parts import Ascent, ClientMomentum, DynamicRegularisation, GlobalAscent
from fedjax_bal.recipes.recipe import NonNegative, PositiveShare, Recipe, checked


@checked
def fedsam(rho: NonNegative = 0.1) -> Recipe:
    """FedAvg on gradients that are taken uphill, where the loss is largest nearby.

    Args:
        rho: how far uphill, at least 0; 0 is FedAvg. Each local step takes two passes through the model.

    Example:
        >>> fedsam().parts
        (Ascent(rho=0.1),)

    References:
        Qu et al., 2022, Algorithm 1; the default is that of github.com/woodenchild95/FL-Simulator, FedDecorr's code has
        0.05. Updates are averaged by number of samples; add `equal_weights` for the paper's uniform average.
    """
    return Recipe("fedsam", (Ascent(rho),))


@checked
def mofedsam(rho: NonNegative = 0.1, alpha: PositiveShare = 0.1) -> Recipe:
    """Client-level momentum on gradients that are taken uphill, where the loss is largest nearby.

    Args:
        rho: how far uphill, at least 0; 0 is `fedcm`.
        alpha: share of the client's own gradient, above 0.

    Example:
        >>> mofedsam().parts
        (Ascent(rho=0.1), ClientMomentum(alpha=0.1))

    References:
        Qu et al., 2022; the defaults are those of github.com/woodenchild95/FL-Simulator. Updates are averaged by number
        of samples; add `equal_weights` for the paper's uniform average.
    """
    return Recipe("mofedsam", (Ascent(rho), ClientMomentum(alpha)))


@checked
def fedlesam(rho: NonNegative = 0.1) -> Recipe:
    """Gradients taken uphill, back along the path of the global model since the client last trained.

    Args:
        rho: how far uphill, at least 0; 0 is FedAvg. It takes no second pass through the model, but each client
            remembers a model.

    Example:
        >>> fedlesam().parts
        (GlobalAscent(rho=0.1),)

    References:
        Fan et al., 2024, Algorithm 1; the default is that of the authors' code. Updates are averaged by number of
        samples; add `equal_weights` for the paper's uniform average.
    """
    return Recipe("fedlesam", (GlobalAscent(rho),))


@checked
def fedspeed(rho: NonNegative = 0.1, weight: NonNegative = 0.1, clip: NonNegative | None = 10.0) -> Recipe:
    """A proximal term corrected by each client's drift so far, on gradients that are taken uphill.

    Args:
        rho: how far uphill, at least 0; 0 is `feddyn` without its adaptive weight.
        weight: of the proximal term, one over the paper's lambda, at least 0.
        clip: largest norm of a local gradient; None or 0 for no limit.

    Example:
        >>> [part.slot for part in fedspeed().parts]
        ['Ascent', 'DynamicRegularisation']

    References:
        Sun et al., 2023, Algorithm 1 with its gradient all from uphill, as in the authors' code, which has the defaults
        and a server that adds the mean correction of all clients, as FedDyn's does.
    """
    return Recipe("fedspeed", (Ascent(rho), DynamicRegularisation(weight, False, clip or None, in_loss=False)))
