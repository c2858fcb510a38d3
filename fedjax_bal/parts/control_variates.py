"""SCAFFOLD: control variates against client drift."""

import jax
import jax.numpy as jnp

from fedjax_bal.optimizers import Optimizer
from fedjax_bal.parts.part import part, static
from fedjax_bal.parts.roles import Gradient, Memory, Report, Server, Weigh
from fedjax_bal.types import Aggregate, Array, Cohort, Context, Key, Outcome, PyTree, Shapes, Variables


def momentum_steps(steps: Array, momentum: Array | float) -> Array:
    r"""How many plain steps as many momentum steps amount to.

    $a = (\tau - \rho (1 - \rho^\tau) / (1 - \rho)) / (1 - \rho)$: along a constant gradient g, $\tau$ steps of SGD with
    momentum $\rho$ and learning rate $\eta$ move by $a \eta g$.

    Args:
        steps: tau, `Int[]`.
        momentum: rho, in [0, 1).

    Returns:
        `Float[]`.

    Example:
        >>> [round(float(momentum_steps(t, 0.9)), 2) for t in (1, 2, 3)]
        [1.0, 2.9, 5.61]

    References:
        FedNova (Wang et al., 2020), section 4.1.
    """
    tau = jnp.asarray(steps, jnp.float32)
    return (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)


@part
class ControlVariates(Gradient, Memory, Report, Weigh, Server):
    r"""Corrects each local gradient by the difference of the server's and the client's control variate.

    $y \leftarrow y - \eta (g - c_k + c)$ and, after $\tau$ steps, $c_k^+ = c_k - c + (w - y) / (\tau \eta)$
    (option II). The server takes the plain mean of the updates and
    $c \leftarrow c + \frac{1}{N} \sum_{k \in S} (c_k^+ - c_k)$. A client that doesn't deliver changes neither.

    Attributes:
        with_momentum: allow a local momentum; the drift is then divided by the momentum-equivalent number of steps.

    References:
        SCAFFOLD (Karimireddy et al., 2020), Algorithm 1, option II, with global step size 1. The correction is inside
        the gradient; control variates exist for trainable parameters only.
    """

    with_momentum: bool = static(False)

    def check(self, local: Optimizer) -> None:
        """Refuses local optimizers whose drift is not a multiple of the mean gradient."""
        if local.name != "sgd":
            raise ValueError(
                f"scaffold: received the local optimizer {local.name!r}; its control variates need plain SGD: "
                "set training.optimizer.name to sgd"
            )
        if dict(local.flags).get("nesterov"):
            raise ValueError("scaffold: received nesterov momentum, which control variates don't know; leave it out")
        if local.options.get("momentum") and not self.with_momentum:
            raise ValueError(
                f"scaffold: received a local momentum of {local.momentum}; momentum inflates control variates: "
                "set training.optimizer.momentum to 0, or scaffold_momentum to true to divide by the equivalent steps"
            )

    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """The corrected gradient, like params."""
        del params
        return jax.tree.map(lambda g, own, c: g - own + c, grads, ctx.memory[self.slot], ctx.broadcast[self.slot])

    def init_memory(self, params: PyTree) -> PyTree:
        """Zeros: a client that was never visited has no control variate."""
        return jax.tree.map(jnp.zeros_like, params)

    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """The new control variate of the client; the old one where it took no step."""
        steps = outcome.steps
        equivalent = momentum_steps(steps, outcome.ctx.momentum) if self.with_momentum else steps
        rate = outcome.learning_rate_sum * equivalent / jnp.maximum(steps, 1)
        # Divided by 1, not 0, where nothing was done: `where` picks the old value, but its gradient stays finite.
        rate = jnp.where(rate > 0, rate, 1.0)
        return jax.tree.map(
            lambda own, c, w, y: jnp.where(steps > 0, own - c + (w - y) / rate, own),
            memory,
            outcome.ctx.broadcast[self.slot],
            outcome.start.params,
            outcome.end.params,
        )

    def report(self, outcome: Outcome) -> PyTree:
        """The change of the client's control variate."""
        memory = outcome.ctx.memory[self.slot]
        return jax.tree.map(jnp.subtract, self.remember(memory, outcome), memory)

    def weigh(self, weights: Array, cohort: Cohort) -> Array:
        """Takes the number of samples out again: the same weight for every client that delivers."""
        return weights / jnp.maximum(cohort.sizes, 1.0)

    def init_server(self, variables: Variables, shapes: Shapes) -> PyTree:
        """Zeros, like params."""
        del shapes
        return jax.tree.map(jnp.zeros_like, variables.params)

    def broadcast(self, key: Key, round: Array, state: PyTree, variables: Variables) -> tuple[PyTree, PyTree]:
        """The server's control variate goes to every client."""
        del key, round, variables
        return state, state

    def update(self, key: Key, round: Array, state: PyTree, aggregate: Aggregate, variables: Variables) -> PyTree:
        """Moves by the summed changes over all N clients."""
        del key, round, variables
        total = aggregate.cohort.num_clients
        return jax.tree.map(lambda c, change: c + change / total, state, aggregate.reports[self.slot])
