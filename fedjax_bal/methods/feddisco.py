"""FedDisco: clients with less balanced classes get smaller weights."""

import jax.numpy as jnp

from fedjax_bal.balance import kl_to_uniform
from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.needs import weighted_mean
from fedjax_bal.methods.roles import Need, NeedsContext, Step, Weigh, part, parts_with
from fedjax_bal.types import Array, Cohort, ServerContext


@part
class DiscrepancyWeights(Weigh):
    r"""Weights client k by $\max(0, p_k - a d_k + b)$.

    $p_k$ is the client's share of the cohort's samples, and $d_k$ the divergence of its classes from uniform, as a
    share of the cohort's sum of divergences. If all weights would be 0, they are left unchanged.

    Attributes:
        a: weight of the discrepancy; with a = b = 0 this is FedAvg.
        b: added to each weight.

    References:
        FedDisco (Ye et al., 2023), eq. 6, with the authors' code's default divergence and default values.
    """

    a: float = 0.5
    b: float = 0.1

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that this part receives shares of the cohort, and that its weights count."""
        return weighted_mean("feddisco"), Need("", self._check_order)

    def _check_order(self, context: NeedsContext) -> None:
        place = [part.slot for part in context.parts].index(self.slot)
        for other in parts_with(context.parts[:place], Weigh):
            if isinstance(other, Step):
                raise ValueError(
                    f"feddisco: received {other.slot} before it, which couldn't find its own weights in those of "
                    "feddisco: name feddisco first"
                )

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Maps `Float[G]` to `Float[G]`; the engine normalises the result."""
        shares = weights / jnp.maximum(weights.sum(), 1e-12)
        distances = jnp.where(weights > 0, kl_to_uniform(cohort.class_counts), 0.0)
        distances = distances / jnp.maximum(distances.sum(), 1e-12)
        fair = jnp.where(weights > 0, jnp.maximum(shares - self.a * distances + self.b, 0.0), 0.0)
        return jnp.where(fair.sum() > 0, fair, shares)


@recipe("averaging", "ye2023feddisco")
def feddisco(a: NonNegative = 0.5, b: NonNegative = 0.1) -> Recipe:
    """FedAvg in which clients with less balanced classes get smaller weights.

    Args:
        a: weight of the divergence from balanced classes, at least 0.
        b: added to each weight, at least 0; with a = b = 0 this is FedAvg.

    Example:
        >>> feddisco().parts
        (DiscrepancyWeights(a=0.5, b=0.1),)
    """
    return Recipe("feddisco", (DiscrepancyWeights(a, b),))
