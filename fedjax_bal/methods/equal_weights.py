"""Updates with equal weights, regardless of the client's size."""

import jax.numpy as jnp

from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.needs import without_other
from fedjax_bal.methods.roles import Need, Weigh, part
from fedjax_bal.methods.scaffold import PlainControls
from fedjax_bal.types import Array, Cohort, ServerContext


@part
class EqualWeights(Weigh):
    """Gives every chain that delivers the same weight, instead of its number of samples.

    References:
        FedBABU (Oh et al., 2022) in the authors' code, like many others.
    """

    ignores_sizes = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires weights that still contain the number of samples."""
        why = "whose updates weigh the same already"
        return (without_other("equal_weights", self, PlainControls, because=why),)

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Divides by the number of samples, which preserves the factors of other parts."""
        return weights / jnp.maximum(cohort.sizes, 1.0)


@recipe("averaging", "oh2022fedbabu")
def equal_weights() -> Recipe:
    """FedAvg with equal weights, regardless of the number of samples.

    It can be added to another method: `combine(fedbabu(), equal_weights())` averages as FedBABU's authors do.

    Example:
        >>> equal_weights().parts
        (EqualWeights(),)
    """
    return Recipe("equal_weights", (EqualWeights(),))
