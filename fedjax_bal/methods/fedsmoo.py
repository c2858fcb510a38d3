"""FedSMOO: dynamic regularisation of the parameters and of the shifts uphill at which gradients are taken."""

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.feddyn import DynamicRegularisation
from fedjax_bal.methods.fedsam import SMALLEST
from fedjax_bal.methods.roles import Memory, Report, Server, Shift, Steps, part
from fedjax_bal.types import Batch, Context, Key, Outcome, Outputs, PyTree, ServerContext, Variables


@part
class ConsistentAscent(Shift, Steps, Memory, Report, Server):
    r"""Takes the gradient at $y + e$, with $e = \rho d / \|d\|$ and $d = g - \mu_k - s$.

    g is the gradient at y, s the server's estimate of all clients' shift, and $\mu_k$ the client's dual variable of the
    constraint that its shift equals s: every local step adds $e - s$ to it. It is 0 for a client that never trained,
    and kept between local trainings. The server takes $s = \rho \bar \mu / \|\bar \mu\|$ for the next round, with the
    mean over the clients that delivered; s is 0 in the first round.

    Attributes:
        rho: length of the shift.

    References:
        FedSMOO (Sun et al., 2023), as in the authors' code, github.com/woodenchild95/FL-Simulator, which also gives the
        default. Its server leaves out the clients' last shifts, which the paper's estimate contains, because their norm
        is small.
    """

    rho: float = 0.1

    def init_memory(self, variables: Variables) -> PyTree:
        """Returns zeros, shaped like the parameters."""
        return jax.tree.map(jnp.zeros_like, variables.params)

    def init_steps(self, ctx: Context) -> PyTree:
        """Returns the client's dual variable."""
        return ctx.memory[self.slot]

    def shift(self, params: PyTree, grads: PyTree | None, ctx: Context) -> PyTree:
        """Returns the shifted parameters."""
        dual = ctx.steps_state[self.slot]
        uphill = ctx.only_trained(jax.tree.map(lambda g, mu, s: g - mu - s, grads, dual, ctx.broadcast[self.slot]))
        return optax.tree.add_scale(params, self.rho / (optax.tree.norm(uphill) + SMALLEST), uphill)

    def next_steps(self, carry: PyTree, outputs: Outputs, batch: Batch, ctx: Context) -> PyTree:
        """Adds the difference between this step's shift and the server's estimate."""
        if ctx.shift is None:  # the pass that computes the gradient for the shift
            return carry
        excess = jax.tree.map(jnp.subtract, ctx.shift, ctx.only_trained(ctx.broadcast[self.slot]))
        return jax.tree.map(jnp.add, carry, excess)

    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """Keeps the dual variable after the last step."""
        return outcome.ctx.steps_state[self.slot]

    def report(self, outcome: Outcome) -> PyTree:
        """Returns the client's dual variable."""
        return outcome.memory

    def init_server(self, server: ServerContext) -> PyTree:
        """Returns zeros, shaped like the parameters."""
        return jax.tree.map(jnp.zeros_like, server.variables.params)

    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Sends the estimate of the shift to every client."""
        return server.state, server.state

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Returns the mean dual variable, scaled to the length of a shift."""
        count = jnp.maximum((server.cohort.local_steps > 0).sum(), 1)
        mean = jax.tree.map(lambda total: total / count, server.aggregate.reports[self.slot])
        return optax.tree.scale(self.rho / (optax.tree.norm(mean) + SMALLEST), mean)


@recipe("flatness", "sun2023fedsmoo")
def fedsmoo(rho: NonNegative = 0.1, weight: NonNegative = 0.1, clip: NonNegative | None = 10.0) -> Recipe:
    """Dynamic regularisation, with gradients taken uphill, at shifts on which the clients are also made to agree.

    Args:
        rho: length of the shift uphill, at least 0; 0 is `feddyn` without its adaptive weight. Each local step takes
            two passes through the model, and each client remembers two models.
        weight: weight of the penalty on a client's accumulated drift, at least 0.
        clip: largest norm of a local gradient; None or 0 for no limit.

    Example:
        >>> [part.slot for part in fedsmoo().parts]
        ['ConsistentAscent', 'DynamicRegularisation']

    References:
        Sun et al., 2023; the defaults are those of the authors' code, in which the penalty's part that shrinks the
        parameters is a weight decay, and therefore isn't clipped. That code has another weight decay of 0.001 in every
        local optimizer: set the optimizer's weight_decay.
    """
    return Recipe("fedsmoo", (ConsistentAscent(rho), DynamicRegularisation(weight, False, clip or None, in_loss=False)))
