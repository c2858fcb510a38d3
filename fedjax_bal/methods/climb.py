"""CLIMB: a dual variable for each client increases the weight of clients whose loss is far above the mean."""

import jax.numpy as jnp

from fedjax_bal.methods.combine import Count, NonNegative, Recipe, recipe
from fedjax_bal.methods.needs import weighted_mean, without_other
from fedjax_bal.methods.roles import Need, Server, Weigh, part, static
from fedjax_bal.types import Array, Cohort, Key, ServerContext

_LARGEST = 100.0


@part
class DualWeights(Weigh, Server):
    r"""Weights client i by $1 + \lambda_i - \bar\lambda$, at least 0; the mean is over the N clients that can train.

    $\lambda$ is the dual variable of the constraint that no client's loss $f_i$ exceeds the mean loss by more than
    $\epsilon$. It starts at 0. After every `interval` rounds it changes by $\eta (f_i - \bar f - \epsilon) / N$ for the
    clients of the round, whose mean loss is $\bar f$, and is clipped to [0, 100]. If no update arrives in such a round,
    $\lambda$ changes one interval later. A chain of several clients gets their mean weight.

    Attributes:
        rate: $\eta$.
        tolerance: $\epsilon$.
        interval: rounds from one change of $\lambda$ to the next.

    References:
        CLIMB (Shen et al., 2022), with constants of the authors' code. There f is the loss of all clients under the
        model before the first round of the interval; here it is the mean loss during local training of the clients that
        deliver, which costs no extra pass. Weights are normalised over the cohort, and negative ones are set to 0.
    """

    rate: float = 1.0
    tolerance: float = 1.0
    interval: int = static(5)

    ignores_sizes = True
    needs_losses = True
    travels = False

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that its weights count, and that no other part weights clients; most ignore their sizes, too."""
        why = "which weighs clients, too, so it isn't clear how much their losses count"
        return weighted_mean("climb"), without_other("climb", self, Weigh, because=why)

    def init_server(self, server: ServerContext) -> Array:
        """Returns the initial lambda, `Float[N]`."""
        return jnp.zeros(server.federation.num_clients)

    def broadcast(self, key: Key, server: ServerContext) -> tuple[Array, tuple[()]]:
        """Sends nothing: clients only need the model."""
        return server.state, ()

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Weights clients by lambda only, regardless of their sizes."""
        counted = cohort.local_steps > 0
        # Empty places hold the client number N, which is out of range: reads give 0, and `update` drops their writes.
        own = server.state.at[cohort.clients].get(mode="fill", fill_value=0.0)
        means = jnp.where(counted, own, 0.0).sum(1) / jnp.maximum(counted.sum(1), 1)
        return weights * jnp.maximum(1.0 + means - server.state.sum() / cohort.num_clients, 0.0)

    def update(self, key: Key, server: ServerContext) -> Array:
        """Returns the next lambda."""
        losses = server.aggregate.losses
        known = jnp.isfinite(losses) & ((server.round + 1) % self.interval == 0)
        mean = jnp.where(known, losses, 0.0).sum() / jnp.maximum(known.sum(), 1)
        cohort = server.cohort
        change = self.rate * (losses - mean - self.tolerance) / cohort.num_clients
        moved = server.state.at[cohort.clients].add(jnp.where(known, change, 0.0), mode="drop")
        return jnp.clip(moved, 0.0, _LARGEST)


@recipe("long_tail", "shen2022climb")
def climb(rate: NonNegative = 1.0, tolerance: NonNegative = 1.0, interval: Count = 5) -> Recipe:
    """FedAvg that weights clients with high losses more and more, instead of weighting clients by their size.

    Args:
        rate: step size of the dual variables, at least 0; 0 is FedAvg with equal weights.
        tolerance: how far a client's loss may exceed the mean, at least 0.
        interval: rounds from one change of the dual variables to the next.

    Example:
        >>> climb(tolerance=0.1).parts
        (DualWeights(rate=1.0, tolerance=0.1, interval=5),)
    """
    return Recipe("climb", (DualWeights(rate, tolerance, interval),))
