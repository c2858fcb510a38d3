"""FedCM: every local step moves partly in the direction of the last mean update."""

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import PositiveShare, Recipe, recipe
from fedjax_bal.methods.fednova import accumulated_steps
from fedjax_bal.methods.needs import fresh_momentum, plain_sgd, without_other
from fedjax_bal.methods.roles import Gradient, Need, Personal, Server, part
from fedjax_bal.types import Context, Key, PyTree, ServerContext


@part
class ClientMomentum(Gradient, Server):
    r"""Replaces the gradient g with $\alpha g + (1 - \alpha) m$.

    m is the last mean update in units of a plain local step, $-d / (\eta \bar \tau)$, where $\bar \tau$ is the mean
    number of plain steps that the updates are equivalent to; m is 0 in the first round. A round without updates keeps
    m.

    Attributes:
        alpha: share of the client's own gradient, in (0, 1].

    References:
        FedCM (Xu et al., 2021); MoFedSAM (Qu et al., 2022) with gradients at shifted parameters. The default is that of
        github.com/woodenchild95/FL-Simulator. Updates are averaged by number of samples; add `equal_weights` for the
        paper's uniform average.
    """

    alpha: float = 0.1

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires updates that are equivalent to a known number of local steps, for all leaves."""
        reason = "an update is known in units of local steps for plain SGD only"
        why = "whose leaves stay with the clients, so the server has no momentum for them"
        alone = without_other("fedcm", self, Personal, because=why)
        return fresh_momentum(self.slot), plain_sgd("fedcm", reason), alone

    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Returns the mixed gradient, shaped like the parameters."""
        mix = lambda g, m: self.alpha * g + (1.0 - self.alpha) * m
        return jax.tree.map(mix, grads, ctx.broadcast[self.slot])

    def init_server(self, server: ServerContext) -> PyTree:
        """Returns zeros, shaped like the parameters."""
        return jax.tree.map(jnp.zeros_like, server.variables.params)

    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Sends the momentum to every client."""
        return server.state, server.state

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Returns the mean update in units of a local step."""
        cohort = server.cohort
        reach = cohort.full_steps
        if reach is None:
            reach = accumulated_steps(cohort.local_steps, cohort.momentum)
        mean = cohort.learning_rate * (server.aggregate.weights * cohort.passes * reach.sum(-1)).sum()
        far = jnp.where(mean > 0, mean, 1.0)
        change = lambda old, delta: jnp.where(mean > 0, -delta / far, old)
        return jax.tree.map(change, server.state, server.aggregate.delta)


@recipe("drift", "xu2021fedcm")
def fedcm(alpha: PositiveShare = 0.1) -> Recipe:
    """Client-level momentum: every local gradient is mixed with the direction of the last mean update.

    Args:
        alpha: share of the client's own gradient, above 0; 1 is FedAvg. Needs plain SGD on clients.

    Example:
        >>> fedcm().parts
        (ClientMomentum(alpha=0.1),)
    """
    return Recipe("fedcm", (ClientMomentum(alpha),))
