"""FedBuff: asynchronous rounds, in which stale updates count less."""

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import Count, NonNegative, Recipe, recipe
from fedjax_bal.methods.needs import only_rescaling, without_other
from fedjax_bal.methods.roles import Need, Reduce, Step, Weigh, part
from fedjax_bal.selection import Choice
from fedjax_bal.types import Array, Cohort, PyTree, ServerContext


@part
class StalenessWeights(Weigh, Step):
    r"""Scales an update that is stale by s rounds by $(1 + s)^{-a}$, and doesn't scale the others up instead.

    The server moves by $\sum_k p_k (1 + s_k)^{-a} \Delta_k$, where $\Delta_k$ is the change of the model that client k
    received, and $p_k$ are the cohort weights without this part. Batch statistics are averaged with the scaled weights,
    normalised. In synchronous rounds it does nothing.

    The engine normalises weights. With the result $v_k$, the mean change is $\sum_k v_k \Delta_k$, and
    $\sum_k p_k (1 + s_k)^{-a} = \sum_k v_k / \sum_k v_k (1 + s_k)^a$ restores its length.

    Attributes:
        exponent: a.

    References:
        FedBuff (Nguyen et al., 2022), Algorithm 1, with the scaling of its experiments, a = 1/2. There $p_k = 1 / K$,
        for which `equal_weights` is added. In the authors' simulator FLSim, scales are relative to that of an update
        that is stale by one round, and the sum isn't divided by K; the server's learning rate makes up for both.
    """

    exponent: float = 0.5

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires a mean of the updates, which no other part rescales after weighting."""
        why = "which makes one update of all without looking at the weights of stale ones"
        rescaled = "which also weights updates and then rescales their mean, so neither would find the weights "
        rescaled += "that it assumes"
        instead = ": selection: {name: buffered} makes its rounds asynchronous without scaling stale updates"
        return (
            without_other("fedbuff", self, Reduce, because=why),
            only_rescaling("fedbuff", self, because=rescaled, remedy=instead),
        )

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Returns the scaled weights, which are normalised afterwards."""
        return weights if cohort.staleness is None else weights * self._scales(cohort.staleness)

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Returns the mean update times the cohort's mean scale, shaped like the parameters."""
        staleness = server.cohort.staleness
        if staleness is None:
            return delta, server.state
        weights = server.aggregate.weights
        # Both sums are equal, not only up to rounding, if no update is stale: the mean then keeps its bits.
        unscaled = (weights / self._scales(staleness)).sum()
        length = jnp.where(unscaled > 0, weights.sum() / jnp.where(unscaled > 0, unscaled, 1.0), 1.0)
        return jax.tree.map(lambda leaf: length * leaf, delta), server.state

    def _scales(self, staleness: Array) -> Array:
        return (1.0 + staleness) ** -jnp.asarray(self.exponent, float)


@recipe("averaging", "nguyen2022fedbuff")
def fedbuff(concurrency: Count | None = None, max_staleness: Count = 20, exponent: NonNegative = 0.5) -> Recipe:
    """Asynchronous rounds: the server makes a step when K updates have arrived, and scales stale ones down.

    K is the run's number of clients per round. Clients need speeds (`speed`) for the time that rounds take to be
    reported, and to differ by more than their numbers of local steps. Updates are weighted by number of samples; with
    `equal_weights` they all count the same, as in the paper. Combined with another method, a client uses what it
    received with its model, such as SCAFFOLD's control variate, even if the server has a newer one by then.

    Args:
        concurrency: M, the largest number of clients that train at the same time; by default twice the clients per
            round.
        max_staleness: an update that is stale by more rounds isn't used. The models of so many rounds are kept on each
            device.
        exponent: a, at least 0. An update that is stale by s rounds is scaled by 1 / (1 + s)^a; 0 scales none.

    Example:
        >>> fedbuff().parts
        (StalenessWeights(exponent=0.5),)
        >>> fedbuff(concurrency=20).selector
        Choice(name='buffered', options=(('concurrency', 20), ('max_staleness', 20)))

        Rounds of 2 updates, while 4 clients train at speeds that differ a lot. Each update began so many rounds before:

        >>> from fedjax_bal import Participation, make_round, models
        >>> from fedjax_bal.selection import speed
        >>> from fedjax_bal.testing.toy import federation
        >>> clients = Participation(clients_per_round=2, speed=speed.lognormal(median=10, sigma=1))
        >>> network = models.build("mlp", 3, (1, 4, 1))
        >>> round_fn = make_round(fedbuff(concurrency=4), network, federation(), participation=clients)
        >>> round_fn.plans(seed=0, rounds=4).staleness[:, :, 0].tolist()
        [[0, 0], [1, 0], [0, 1], [0, 1]]
    """
    options = (("concurrency", concurrency), ("max_staleness", max_staleness))
    return Recipe("fedbuff", (StalenessWeights(exponent),), selector=Choice("buffered", options))
