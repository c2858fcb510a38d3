"""FedExP: the server takes a longer step if the clients' updates disagree."""

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import Positive, PositiveShare, Recipe, recipe
from fedjax_bal.methods.roles import Step, part, static
from fedjax_bal.types import Array, PyTree, ServerContext


@part
class Extrapolation(Step):
    r"""Multiplies the aggregated update by $\max(1, \frac{\sum_k p_k \|d_k\|^2}{2 (\|d\|^2 + \epsilon)})$.

    $d_k$ are the updates of chains, $p_k$ their weights and d is their mean. The server must keep every chain's update
    for this.

    Attributes:
        epsilon: keeps the factor small if the mean update is small.
        decay: factor on epsilon in each round.
        per_client: whether epsilon is multiplied by the number of chains that deliver.

    References:
        FedExP (Jhunjhunwala et al., 2023), Algorithm 1, whose clients have equal weights. The paper evaluates the mean
        of the last two models, which is omitted here; batch statistics are averaged as in FedAvg. The default of
        epsilon is that of FedDecorr's code. The authors' code has `per_client=True`, and as `decay` the square of the
        factor by which the local learning rate decays in a round.
    """

    epsilon: float = 1e-3
    decay: float = 1.0
    per_client: bool = static(False)

    needs_deltas = True

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Returns the extrapolated update, shaped like the parameters."""
        weights = server.aggregate.weights
        mean = server.aggregate.delta
        each = sum(jax.tree.leaves(jax.tree.map(_squares, server.aggregate.deltas)), jnp.zeros(weights.shape))
        whole = sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(mean)), jnp.zeros(()))
        epsilon = self.epsilon * self.decay**server.round
        if self.per_client:
            epsilon *= (weights > 0).sum()
        # Excluded updates may contain anything, even nan.
        ratio = (weights * jnp.where(weights > 0, each, 0.0)).sum() / (2 * (whole + epsilon))
        return jax.tree.map(lambda leaf: jnp.maximum(ratio, 1.0) * leaf, delta), server.state


def _squares(leaf: Array) -> Array:
    """Returns the squared norms of each chain's leaf, `Float[G]`."""
    return (leaf**2).sum(tuple(range(1, leaf.ndim)))


@recipe("averaging", "jhunjhunwala2023fedexp")
def fedexp(epsilon: Positive = 0.001, per_client: bool = False, decay: PositiveShare = 1.0) -> Recipe:
    """FedAvg whose server extrapolates beyond the mean update if clients disagree.

    Args:
        epsilon: above 0; the larger, the shorter the step for small updates.
        per_client: multiply epsilon by the number of clients in the round.
        decay: factor on epsilon in each round, above 0 and at most 1.

    Example:
        >>> fedexp().parts
        (Extrapolation(epsilon=0.001, decay=1.0, per_client=False),)
    """
    return Recipe("fedexp", (Extrapolation(epsilon, decay, per_client),))
