"""FedDyn: a penalty that aligns the optimum of each client's loss with that of the whole federation."""

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.needs import without_other
from fedjax_bal.methods.roles import (
    Gradient,
    Loss,
    Memory,
    Need,
    Personal,
    Prepare,
    Reduce,
    Server,
    Step,
    Weigh,
    part,
    static,
)
from fedjax_bal.types import Array, Batch, Cohort, Context, Key, Outcome, Outputs, PyTree, ServerContext, Variables


@part
class DynamicRegularisation(Prepare, Loss, Gradient, Memory, Weigh, Step, Server):
    r"""Adds a penalty that depends on a client's accumulated drift.

    A client minimises its own loss plus $\frac{\alpha_k}{2} \| y \|^2 + \alpha_k \langle y, h_k - w \rangle$, where
    $h_k$ is the sum of its changes $y - w$ so far, zeros for a client that never trained. The server takes the plain
    mean of the delivered models and adds $H = \frac{1}{N} \sum_k h_k$ over the N clients that can train. After the
    first round, with full participation, it therefore moves by twice the mean change: this over-relaxation is intended.

    The penalty is computed as $\alpha_k (\frac{1}{2} \| y - w \|^2 + \langle y - w, h_k \rangle)$, which differs by a
    constant and is 0 when local training starts. Reported losses are then comparable, and no precision is lost.

    Attributes:
        alpha: the penalty's weight.
        adaptive: divide it by the client's size relative to the mean size of the clients with rows.
        clip: largest global norm of a gradient, penalty included; None for no limit.
        in_loss: whether the penalty is part of the loss; if not, its gradient is added at the unshifted parameters,
            which makes a difference with a Shift.

    References:
        FedDyn (Acar et al., 2021), Algorithm 1; the adaptive weight and clipping are from the authors' code, where
        $\alpha_k y$ is a weight decay and therefore isn't clipped. The code's state is a gradient, $-\alpha h_k$ here.
        Only trainable parameters are penalised and remembered; batch statistics are averaged as in FedAvg. The defaults
        are those of the authors' code on CIFAR; ReBaFL's comparison uses alpha=1e-4, not adaptive.
    """

    alpha: float = 0.01
    adaptive: bool = static(True)
    clip: float | None = 10.0
    in_loss: bool = static(True)

    ignores_sizes = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that no other part weights or reduces updates, or keeps leaves on the clients."""
        why = (
            "which changes how clients count, while the server's state adds up with a plain mean over those who "
            "deliver only"
        )
        own = "whose leaves stay with the clients, so the server can't add their mean drift"
        averaging = without_other("feddyn", self, Weigh, Reduce, because=why)
        return averaging, without_other("feddyn", self, Personal, because=own)

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Array:
        """Returns the penalty's weight for this client, `Float[]`."""
        if not self.adaptive:
            return jnp.asarray(self.alpha, float)
        offsets = ctx.federation.offsets
        mean_size = offsets[-1].astype(float) / (jnp.diff(offsets) > 0).sum()
        return self.alpha * mean_size / jnp.maximum(ctx.size, 1)

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the penalty, `Float[]`."""
        if not self.in_loss:
            return jnp.zeros(())

        def one(y: Array, w: Array, h: Array) -> Array:
            return jnp.sum((y - w) * (0.5 * (y - w) + h))

        terms = jax.tree.map(one, params, ctx.start.params, ctx.memory[self.slot])
        return ctx.prepared[self.slot] * jnp.stack(jax.tree.leaves(terms)).sum()

    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Returns the clipped gradient, to which the penalty's is added if the loss doesn't contain it."""
        if not self.in_loss:
            weight = ctx.prepared[self.slot]
            own = ctx.memory[self.slot]
            bend = lambda g, y, w, h: g + weight * (y - w + h)
            grads = jax.tree.map(bend, grads, params, ctx.start.params, own)
        return grads if self.clip is None else optax.clip_by_global_norm(self.clip).update(grads, optax.EmptyState())[0]

    def init_memory(self, variables: Variables) -> PyTree:
        """Returns zeros, shaped like the parameters."""
        return jax.tree.map(jnp.zeros_like, variables.params)

    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """Adds this round's change."""
        return jax.tree.map(lambda h, y, w: h + (y - w), memory, outcome.end.params, outcome.start.params)

    def weigh(self, weights: Array, cohort: Cohort, server: ServerContext) -> Array:
        """Gives the same weight to every chain that delivers."""
        return cohort.delivered.astype(weights.dtype)

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Returns the update plus the mean of all clients' memories after this round, and this mean."""
        share = server.cohort.delivered.sum() / server.cohort.num_clients
        mean = jax.tree.map(lambda mean, delta: mean + share * delta, server.state, server.aggregate.delta)
        return jax.tree.map(jnp.add, delta, mean), mean

    def init_server(self, server: ServerContext) -> PyTree:
        """Returns the mean of all clients' memories: zeros, shaped like the parameters."""
        return jax.tree.map(jnp.zeros_like, server.variables.params)

    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Sends nothing: clients only need the model."""
        return server.state, ()

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Keeps the mean that `step` has computed."""
        return server.state


@recipe("drift", "acar2021feddyn")
def feddyn(alpha: NonNegative = 0.01, adaptive: bool = True, clip: NonNegative | None = 10.0) -> Recipe:
    """Dynamic regularisation: a penalty on each client's accumulated drift, whose mean the server adds.

    Args:
        alpha: weight of the penalty, at least 0. At 0 clients train as in FedAvg, but the server still adds their mean
            drift.
        adaptive: divide alpha by the client's size relative to the mean size.
        clip: largest norm of a local gradient; None or 0 for no limit.

    Example:
        >>> feddyn(alpha=1e-4, adaptive=False, clip=None).parts
        (DynamicRegularisation(alpha=0.0001, adaptive=False, clip=None, in_loss=True),)
    """
    return Recipe("feddyn", (DynamicRegularisation(alpha, adaptive, clip or None),))
