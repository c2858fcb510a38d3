"""What the code of ReBaFL and CBFL calls SCAFFOLD: control variates that are added after the optimizer's step.

    fedjax-bal run configs/papers/rebafl/table3_c10.yaml --plugin fedjax_bal.contrib.late_control_variates

The plug-in registers the recipe `late_control_variates`.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.annotations import Positive
from fedjax_bal.methods import roles
from fedjax_bal.methods.needs import without_other
from fedjax_bal.methods.scaffold import Controls
from fedjax_bal.parts import CyclicRate, Need, part
from fedjax_bal.plugins import register
from fedjax_bal.recipes import Recipe, citation, scaffold
from fedjax_bal.types import Context, Key, Outcome, PyTree, ServerContext


@part
class LateControlVariates(Controls, roles.Gradient, roles.Update):
    r"""Control variates as in the code of two papers that compare with SCAFFOLD; this isn't SCAFFOLD itself.

    It exists to reproduce the collapse that these papers report for SCAFFOLD. It differs from `ControlVariates`:

    * The optimizer takes its step first, followed by $y \leftarrow y - \eta (c - c_k)$: momentum never sees the
      correction.
    * $c_k^+ = c_k - c + (w - y) / (\tau \eta)$ regardless of the momentum $\rho$, which makes control variates and the
      correction up to $1 / (1 - \rho)$ times too large.
    * $c \leftarrow c + \frac{1}{|S|} \sum_{k \in S} (c_k^+ - c_k)$: the server's variate moves N / |S| times as far.
    * Updates are averaged by number of samples, as in CBFL's code. ReBaFL's code takes the plain mean, which is the
      same in that paper, where all clients have equally many samples.

    Attributes:
        clip: the largest norm of the loss's gradient, over all parameters; None for no limit.

    References:
        github.com/JianXu95/ReBaFL, methods/scaffold.py, which clips at 10; the code of CBFL, which doesn't. Two
        properties of the latter are omitted: control variates for running batch statistics, and clients' control
        variates that are kept per worker process, which mixes up clients.
    """

    clip: float | None = None

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that no other part lowers the rate within a local training, as all steps count at the full one."""
        why = "whose rate falls in every local training, but all local steps count at the full rate"
        return *super().needs, without_other("late_control_variates", self, CyclicRate, because=why)

    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Returns the gradient, clipped to the largest norm as in PyTorch."""
        if self.clip is None:
            return grads
        factor = jnp.minimum(self.clip / (optax.tree.norm(grads) + 1e-6), 1.0)
        return jax.tree.map(lambda g: factor * g, grads)

    def updates(self, updates: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Adds the correction to the optimizer's step."""
        rate = ctx.learning_rate
        return jax.tree.map(
            lambda u, own, c: u - rate * (c - own), updates, ctx.memory[self.slot], ctx.broadcast[self.slot]
        )

    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """Returns the client's new control variate; the old one if it took no step."""
        return self.drifted(memory, outcome, outcome.learning_rate_sum)

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Adds the mean change of the clients that delivered."""
        return self.moved(server, jnp.maximum((server.cohort.local_steps > 0).sum(), 1))


@register("recipe", "late_control_variates", citation=citation(scaffold()))
def late_control_variates(clip: Positive | None = None) -> Recipe:
    """What the code of two papers calls SCAFFOLD, to reproduce the very low results in their tables.

    Don't use it as a method: the code's treatment of momentum and of the server's control variate causes these results.

    Args:
        clip: the largest norm of the loss's gradient: 10 in ReBaFL's code; None for no limit, as in CBFL's.

    Example:
        >>> late_control_variates(clip=10.0).parts
        (LateControlVariates(clip=10.0),)
    """
    return Recipe("late_control_variates", (LateControlVariates(clip),))
