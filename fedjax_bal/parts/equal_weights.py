"""Updates that weigh the same, whatever the size of the client."""

from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Weigh
from fedjax_bal.types import Array, Cohort, ServerContext


@part
class EqualWeights(Weigh):
    """Gives every chain that delivers the same weight, in the place of its number of samples.

    References:
        FedBABU (Oh et al., 2022) in the authors' code, as many others.
    """

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """1 for a chain that counts, 0 for another."""
        return (weights > 0).astype(weights.dtype)
