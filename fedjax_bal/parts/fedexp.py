"""FedExP: the server goes further where the clients' updates disagree."""

import jax
import jax.numpy as jnp

from fedjax_bal.parts.part import part, static
from fedjax_bal.parts.roles import Step
from fedjax_bal.types import Array, PyTree, ServerContext


@part
class Extrapolation(Step):
    r"""Multiplies the aggregated update by $\max(1, \frac{\sum_k p_k \|d_k\|^2}{2 (\|d\|^2 + \epsilon)})$.

    $d_k$ are the updates of chains, $p_k$ their weights and d is their mean. The server keeps every chain's update
    until then.

    Attributes:
        epsilon: keeps the factor small where the mean update is.
        decay: factor on epsilon in each round.
        per_client: whether epsilon is multiplied by the number of chains that deliver.

    References:
        FedExP (Jhunjhunwala et al., 2023), Algorithm 1, whose clients weigh the same. The paper
        evaluates the mean of the last two models, which is left out; batch statistics are averaged plainly.
    """

    epsilon: float = 1e-3
    decay: float = 1.0
    per_client: bool = static(False)

    needs_deltas = True

    def step(self, delta: PyTree, server: ServerContext) -> PyTree:
        """The longer update, like params."""
        weights, mean = server.aggregate.weights, server.aggregate.delta
        each = sum(jax.tree.leaves(jax.tree.map(_squares, server.aggregate.deltas)), jnp.zeros(weights.shape))
        whole = sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(mean)), jnp.zeros(()))
        epsilon = self.epsilon * self.decay**server.round
        if self.per_client:
            epsilon *= (weights > 0).sum()
        # An update that doesn't count may be anything, nan too.
        ratio = (weights * jnp.where(weights > 0, each, 0.0)).sum() / (2 * (whole + epsilon))
        return jax.tree.map(lambda leaf: jnp.maximum(ratio, 1.0) * leaf, delta)


def _squares(leaf: Array) -> Array:
    """Squared norms of each chain's leaf, `Float[G]`."""
    return (leaf**2).sum(tuple(range(1, leaf.ndim)))
