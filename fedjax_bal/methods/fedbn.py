"""FedBN: normalisation layers stay with each client, running statistics included; all else is averaged."""

import jax

from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.roles import Need, NeedsContext, Personal, part
from fedjax_bal.models import normalises
from fedjax_bal.types import PyTree


@part
class OwnNormalisation(Personal):
    """Gives every client its own normalisation layers, with their running statistics.

    These are the layers whose name contains "norm", in upper or lower case, or begins with "bn".

    References:
        FedBN (Li et al., 2021), Algorithm 1.
    """

    keeps_statistics = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires a model with such layers."""
        return (Need("a model with normalisation layers", _check_layers),)

    def personal(self, params: PyTree) -> PyTree:
        """Selects scales and shifts of these layers."""
        return jax.tree_util.tree_map_with_path(lambda path, _: any(map(normalises, path)), params)


def _check_layers(context: NeedsContext) -> None:
    if context.normalisation and not context.normalisation.layers:
        raise ValueError(
            f"fedbn: received the model {context.model}, none of whose layers has 'norm' in its name: use a "
            "model with normalisation layers, or name them so"
        )


@recipe("personal", "li2021fedbn")
def fedbn() -> Recipe:
    """FedAvg of all layers except normalisation, which stays with each client, running statistics included.

    Example:
        >>> fedbn().parts
        (OwnNormalisation(),)
    """
    return Recipe("fedbn", (OwnNormalisation(),))
