"""FedAU: an update counts as often as its client usually stays away; and the two weightings that FedAU replaces."""

import abc
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import Count, PositiveShare, Recipe, recipe
from fedjax_bal.methods.needs import only_rescaling, weighted_mean
from fedjax_bal.methods.roles import Need, NeedsContext, Server, Step, Weigh, part, parts_with, static
from fedjax_bal.types import Array, Cohort, Key, PyTree, ServerContext


class AbsenceWeights(Weigh, Step, abc.ABC):
    r"""The base of both weightings: scales the update of client k by $\omega_k$, and counts absent clients as zeros.

    The server moves by $s \sum_k p_k \omega_k \Delta_k$, where $p_k$ are the cohort weights without this part and s is
    the delivering clients' share of the N clients that can train, or of their samples. With equal weights that is
    $\frac{1}{N} \sum_k \omega_k \Delta_k$. If $\omega_k$ is one by the probability that client k delivers, the mean
    over rounds is that of a federation without absence.

    A chain of several clients gets their mean $\omega$. The engine normalises weights. With the result $v_k$, the mean
    change is $\sum_k v_k \Delta_k$, and $\sum_k p_k \omega_k = \sum_k v_k / \sum_k v_k / \omega_k$ restores its length.
    Batch statistics are averaged with the scaled weights, normalised.
    """

    @property
    def slot(self) -> str:
        """The same name for both, so that they can't be combined."""
        return "AbsenceWeights"

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires a mean of the updates with their weights, which no other part rescales after weighting."""
        why = "which also weights updates and changes their mean, so absence would be corrected twice or wrongly"
        return weighted_mean("fedau"), only_rescaling("fedau", self, because=why), Need("", self._check_sizes)

    @abc.abstractmethod
    def factors(self, server: ServerContext) -> Array:
        """Returns omega of each client, `Float[N]`, at least 1."""

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Returns the scaled weights, which are normalised afterwards."""
        return weights * self._of_chains(cohort, server)

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Returns the mean update times the sum of scaled weights and the share, shaped like the parameters."""
        cohort = server.cohort
        if self.ignores_sizes:
            share = (cohort.local_steps > 0).sum() / cohort.num_clients
        else:
            share = cohort.sizes.sum() / jnp.maximum(cohort.total_size, 1.0)
        weights = server.aggregate.weights
        unscaled = (weights / self._of_chains(cohort, server)).sum()
        length = share * weights.sum() / jnp.where(unscaled > 0, unscaled, 1.0)
        return jax.tree.map(lambda leaf: length * leaf, delta), server.state

    def _of_chains(self, cohort: Cohort, server: ServerContext) -> Array:
        delivered = cohort.local_steps > 0
        # Empty places hold the client number N, which is out of range.
        each = self.factors(server).at[cohort.clients].get(mode="fill", fill_value=1.0)
        number = delivered.sum(1)
        return jnp.where(number > 0, jnp.where(delivered, each, 0.0).sum(1) / jnp.maximum(number, 1), 1.0)

    def _check_sizes(self, context: NeedsContext) -> None:
        for other in parts_with(context.parts, Weigh):
            if other.ignores_sizes and not self.ignores_sizes:
                raise ValueError(
                    f"fedau: received by_size with {other.slot}, which gives all updates the same weight; set by_size "
                    "to false, or leave the other out"
                )


class Intervals(NamedTuple):
    """Each client's rounds from one delivery to the next; leaves `Float[N]`.

    Attributes:
        total: the sum of the recorded intervals.
        count: their number.
        waited: the rounds since the last recorded interval, including the current one.
    """

    total: Array
    count: Array
    waited: Array


@part
class IntervalWeights(AbsenceWeights, Server):
    r"""Scales an update by the mean number of rounds from one delivery of its client to the next.

    A client that delivers for the first time has $\omega = 1$. An absence that reaches K rounds is recorded as an
    interval of K rounds, and the next one begins, so that $\omega$ never exceeds K. A client is absent from a round if
    the server gets no update from it for whatever reason: it wasn't available, not selected, lost its update, or was
    excluded.

    Attributes:
        cutoff: K; None for no limit.
        ignores_sizes: whether all clients count the same; if not, by their number of samples.

    References:
        FedAU (Wang and Ji, 2024), Algorithms 1 and 2, and the authors' code, where weights of a round don't depend on
        who takes part in it, as here. The paper's objective is the plain mean over clients. The code scales batch
        statistics like parameters.
    """

    cutoff: float | None = 50.0
    ignores_sizes: bool = static(True)

    def factors(self, server: ServerContext) -> Array:
        """Returns the mean recorded interval of each client; 1 for a client without any."""
        return jnp.where(server.state.count > 0, server.state.total / jnp.maximum(server.state.count, 1.0), 1.0)

    def init_server(self, server: ServerContext) -> Intervals:
        """Returns empty records."""
        zeros = jnp.zeros(server.federation.num_clients)
        return Intervals(zeros, zeros, zeros)

    def broadcast(self, key: Key, server: ServerContext) -> tuple[Intervals, tuple[()]]:
        """Records absences that have reached the cutoff, and counts the round that begins; sends nothing."""
        # Counted here, not in `update`, because a round without any update is a round of absence, too.
        state: Intervals = server.state
        ended = jnp.zeros(state.waited.shape, bool) if self.cutoff is None else state.waited >= self.cutoff
        state = _recorded(state, ended)
        return state._replace(waited=state.waited + 1.0), ()

    def update(self, key: Key, server: ServerContext) -> Intervals:
        """Records the interval of each client that has delivered."""
        cohort = server.cohort
        zeros = jnp.zeros(server.state.waited.shape, bool)
        return _recorded(server.state, zeros.at[cohort.clients].max(cohort.local_steps > 0, mode="drop"))


def _recorded(state: Intervals, ended: Array) -> Intervals:
    return Intervals(
        state.total + jnp.where(ended, state.waited, 0.0), state.count + ended, jnp.where(ended, 0.0, state.waited)
    )


@part
class ProbabilityWeights(AbsenceWeights):
    r"""Scales an update by one over the known probability that its client delivers in a round.

    Attributes:
        probabilities: client i has `probabilities[i % len(probabilities)]`; 1 for all is the average over the N
            clients that can train, in which absent ones count as having kept the model.
        ignores_sizes: whether all clients count the same; if not, by their number of samples.

    References:
        The weightings "known_prob" and "average_all" of FedAU's authors' code.
    """

    probabilities: tuple[float, ...] = (1.0,)
    ignores_sizes: bool = static(True)

    def factors(self, server: ServerContext) -> Array:
        """Returns the inverse probabilities."""
        given = jnp.asarray(self.probabilities, float)
        return (1.0 / given)[jnp.arange(server.federation.num_clients) % len(self.probabilities)]


@recipe("absence", "wang2024fedau")
def fedau(
    weighting: Literal["adaptive", "known_prob", "average_all"] = "adaptive",
    cutoff: Count | None = 50,
    probabilities: Sequence[PositiveShare] | None = None,
    by_size: bool = False,
) -> Recipe:
    """Updates are scaled by the mean number of rounds between their client's deliveries, so that absence doesn't bias.

    Args:
        weighting: "adaptive": FedAU; "known_prob": by one over known probabilities; "average_all": not scaled, so that
            absent clients count as having kept the model, which takes a larger learning rate on the server. The
            fourth weighting of the authors' code, "average_participating", is `equal_weights`.
        cutoff: K, an absence of this many rounds counts as an interval; None for no limit. For "adaptive" only.
        probabilities: for "known_prob", the probability that client i delivers in a round, selection included, is the
            i-th of this list, which repeats.
        by_size: weight clients by their number of samples instead of equally.

    Example:
        >>> fedau().parts
        (IntervalWeights(cutoff=50, ignores_sizes=True),)
        >>> fedau("known_prob", probabilities=[0.5, 0.2]).parts
        (ProbabilityWeights(probabilities=(0.5, 0.2), ignores_sizes=True),)
    """
    if (probabilities is not None) != (weighting == "known_prob"):
        given = "none" if probabilities is None else list(probabilities)
        raise ValueError(
            f"fedau: probabilities: received {given} with weighting={weighting!r}; 'known_prob' needs them, and no "
            "other weighting takes them"
        )
    if weighting == "adaptive":
        return Recipe("fedau", (IntervalWeights(cutoff, not by_size),))
    return Recipe("fedau", (ProbabilityWeights(tuple(probabilities or (1.0,)), not by_size),))
