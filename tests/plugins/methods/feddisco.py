"""FedDisco: aggregation weights that fall with the distance of a client's classes from even ones."""

from typing import Annotated

import jax.numpy as jnp
from annotated_types import Ge

import fedjax_bal
from fedjax_bal.balance import kl_to_uniform
from fedjax_bal.parts import Weigh, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.types import Array, Cohort, ServerContext

from .bibtex import FEDDISCO


@part
class DiscrepancyWeights(Weigh):
    r"""Weighs client k by $\max(0, p_k - a d_k + b)$.

    Here $p_k$ is its share of the cohort's samples, and $d_k$ the divergence of its classes from the uniform
    distribution, as a share of the cohort's sum of divergences. Where no client would have any weight, the weights
    stay as they are.

    Attributes:
        a: weight of the discrepancy; FedAvg's weights are those with a = b = 0.
        b: added to each weight.

    References:
        FedDisco (Ye et al., ICML 2023, arXiv:2305.19229), eq. 6, with the divergence of the authors' scripts, which is
        normalised within the cohort.
    """

    a: float = 0.5
    b: float = 0.1

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """`Float[G]` to `Float[G]`; the engine normalises."""
        shares = weights / jnp.maximum(weights.sum(), 1e-12)
        distances = jnp.where(weights > 0, kl_to_uniform(cohort.class_counts), 0.0)
        distances = distances / jnp.maximum(distances.sum(), 1e-12)
        fair = jnp.where(weights > 0, jnp.maximum(shares - self.a * distances + self.b, 0.0), 0.0)
        return jnp.where(fair.sum() > 0, fair, shares)


@fedjax_bal.register("recipe", "feddisco", citation=FEDDISCO)
def feddisco(a: Annotated[float, Ge(0)] = 0.5, b: Annotated[float, Ge(0)] = 0.1) -> Recipe:
    """FedAvg whose weights take the discrepancy of a client's classes into account.

    Args:
        a: weight of the discrepancy, at least 0.
        b: added to each weight, at least 0.

    References:
        Ye et al., 2023, Algorithm 1.
    """
    return Recipe("feddisco", (DiscrepancyWeights(a, b),))
