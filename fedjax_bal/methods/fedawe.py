"""FedAWE: a client that returns makes up for the rounds that it missed, and trains from its own last model."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.methods.combine import NonNegative, Positive, Recipe, recipe
from fedjax_bal.methods.needs import only_rescaling, shared_model, without_other
from fedjax_bal.methods.roles import (
    Deliver,
    Memory,
    Need,
    NeedsContext,
    Reduce,
    Report,
    Start,
    Step,
    Weigh,
    part,
    parts_with,
    static,
)
from fedjax_bal.methods.scaffold import Controls
from fedjax_bal.types import Array, Cohort, Context, Outcome, PyTree, ServerContext, Variables


class KeptModel(NamedTuple):
    """What a client keeps between two rounds in which it delivers.

    Attributes:
        variables: the global model after the last of these rounds; the initial model before the first.
        round: the number of that round, from 0; -1 before the first.
    """

    variables: Variables
    round: Array


_SLOT = "EchoedInnovation"


@part
class EchoedInnovation(Start, Deliver, Memory, Weigh):
    r"""Trains from the client's own model, and multiplies its change by the number of rounds since it last delivered.

    A client that last delivered in round $\tau$ starts from $x_k$, the global model after that round, not from the
    current one. After training in round t, it returns $x_k + \eta_g (t - \tau) \Delta_k$, where $\Delta_k$ is the
    change by training ("adaptive innovation echoing"). The server takes the mean of the returned models, and the
    clients that have delivered keep it as their next $x_k$ ("implicit gossiping").

    Attributes:
        server_rate: $\eta_g$.
        ignores_sizes: whether all clients count the same; if not, by their number of samples.

    References:
        FedAWE (Xiang et al., 2024), Algorithm 1. The authors' code clips the mean of $(t - \tau) \Delta_k$, see
        `ClippedInnovation`, and evaluates the mean of all clients' own models; here the server's model is evaluated.
        Running batch statistics belong to $x_k$, but their change isn't multiplied. The traffic is counted as if
        clients received the model when they begin, not after they have delivered. Chains of several clients are
        refused: each would train its own model, not the one that the previous client passes on.
    """

    server_rate: float = 1.0
    ignores_sizes: bool = static(True)

    needs_same_start = True
    forbids_chains = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires a mean of whole models, and that no part takes a returned model for a change of the received one."""
        drift = "whose control variates take the client's change of the received model for its drift, while fedawe "
        drift += "trains from the client's own model"
        scaled = (
            "which scales the mean change of the received model, while fedawe returns changes of clients' own models"
        )
        return (
            without_other("fedawe", self, Controls, because=drift),
            only_rescaling("fedawe", self, because=scaled),
            shared_model("fedawe", "these would be replaced by the server's"),
        )

    def init_memory(self, variables: Variables) -> KeptModel:
        """Returns the initial model."""
        return KeptModel(variables, jnp.full((), -1, jnp.int32))

    def start(self, variables: Variables, ctx: Context) -> Variables:
        """Replaces the received model by the client's own."""
        return ctx.memory[self.slot].variables

    def deliver(self, outcome: Outcome) -> Variables:
        """Returns the client's own model plus its multiplied change."""
        own: KeptModel = outcome.ctx.memory[self.slot]
        scale = self.server_rate * (outcome.ctx.round - own.round)
        return outcome.end._replace(
            params=jax.tree.map(lambda x, y: x + scale * (y - x), own.variables.params, outcome.end.params)
        )

    def remember(self, memory: KeptModel, outcome: Outcome) -> KeptModel:
        """Records the round."""
        return memory._replace(round=outcome.ctx.round)

    def synchronise(self, memory: KeptModel, variables: Variables) -> KeptModel:
        """Replaces the client's own model by the new global one."""
        return memory._replace(variables=variables)

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Leaves the weights equal, or those by size."""
        return weights


@part
class ClippedInnovation(Report, Step):
    r"""Clips the mean of $(t - \tau) \Delta_k$ over the clients that deliver.

    Attributes:
        bound: its largest norm.
        server_rate: $\eta_g$, by which it is multiplied after clipping.

    References:
        The authors' code of FedAWE, where the bound is 0.5.
    """

    bound: float = 0.5
    server_rate: float = 1.0

    travels = False

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires a plain mean over the clients that deliver."""
        why = "which makes one update of all, while fedawe clips a part of their mean"
        return without_other("fedawe", self, Reduce, because=why), Need("", self._check_weights)

    def _check_weights(self, context: NeedsContext) -> None:
        for other in parts_with(context.parts, Weigh):
            if other.slot != _SLOT or not other.ignores_sizes:
                given = "by_size" if other.slot == _SLOT else other.slot
                raise ValueError(
                    f"fedawe: received clip with {given}, which changes how clients count, while the mean that is "
                    "clipped is plain; leave one of the two out"
                )

    def report(self, outcome: Outcome) -> PyTree:
        """Returns how far the client's own model is from the received one; the server, which sent both, knows it."""
        own: KeptModel = outcome.ctx.memory[_SLOT]
        return jax.tree.map(jnp.subtract, own.variables.params, outcome.start.params)

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Returns the mean move of the clients' own models plus the clipped rest."""
        count = jnp.maximum((server.cohort.local_steps > 0).sum(), 1)
        moved = jax.tree.map(lambda total: total / count, server.aggregate.reports[self.slot])
        rest = jax.tree.map(jnp.subtract, delta, moved)
        length = optax.tree.norm(rest)
        bound = self.server_rate * self.bound
        factor = jnp.where(length > bound, bound / jnp.where(length > bound, length, 1.0), 1.0)
        return optax.tree.add_scale(moved, factor, rest), server.state


@recipe("absence", "xiang2024fedawe")
def fedawe(server_rate: Positive = 1.0, clip: NonNegative | None = None, by_size: bool = False) -> Recipe:
    """Clients train from their own last models, and changes are multiplied by the rounds since the last delivery.

    Each client keeps a model.

    Args:
        server_rate: the factor on changes, above 0.
        clip: largest norm of the mean multiplied change, 0.5 in the authors' code; None or 0 for no limit.
        by_size: weight clients by their number of samples instead of equally.

    Example:
        >>> fedawe().parts
        (EchoedInnovation(server_rate=1.0, ignores_sizes=True),)
    """
    parts = (EchoedInnovation(server_rate, not by_size),)
    return Recipe("fedawe", (*parts, ClippedInnovation(clip, server_rate)) if clip else parts)
