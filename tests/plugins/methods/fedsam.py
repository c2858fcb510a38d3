"""FedSAM: local steps along the gradient at the worst parameters nearby, towards flat minima."""

from typing import Annotated

import optax
from annotated_types import Ge

import fedjax_bal
from fedjax_bal.parts import Shift, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.types import Context, PyTree

from .bibtex import FEDSAM


@part
class SharpnessAware(Shift):
    r"""Takes the gradient at $w + \rho \nabla F(w) / \|\nabla F(w)\|$, on the same mini-batch.

    Each local step takes two passes through the model.

    Attributes:
        rho: radius of the neighbourhood; 0 is FedAvg, at twice the cost.

    References:
        FedSAM (Qu et al., ICML 2022, arXiv:2206.02618, Algorithm 1; Caldarola et al., ECCV 2022, arXiv:2203.11834),
        local steps of SAM (Foret et al., ICLR 2021, arXiv:2010.01412), eq. 2. rho = 0.05 as in FedDecorr's code; others
        take up to 0.5. Running batch statistics are those of the second pass; in FedDecorr's code both passes count.
    """

    rho: float = 0.05

    def shift(self, params: PyTree, grads: PyTree | None, ctx: Context) -> PyTree:
        """The worst parameters nearby, to first order; without any gradient, those given."""
        return optax.tree.add_scale(params, self.rho / (optax.tree.norm(grads) + 1e-12), grads)


@fedjax_bal.register("recipe", "fedsam", citation=FEDSAM)
def fedsam(rho: Annotated[float, Ge(0)] = 0.05) -> Recipe:
    """FedAvg with sharpness-aware local steps.

    Args:
        rho: radius of the neighbourhood, at least 0; 0 is FedAvg.

    References:
        Qu et al., 2022, Algorithm 1; Caldarola et al., 2022.
    """
    return Recipe("fedsam", (SharpnessAware(rho),))
