"""CLIMB: clients whose loss is far above the mean weigh more, by a dual variable for each."""

import jax.numpy as jnp

from fedjax_bal.methods.combine import Count, NonNegative, Recipe, recipe
from fedjax_bal.methods.needs import apart_from
from fedjax_bal.methods.part import Need, part, static
from fedjax_bal.methods.roles import Server, Weigh
from fedjax_bal.types import Array, Cohort, Key, ServerContext

_LARGEST = 100.0


@part
class DualWeights(Weigh, Server):
    r"""Weighs client i by $1 + \lambda_i - \bar\lambda$, at least 0, with the mean $\bar\lambda$ over all N clients.

    $\lambda$ belongs to the constraint that no client's loss $f_i$ exceeds the mean loss by more than $\epsilon$. It
    begins at 0 and moves, after every `interval` rounds, by $\eta (f_i - \bar f - \epsilon) / N$ for the clients of the
    round, whose mean loss is $\bar f$, within [0, 100]. If no update arrives in such a round, $\lambda$ waits for the
    next one. A chain of several clients weighs their mean.

    Attributes:
        rate: $\eta$.
        tolerance: $\epsilon$.
        interval: rounds from one change of $\lambda$ to the next.

    References:
        CLIMB (Shen et al., 2022), with constants of the authors' code. There f is the loss, of all clients, of the
        model before the first round of the interval; here it is the mean over the local training of those that deliver,
        which takes no other pass. Weights are made to sum to 1 over the cohort, and negative ones are 0.
    """

    rate: float = 1.0
    tolerance: float = 1.0
    interval: int = static(5)

    ignores_sizes = True
    needs_losses = True
    travels = False

    @property
    def needs(self) -> tuple[Need, ...]:
        """No other part that weighs clients; most of them take their sizes out as well."""
        why = "which weighs clients, too, so that it isn't clear how much their losses count"
        return (apart_from("climb", self, Weigh, because=why),)

    def init_server(self, server: ServerContext) -> Array:
        """Lambda, `Float[N]`."""
        return jnp.zeros(server.federation.num_clients)

    def broadcast(self, key: Key, server: ServerContext) -> tuple[Array, tuple[()]]:
        """Clients need nothing but the model."""
        return server.state, ()

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """The same for every client, whatever its size, but for lambda."""
        counted = cohort.local_steps > 0
        own = server.state.at[cohort.clients].get(mode="fill", fill_value=0.0)
        means = jnp.where(counted, own, 0.0).sum(1) / jnp.maximum(counted.sum(1), 1)
        return weights / jnp.maximum(cohort.sizes, 1.0) * jnp.maximum(1.0 + means - server.state.mean(), 0.0)

    def update(self, key: Key, server: ServerContext) -> Array:
        """The next lambda."""
        losses = server.aggregate.losses
        known = jnp.isfinite(losses) & ((server.round + 1) % self.interval == 0)
        mean = jnp.where(known, losses, 0.0).sum() / jnp.maximum(known.sum(), 1)
        change = self.rate * (losses - mean - self.tolerance) / len(server.state)
        moved = server.state.at[server.cohort.clients].add(jnp.where(known, change, 0.0), mode="drop")
        return jnp.clip(moved, 0.0, _LARGEST)


@recipe("long_tail", "shen2022climb")
def climb(rate: NonNegative = 1.0, tolerance: NonNegative = 1.0, interval: Count = 5) -> Recipe:
    """FedAvg in which the clients with the highest losses weigh more and more, instead of the largest ones.

    Args:
        rate: of the dual variables, at least 0; 0 is FedAvg whose clients weigh the same.
        tolerance: how far a client's loss may exceed the mean, at least 0.
        interval: rounds from one change of the dual variables to the next.

    Example:
        >>> climb(tolerance=0.1).parts
        (DualWeights(rate=1.0, tolerance=0.1, interval=5),)
    """
    return Recipe("climb", (DualWeights(rate, tolerance, interval),))
