"""FedSAM and MoFedSAM: gradients are taken uphill, where the loss in the neighbourhood is largest."""

import optax

from fedjax_bal.methods.combine import NonNegative, PositiveShare, Recipe, recipe
from fedjax_bal.methods.fedcm import ClientMomentum
from fedjax_bal.methods.roles import Shift, part
from fedjax_bal.types import Context, PyTree

SMALLEST = 1e-7  # added to a norm, as FL-Simulator does


@part
class Ascent(Shift):
    r"""Takes the gradient at $y + \rho g / \|g\|$, where g is the gradient at y.

    Attributes:
        rho: length of the shift.

    References:
        FedSAM (Qu et al., 2022), after Foret et al., 2021. The default is that of
        github.com/woodenchild95/FL-Simulator; FedDecorr's code uses 0.05. Updates are averaged by number of samples;
        add `equal_weights` for the paper's uniform average.
    """

    rho: float = 0.1

    def shift(self, params: PyTree, grads: PyTree | None, ctx: Context) -> PyTree:
        """Returns the shifted parameters."""
        return optax.tree.add_scale(params, self.rho / (optax.tree.norm(grads) + SMALLEST), grads)


@recipe("flatness", "qu2022generalized")
def fedsam(rho: NonNegative = 0.1) -> Recipe:
    """FedAvg with gradients taken uphill, where the loss in the neighbourhood is largest.

    Args:
        rho: length of the shift uphill, at least 0; 0 is FedAvg. Each local step takes two passes through the model.

    Example:
        >>> fedsam().parts
        (Ascent(rho=0.1),)
    """
    return Recipe("fedsam", (Ascent(rho),))


@recipe("flatness", "qu2022generalized")
def mofedsam(rho: NonNegative = 0.1, alpha: PositiveShare = 0.1) -> Recipe:
    """Client-level momentum with gradients taken uphill, where the loss in the neighbourhood is largest.

    Args:
        rho: length of the shift uphill, at least 0; 0 is `fedcm`.
        alpha: share of the client's own gradient, above 0.

    Example:
        >>> mofedsam().parts
        (Ascent(rho=0.1), ClientMomentum(alpha=0.1))

    References:
        Qu et al., 2022; the defaults are those of github.com/woodenchild95/FL-Simulator. Updates are averaged by number
        of samples; add `equal_weights` for the paper's uniform average.
    """
    return Recipe("mofedsam", (Ascent(rho), ClientMomentum(alpha)))
