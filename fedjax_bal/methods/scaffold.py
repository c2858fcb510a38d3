"""SCAFFOLD: control variates against client drift."""

import abc

import jax
import jax.numpy as jnp

from fedjax_bal.methods import roles
from fedjax_bal.methods.combine import Recipe, recipe
from fedjax_bal.methods.fednova import accumulated_steps
from fedjax_bal.methods.needs import fresh_momentum, plain_sgd, without_other
from fedjax_bal.methods.roles import Need, NeedsContext, part, static
from fedjax_bal.types import Array, Cohort, Context, Key, Outcome, PyTree, ServerContext, Variables


class Controls(roles.Memory, roles.Report, roles.Server, abc.ABC):
    """The base of all variants: a control variate for each client, and the server's, which is sent to all clients."""

    adds_reports = True

    @property
    def slot(self) -> str:
        """The same name for all variants, so that no two of them can be combined."""
        return "ControlVariates"

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires plain SGD, and that no leaves stay with the clients."""
        why = "whose leaves stay with the clients, so the server's control variate would mix them"
        alone = without_other("scaffold", self, roles.Personal, because=why)
        return alone, plain_sgd("scaffold", "its control variates need plain SGD")

    def init_memory(self, variables: Variables) -> PyTree:
        """Returns zeros: a client that never trained has no control variate."""
        return jax.tree.map(jnp.zeros_like, variables.params)

    def report(self, outcome: Outcome) -> PyTree:
        """Returns the change of the client's control variate."""
        return jax.tree.map(jnp.subtract, outcome.memory, outcome.ctx.memory[self.slot])

    def init_server(self, server: ServerContext) -> PyTree:
        """Returns zeros, shaped like the parameters."""
        return jax.tree.map(jnp.zeros_like, server.variables.params)

    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Sends the server's control variate to every client."""
        return server.state, server.state

    def moved(self, server: ServerContext, count: Array | int) -> PyTree:
        """Adds the clients' summed changes, divided by `count`, to the server's control variate."""
        return jax.tree.map(lambda c, change: c + change / count, server.state, server.aggregate.reports[self.slot])

    def drifted(self, memory: PyTree, outcome: Outcome, rate: Array) -> PyTree:
        """Returns the client's new control variate by option II: the drift divided by the summed learning rate."""
        # If no step was taken, divide by 1, not 0: `where` selects the old value, but the other branch must be finite.
        moved = (outcome.steps > 0) & (rate > 0)
        rate = jnp.where(moved, rate, 1.0)
        return jax.tree.map(
            lambda own, c, w, y: jnp.where(moved, own - c + (w - y) / rate, own),
            memory,
            outcome.ctx.broadcast[self.slot],
            outcome.start.params,
            outcome.end.params,
        )


class PlainControls(Controls, roles.Gradient, roles.Weigh):
    """The base of variants that correct the gradient, and average updates without weights."""

    ignores_sizes = True

    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Returns the corrected gradient, shaped like the parameters."""
        return jax.tree.map(lambda g, own, c: g - own + c, grads, ctx.memory[self.slot], ctx.broadcast[self.slot])

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Leaves the weights equal."""
        return weights


@part
class ControlVariates(PlainControls):
    r"""Corrects each local gradient by the difference between the server's and the client's control variate.

    $y \leftarrow y - \eta (g - c_k + c)$ and, after $\tau$ steps, $c_k^+ = c_k - c + (w - y) / (\tau \eta)$
    (option II). The server takes the plain mean of the updates and, with N clients that can train,
    $c \leftarrow c + \frac{1}{N} \sum_{k \in S} (c_k^+ - c_k)$. A client that doesn't deliver changes neither variate.

    Attributes:
        with_momentum: allow a local momentum; the drift is then divided by the momentum-equivalent number of steps.

    References:
        SCAFFOLD (Karimireddy et al., 2020), Algorithm 1, option II, with global step size 1. The correction is inside
        the gradient; control variates exist for trainable parameters only.
    """

    with_momentum: bool = static(False)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires local steps whose drift is a multiple of the mean gradient."""
        momentum = Need("" if self.with_momentum else "no local momentum", self._check_momentum)
        return fresh_momentum(self.slot), *super().needs, momentum

    def _check_momentum(self, context: NeedsContext) -> None:
        local = context.local
        if local.options.get("momentum") and not self.with_momentum:
            raise ValueError(
                f"scaffold: received a local momentum of {local.momentum}; momentum inflates control variates: "
                "set training.optimizer.momentum to 0, or scaffold_momentum to true to divide by the equivalent steps"
            )
        if local.options.get("momentum") and local.step_schedule is not None:
            raise ValueError(
                f"scaffold: received a local momentum of {local.momentum} and a step_schedule; how many plain steps "
                "these amount to is known for one of them alone: leave the other out of training.optimizer"
            )

    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """Returns the client's new control variate; the old one if it took no step."""
        steps = outcome.steps
        equivalent = accumulated_steps(steps, outcome.ctx.momentum) if self.with_momentum else steps
        rate = outcome.learning_rate_sum * equivalent / jnp.maximum(steps, 1)
        return self.drifted(memory, outcome, rate)

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Adds the clients' summed changes, divided by N."""
        return self.moved(server, server.cohort.num_clients)


@recipe("drift", "karimireddy2020scaffold")
def scaffold(scaffold_momentum: bool = False) -> Recipe:
    """Control variates against client drift, option II; updates are averaged without weights.

    Args:
        scaffold_momentum: allow a local momentum, dividing the drift by the equivalent number of plain steps.

    Example:
        >>> scaffold().parts
        (ControlVariates(with_momentum=False),)
    """
    return Recipe("scaffold", (ControlVariates(with_momentum=scaffold_momentum),))
