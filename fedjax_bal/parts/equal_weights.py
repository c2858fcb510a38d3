"""Updates that weigh the same, whatever the size of the client."""

import jax.numpy as jnp

from fedjax_bal.parts.needs import apart_from
from fedjax_bal.parts.part import Need, part
from fedjax_bal.parts.roles import Weigh
from fedjax_bal.parts.scaffold import ControlVariates
from fedjax_bal.types import Array, Cohort, ServerContext


@part
class EqualWeights(Weigh):
    """Gives every chain that delivers the same weight, instead of its number of samples.

    References:
        FedBABU (Oh et al., 2022) in the authors' code, as many others.
    """

    ignores_sizes = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """Weights that are still numbers of samples."""
        why = "whose updates weigh the same already"
        return (apart_from("equal_weights", self, ControlVariates, because=why),)

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Divides by the number of samples, so that what other parts make of the weights stays."""
        return weights / jnp.maximum(cohort.sizes, 1.0)
