"""Fed-GraB: a controller for each class balances the gradients that raise its logit and those that lower it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.heads import classifier, classifier_shapes
from fedjax_bal.methods.needs import without_other
from fedjax_bal.methods.roles import CheckContext, Criterion, Logits, Memory, Need, Steps, part
from fedjax_bal.types import Array, Batch, Context, Outcome, Outputs, Variables


class Controllers(NamedTuple):
    """The state of a client's controllers, each `Float[C]`.

    Attributes:
        error: e, the sum of the gradients of the class's logit in all local steps so far.
        total: the sum of e after each of these steps.
        output: u.
    """

    error: Array
    total: Array
    output: Array


@part
class GradientBalancer(Criterion, Steps, Memory):
    r"""Binary cross-entropy of every class, with a controller for each class that weights its two terms.

    The loss of a row with label y is $-f(u_y) \log \sigma(z_y) - \sum_{c \ne y} f(-u_c) \log(1 - \sigma(z_c))$, with
    $f(u) = 10 / (1 + 9 e^{-u/2})$, which is 1 at 0. The error $e_c$ is the sum over a client's local steps of the mean
    loss's gradient with respect to logit c, summed over the batch. It is positive if rows of other classes have pushed
    the logit down further than rows of the class have pushed it up. The controller's output is
    $u_c = K_p e_c + K_i \sum e_c + K_d \Delta e_c$, with the sum and the last change over local steps. A client's
    controllers start at 0 and keep their state between local trainings.

    Attributes:
        proportional: $K_p$.
        integral: $K_i$.
        derivative: $K_d$.

    References:
        Fed-GraB (Xiao et al., 2023), the gradient balancer, in the form of the authors' code, which also has a
        controller for every class. In each step the code draws classes (those with higher numbers less often) that keep
        weight 1 and don't update their e; here none are drawn. Its optimizer doesn't train the classifier, and each
        client has a different random one in the first round; here it is trained, from a common initialisation. The
        analysis of the classifier's norms, by which the paper finds globally rare classes, is omitted. The defaults are
        those of the authors' code.
    """

    proportional: float = 10.0
    integral: float = 0.01
    derivative: float = 0.1

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that no other part changes the logits."""
        why = "which changes the logits of the loss, while controllers watch those of the network"
        return (without_other("fedgrab", self, Logits, because=why),)

    def check(self, context: CheckContext) -> None:
        """Rejects a model without a classifier of that name."""
        classifier_shapes(context.model)

    def init_memory(self, variables: Variables) -> Controllers:
        """Returns controllers with state 0."""
        rest = jnp.zeros(jax.tree.leaves(classifier(variables.params))[0].shape[-1])
        return Controllers(rest, rest, rest)

    def remember(self, memory: Controllers, outcome: Outcome) -> Controllers:
        """Returns the controllers after the last local step."""
        return outcome.ctx.steps_state[self.slot]

    def init_steps(self, ctx: Context) -> Controllers:
        """Returns the client's controllers from its last local training."""
        return ctx.memory[self.slot]

    def losses(self, logits: Array, labels: Array, ctx: Context) -> Array:
        """Returns the loss of each row, `Float[B]`."""
        own = jax.nn.one_hot(labels, logits.shape[-1])
        weights = _weights(ctx.steps_state[self.slot].output, own)
        return (weights * optax.sigmoid_binary_cross_entropy(logits, own)).sum(-1)

    def next_steps(self, carry: Controllers, outputs: Outputs, batch: Batch, ctx: Context) -> Controllers:
        """Returns the controllers after another step."""
        own = jax.nn.one_hot(batch.labels, outputs.logits.shape[-1])
        pushes = _weights(carry.output, own) * (jax.nn.sigmoid(outputs.logits) - own)
        change = jnp.where(batch.real[:, None], pushes, 0.0).sum(0) / jnp.maximum(batch.real.sum(), 1)
        error = carry.error + change
        total = carry.total + error
        output = self.proportional * error + self.integral * total + self.derivative * change
        return Controllers(error, total, output)


def _weights(output: Array, own: Array) -> Array:
    """Returns f(u) for a row's own class and f(-u) for all others, `Float[B, C]`."""
    return 10.0 * jax.nn.sigmoid(jnp.where(own > 0, output, -output) / 2 - jnp.log(9.0))


@recipe("long_tail", "xiao2023fedgrab")
def fedgrab(proportional: NonNegative = 10.0, integral: NonNegative = 0.01, derivative: NonNegative = 0.1) -> Recipe:
    """A binary loss for each class, with a controller that balances the gradients that raise and lower its logit.

    Args:
        proportional: gain on the accumulated imbalance of the gradients, at least 0; with all gains 0 this is FedAvg
            with a binary loss for each class.
        integral: gain on the imbalance's sum over local steps, at least 0.
        derivative: gain on the imbalance's last change, at least 0.

    Example:
        >>> fedgrab().parts
        (GradientBalancer(proportional=10.0, integral=0.01, derivative=0.1),)
    """
    return Recipe("fedgrab", (GradientBalancer(proportional, integral, derivative),))
