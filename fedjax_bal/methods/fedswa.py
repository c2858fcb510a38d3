"""FedSWA and FedMoSWA: the local rate falls in every local training, and the server steps beyond the mean model."""

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import Positive, Recipe, Share, recipe, variants
from fedjax_bal.methods.fedcm import ClientMomentum
from fedjax_bal.methods.fednova import NormalisedAveraging
from fedjax_bal.methods.needs import without_other
from fedjax_bal.methods.roles import Need, NeedsContext, Steps, Update, part
from fedjax_bal.methods.scaffold import ControlVariates, PlainControls
from fedjax_bal.optim import optimizer
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, Outputs, PyTree, ServerContext


@part
class CyclicRate(Steps, Update):
    r"""Lets the learning rate fall linearly in every local training; the next one starts at the full rate again.

    Local step k of K, from 0, is taken at $\eta_k = \eta (1 - k/K + \rho k/K)$, as a share of the optimizer's step:
    momentum and weight decay don't see the falling rate.

    Attributes:
        rho: the share of the rate that a step after the last one would have; 1 for a constant rate.

    References:
        FedSWA (Liu et al., 2025).
    """

    rho: float = 0.1

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that no other part counts on the full rate of all steps."""
        why = "which counts all local steps at the full rate"
        others = (ClientMomentum, NormalisedAveraging, ControlVariates)
        return (without_other("fedswa", self, *others, because=why),)

    def init_steps(self, ctx: Context) -> Array:
        """Returns the initial number of steps, 0."""
        return jnp.zeros((), jnp.int32)

    def next_steps(self, carry: Array, outputs: Outputs, batch: Batch, ctx: Context) -> Array:
        """Counts the step."""
        return carry + 1

    def updates(self, updates: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Returns the optimizer's step at the lower rate."""
        share = 1.0 - (1.0 - self.rho) * ctx.steps_state[self.slot] / jnp.maximum(ctx.steps, 1)
        return jax.tree.map(lambda update: share * update, updates)


@part
class MovingControlVariates(PlainControls):
    r"""Control variates of which the server's is a moving average of the clients'.

    $y \leftarrow y - \eta_k (g - c_k + m)$ and, after K steps, $c_k^+ = c_k - m + (w - y) / \sum_k \eta_k$. The server
    takes the plain mean of the updates and $m \leftarrow m + \frac{\gamma}{|S|} \sum_{k \in S} (c_k^+ - m)$ over the
    clients that deliver. SCAFFOLD adds $c_k^+ - c_k$ instead, which gives the last variates of all clients the same
    weight, however old they are.

    Attributes:
        gamma: share of the cohort's mean in the moving average.
        rho: that of `CyclicRate`, which the recipe combines with this part.

    References:
        FedMoSWA (Liu et al., 2025), with option II for the clients' variates, as in the paper's experiments. The
        authors' code sets m to the cohort's mean in the first round, divides the drift by the largest allowed number of
        steps even if a client takes fewer, and keeps a client's variate in the process that trains it, where the next
        client finds it.
    """

    gamma: float = 0.2
    rho: float = 0.1

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires local steps whose sum of rates is known."""
        return *super().needs, Need("no local momentum", _check_steps)

    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """Returns the client's new control variate; the old one if it took no step."""
        # The mean of the shares of K steps that `CyclicRate` takes.
        share = 1.0 - 0.5 * (1.0 - self.rho) * (outcome.steps - 1) / jnp.maximum(outcome.steps, 1)
        return self.drifted(memory, outcome, share * outcome.learning_rate_sum)

    def report(self, outcome: Outcome) -> PyTree:
        """Returns the client's new control variate minus the server's; 0 if it took no step."""
        return jax.tree.map(
            lambda new, m: jnp.where(outcome.steps > 0, new - m, 0.0), outcome.memory, outcome.ctx.broadcast[self.slot]
        )

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Moves the server's control variate towards the mean of those of the clients that delivered."""
        share = self.gamma / jnp.maximum((server.cohort.local_steps > 0).sum(), 1)
        reports = server.aggregate.reports[self.slot]
        return jax.tree.map(lambda m, excess: m + share * excess, server.state, reports)


def _check_steps(context: NeedsContext) -> None:
    local = context.local
    if local.options.get("momentum"):
        raise ValueError(
            f"fedmoswa: received a local momentum of {local.momentum}; its control variates are drifts divided by the "
            "sum of the learning rates, which momentum inflates: set training.optimizer.momentum to 0"
        )
    if local.step_schedule is not None:
        raise ValueError(
            "fedmoswa: received a step_schedule; its control variates need the sum of the learning rates, which it "
            "knows for its own falling rate only: leave step_schedule out of training.optimizer, and set rho"
        )


@recipe("flatness", "liu2025fedswa")
@variants(paper={}, code={"rho": 0.0, "alpha": 1.0})
def fedswa(rho: Share = 0.1, alpha: Positive = 1.5) -> Recipe:
    r"""FedAvg whose local rate falls in every local training, and whose server steps beyond the mean model.

    The server moves by $\alpha$ times the mean update, as an SGD with this learning rate.

    Args:
        rho: the share of the local learning rate to which it falls linearly, in [0, 1].
        alpha: length of the server's step, above 0; with rho and alpha 1 this is FedAvg.

    Example:
        >>> fedswa().parts, fedswa().server_optimizer.learning_rate
        ((CyclicRate(rho=0.1),), 1.5)

    References:
        Liu et al., 2025; the defaults are those of Section 6.1. In the authors' code the rate falls to 0 from twice the
        given learning rate, and the server takes the mean model: `variant="code"`, with a doubled learning rate, the
        optimizer's clip_norm of 10, its weight_decay of 0.001 (the code has it in every local optimizer) and, as the
        code's rate falls over the rounds, its schedule "cosine". Updates are
        averaged by number of samples; add `equal_weights` for the paper's uniform average. The server averages batch
        statistics without the longer step.
    """
    return Recipe("fedswa", (CyclicRate(rho),), server_optimizer=optimizer("sgd", alpha))


@recipe("flatness", "liu2025fedswa")
@variants(paper={}, code={"rho": 1.0, "alpha": 1.0, "gamma": 0.4})
def fedmoswa(rho: Share = 0.1, alpha: Positive = 1.5, gamma: Share = 0.2) -> Recipe:
    """FedSWA with control variates, of which the server's follows the clients that took part last.

    Args:
        rho: the share of the local learning rate to which it falls linearly, in [0, 1].
        alpha: length of the server's step, above 0.
        gamma: share of a cohort's mean in the server's control variate, in [0, 1]; with all clients in every round,
            and gamma, rho and alpha 1, this is SCAFFOLD.

    Example:
        >>> [part.slot for part in fedmoswa().parts]
        ['ControlVariates', 'CyclicRate']

    References:
        Liu et al., 2025; the defaults are those of Section 6.1. The method that the authors' code runs under this name
        has a constant rate, and its server takes the mean model: `variant="code"`. There gradients are clipped at 10
        before the correction, and every local optimizer has a weight decay of 0.001: set the optimizer's clip_norm and
        weight_decay.
    """
    parts = (MovingControlVariates(gamma, rho), CyclicRate(rho))
    return Recipe("fedmoswa", parts, server_optimizer=optimizer("sgd", alpha))
