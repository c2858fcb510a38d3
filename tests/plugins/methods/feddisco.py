"""FedDisco (Ye et al., ICML 2023): weights that fall with the distance of a client's classes from even ones."""

import jax.numpy as jnp

import fedjax_bal
from fedjax_bal.parts import Weigh, part
from fedjax_bal.recipes import Recipe


@part
class DiscrepancyWeights(Weigh):
    """Weighs by share of samples, minus a times the distance from even classes, plus b, and at least 0."""

    a: float = 0.5
    b: float = 0.1

    def weigh(self, weights, cohort, server):
        counts = cohort.class_counts
        shares = counts / jnp.maximum(counts.sum(-1, keepdims=True), 1)
        distance = jnp.sqrt(((shares - 1 / counts.shape[-1]) ** 2).sum(-1))
        plain = weights / jnp.maximum(weights.sum(), 1e-12)
        fair = jnp.where(weights > 0, jnp.maximum(plain - self.a * distance + self.b, 0), 0)
        return jnp.where(fair.sum() > 0, fair, plain)


@fedjax_bal.register("recipe", "feddisco")
def feddisco(a: float = 0.5, b: float = 0.1) -> Recipe:
    """Aggregation weights that take the discrepancy of a client's classes into account."""
    return Recipe("feddisco", (DiscrepancyWeights(a, b),))
