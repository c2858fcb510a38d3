"""FedVARP: the latest updates of all clients stand in for those who are absent, without bias."""

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.mifa import LatestUpdates
from fedjax_bal.methods.roles import part, static
from fedjax_bal.types import PyTree, ServerContext


@part
class SurrogateUpdates(LatestUpdates):
    r"""Moves the model by $\bar y + \sum_{k \in S} p_k (\Delta_k - y_k)$, and then sets $y_k = \Delta_k$ for k in S.

    $\bar y$ is the mean of the latest updates of all clients before this round, and $p_k$ is the cohort weight of
    client k, 1 / |S| unless sizes count. If cohorts are drawn uniformly, the mean over cohorts is the mean update of
    all clients.

    Attributes:
        by_rate: whether updates are divided by the learning rate of their round, and their mean is multiplied by that
            of the current round; if not, an old update counts as it was.
        ignores_sizes: whether all clients count the same; if not, by their number of samples.

    References:
        FedVARP (Jhunjhunwala et al., 2022), Algorithm 2. There updates are also divided by the number of local steps,
        which is the same for all clients; here a client that takes more steps counts more, as in FedAvg. FedAU's
        authors' code doesn't divide by the rate. ClusterFedVARP, which keeps one update for a cluster of clients, isn't
        included. Batch statistics are averaged over the clients that deliver.
    """

    by_rate: bool = static(True)
    ignores_sizes: bool = static(True)

    @property
    def method(self) -> str:
        """The method's name."""
        return "fedvarp"

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Replaces the mean over the cohort by the corrected one; changes by earlier parts are kept."""
        cohort = server.cohort
        unit = self._unit(cohort.learning_rate)
        counted = (cohort.local_steps > 0).sum() if self.ignores_sizes else cohort.sizes.sum()
        counted = jnp.where(counted > 0, counted, 1.0)

        def replace(delta, cohorts, mean, changes):
            return (delta - cohorts) + unit * (mean + changes / counted)

        changes = server.aggregate.reports[self.slot]
        return jax.tree.map(replace, delta, server.aggregate.delta, server.state, changes), server.state


@recipe("absence", "jhunjhunwala2022fedvarp")
def fedvarp(by_rate: bool = True, by_size: bool = False) -> Recipe:
    """Variance reduction on the server: each client's latest update stands in for it while it is absent.

    Each client's latest update is kept, as large as the model.

    Args:
        by_rate: divide updates by the learning rate of their round, and multiply the mean by the current one; matters
            only if the rate changes. Needs a local optimizer with a known learning rate.
        by_size: weight clients by their number of samples instead of equally.

    Example:
        >>> fedvarp().parts
        (SurrogateUpdates(by_rate=True, ignores_sizes=True),)
    """
    return Recipe("fedvarp", (SurrogateUpdates(by_rate, not by_size),))
