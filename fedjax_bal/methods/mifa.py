"""MIFA: the server remembers each client's latest update, and always moves by the mean over all clients."""

import abc

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.needs import shared_model, without_other
from fedjax_bal.methods.roles import Memory, Need, NeedsContext, Reduce, Report, Server, Step, Weigh, part, static
from fedjax_bal.optim import check_known
from fedjax_bal.types import Array, Cohort, Key, Outcome, PyTree, ServerContext, Variables


class LatestUpdates(Memory, Report, Weigh, Step, Server, abc.ABC):
    r"""The base of methods whose server uses the latest update of every client, zeros before the first one.

    $y_k$ is the latest update of client k, or that update divided by the learning rate of its round. The server's state
    is the mean over all clients that can train, $\bar y = \sum_k s_k y_k / \sum_k s_k$, where $s_k$ is 1, or the
    client's size. The updates are stored with the clients, and each client reports the change of its own. As the server
    could store them itself, only the update counts as traffic. Chains are refused: they add up the updates of
    their clients, of which this is the mean, and several passes give a client several updates.
    """

    by_rate: bool

    forbids_chains = True
    adds_reports = True
    travels = False

    @property
    @abc.abstractmethod
    def method(self) -> str:
        """The method's name, for messages."""

    @property
    def slot(self) -> str:
        """The same name for all methods, so that no two of them can be combined."""
        return "LatestUpdates"

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that no other part weights, reduces or clips updates, or keeps leaves of the model on clients."""
        why = "which changes how clients count, while the latest updates of all clients count as if it weren't there"
        averaging = without_other(self.method, self, Weigh, Reduce, because=why)
        shared = shared_model(self.method, "the server can't use the latest updates of clients that are absent")
        return averaging, shared, Need("", self._check_rate), Need("", self._check_clipping)

    def init_memory(self, variables: Variables) -> PyTree:
        """Returns zeros, shaped like the parameters."""
        return jax.tree.map(jnp.zeros_like, variables.params)

    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """Returns this round's update, divided by its learning rate if `by_rate`."""
        unit = self._unit(outcome.ctx.learning_rate)
        return jax.tree.map(lambda y, w: (y - w) / unit, outcome.end.params, outcome.start.params)

    def report(self, outcome: Outcome) -> PyTree:
        """Returns the change of the client's latest update, times its size if sizes count."""
        size = 1 if self.ignores_sizes else outcome.ctx.size
        return jax.tree.map(lambda new, old: size * (new - old), outcome.memory, outcome.ctx.memory[self.slot])

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Leaves the weights equal, or those by size."""
        return weights

    def init_server(self, server: ServerContext) -> PyTree:
        """Returns the mean latest update: zeros, shaped like the parameters."""
        return jax.tree.map(jnp.zeros_like, server.variables.params)

    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, tuple[()]]:
        """Sends nothing: clients only need the model."""
        return server.state, ()

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Returns the mean latest update of all clients after this round."""
        count = server.cohort.num_clients if self.ignores_sizes else server.cohort.total_size
        reports = server.aggregate.reports[self.slot]
        return jax.tree.map(lambda mean, change: mean + change / count, server.state, reports)

    def _unit(self, learning_rate: Array) -> Array | float:
        # A rate of 0 moves no client; its update of 0 is divided by 1.
        return jnp.where(learning_rate > 0, learning_rate, 1.0) if self.by_rate else 1.0

    def _check_rate(self, context: NeedsContext) -> None:
        if self.by_rate:
            check_known(self.method, context.local)

    def _check_clipping(self, context: NeedsContext) -> None:
        if context.clips:
            raise ValueError(
                f"{self.method}: received execution.broken_clients: clip, which shortens the updates of this round, "
                "while the server moves by the stored ones, which aren't clipped: set it to raise or exclude"
            )


@part
class MemorisedUpdates(LatestUpdates):
    r"""Moves the model by $\eta \bar y$, the mean of all clients' latest updates, in which absent clients count, too.

    Attributes:
        by_rate: whether updates are divided by the learning rate of their round, and their mean is multiplied by that
            of the current round; if not, an old update counts as it was.
        ignores_sizes: whether all clients count the same; if not, by their number of samples.

    References:
        MIFA (Gu et al., 2021), Algorithm 1, and the authors' code. There all clients take part in the first round; the
        code either waits until each client has been available once, or begins with zeros, as here. FedAU's authors'
        code doesn't divide by the rate. Here, as with all methods, a round in which no client delivers leaves the model
        unchanged; in these, the model moves by the mean of old updates. Batch statistics are averaged over the clients
        that deliver.
    """

    by_rate: bool = static(True)
    ignores_sizes: bool = static(True)

    @property
    def method(self) -> str:
        """The method's name."""
        return "mifa"

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Replaces the mean over the cohort by that over all clients; changes by earlier parts are kept."""
        unit = self._unit(server.cohort.learning_rate)
        mean = self.update(server.key, server)
        replace = lambda delta, cohorts, mean: (delta - cohorts) + unit * mean
        return jax.tree.map(replace, delta, server.aggregate.delta, mean), server.state


@recipe("absence", "gu2021mifa")
def mifa(by_rate: bool = True, by_size: bool = False) -> Recipe:
    """The server moves by the mean of all clients' latest updates, those of absent clients included.

    Each client's latest update is kept, as large as the model.

    Args:
        by_rate: divide updates by the learning rate of their round, and multiply the mean by the current one; matters
            only if the rate changes. Needs a local optimizer with a known learning rate.
        by_size: weight clients by their number of samples instead of equally.

    Example:
        >>> mifa().parts
        (MemorisedUpdates(by_rate=True, ignores_sizes=True),)
    """
    return Recipe("mifa", (MemorisedUpdates(by_rate, not by_size),))
