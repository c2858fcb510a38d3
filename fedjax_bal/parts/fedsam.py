"""Sharpness-aware minimisation: take the gradient where the loss is largest nearby."""

import optax

from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Shift
from fedjax_bal.types import Context, PyTree

SMALLEST = 1e-7  # added to a norm, as FL-Simulator does


@part
class Ascent(Shift):
    r"""Takes the gradient at $y + \rho g / \|g\|$, where g is that at y.

    Attributes:
        rho: how far uphill.

    References:
        FedSAM (Qu et al., 2022), after Foret et al., 2021; the default is that of
        github.com/woodenchild95/FL-Simulator.
    """

    rho: float = 0.1

    def shift(self, params: PyTree, grads: PyTree | None, ctx: Context) -> PyTree:
        """Parameters to parameters."""
        return optax.tree.add_scale(params, self.rho / (optax.tree.norm(grads) + SMALLEST), grads)
