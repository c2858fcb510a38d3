"""Updates with equal weights, regardless of the client's size."""

from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.roles import Weigh, part
from fedjax_bal.types import Array, Cohort, ServerContext


@part
class EqualWeights(Weigh):
    """Gives every chain that delivers the same weight, instead of its number of samples.

    References:
        FedBABU (Oh et al., 2022) in the authors' code, like many others.
    """

    ignores_sizes = True

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Leaves the weights equal."""
        return weights


@recipe("averaging", "oh2022fedbabu")
def equal_weights() -> Recipe:
    """FedAvg with equal weights, regardless of the number of samples.

    It can be added to another method: `combine(fedbabu(), equal_weights())` averages as FedBABU's authors do.

    Example:
        >>> equal_weights().parts
        (EqualWeights(),)
    """
    return Recipe("equal_weights", (EqualWeights(),))
