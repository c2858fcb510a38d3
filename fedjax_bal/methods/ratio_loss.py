"""Ratio loss: a server with a few rows of each class monitors which classes training neglects."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_bal.data import normalised
from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.heads import classifier_shapes
from fedjax_bal.methods.needs import SERVER_ROWS, balanced_rows
from fedjax_bal.methods.roles import CheckContext, Criterion, Need, Server, part
from fedjax_bal.types import Array, Context, Key, PyTree, ServerContext

_ALONE = 0.8  # a weight belongs to a class if no other class moves it by more than this share


_LARGEST = 5000.0


_UNDEFINED = 10.0  # the ratio if no other class moves the weights of a class


@part
class RatioLoss(Criterion, Server):
    r"""Cross-entropy times $\alpha + \beta R_y$, with ratios R from the server's monitor.

    Each round the server computes, for each class, the step of the classifier's weights along the gradient on its rows
    of that class. A weight belongs to the class that moves it up the most, unless another class moves it by more than
    0.8 times as much. $R_c$ is the absolute value of the sum of class c's steps at the weights that belong to it,
    divided by that of the other classes' mean steps there. Clients use the ratios of the previous round; in the first
    round, all class weights are 1. The server monitors the model that it sends, so that it also has ratios after a
    round without updates.

    Attributes:
        alpha: weight of the plain loss.
        beta: weight of the ratios.

    References:
        Wang et al., 2021, and the authors' code, which is the source of the 0.8, of the bound of 5000 on a ratio, and
        of the ratio 10 if no other class moves these weights. The code trains a copy of the model for each class over
        several epochs; here a step is a single gradient over all rows of a class, in evaluation mode, whose learning
        rate cancels.
    """

    alpha: float = 1.0
    beta: float = 0.1

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires rows of the server's own."""
        return (SERVER_ROWS,)

    def check(self, context: CheckContext) -> None:
        """Rejects a server without rows of each class, and a model without a classifier of the usual name."""
        classifier_shapes(context.model)
        labels = np.asarray(context.federation.labels)[np.asarray(balanced_rows(context.federation))]
        missing = sorted(set(range(context.model.num_classes)) - set(labels.tolist()))
        if missing:
            raise ValueError(
                f"ratio_loss: received server rows of all classes but {missing}, must have some of each to monitor "
                "it: set auxiliary.per_class"
            )

    def losses(self, logits: Array, labels: Array, ctx: Context) -> Array:
        """Returns the loss of each row, `Float[B]`."""
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return ctx.broadcast[self.slot][labels] * losses

    def init_server(self, server: ServerContext) -> Array:
        """Returns class weights of 1, `Float[C]`."""
        return jnp.ones(server.federation.num_classes)

    def broadcast(self, key: Key, server: ServerContext) -> tuple[Array, Array]:
        """Monitors the model that is sent; clients receive the class weights of the previous round."""
        return self.alpha + self.beta * ratios(_class_steps(server)), server.state

    def update(self, key: Key, server: ServerContext) -> Array:
        """Returns the state unchanged."""
        return server.state


def ratios(steps: Array) -> Array:
    """Computes from steps `Float[C, W]` how much more each class moves its own weights than others do, `Float[C]`."""
    largest = steps.max(0)
    near = jnp.where(largest == 0, steps == 0, jnp.abs(steps) > _ALONE * jnp.abs(largest))
    owner = jnp.where(near.sum(0) < 2, steps.argmax(0), -1)
    others = (steps.sum(0) - steps) / (len(steps) - 1)
    mine = owner == jnp.arange(len(steps))[:, None]
    own, other = (jnp.abs(jnp.where(mine, moved, 0.0).sum(1)) for moved in (steps, others))
    return jnp.minimum(jnp.where(other > 0, own / jnp.where(other > 0, other, 1.0), _UNDEFINED), _LARGEST)


def _class_steps(server: ServerContext) -> Array:
    """Computes the step of the classifier's weights for each class, `Float[C, W]`, without biases."""
    federation = server.federation
    params = server.variables.params
    rows = balanced_rows(federation)  # not converted: under `eval_shape` images are NumPy arrays
    images = normalised(federation.images[rows], federation.mean, federation.std)
    features = server.model.apply(server.variables, images, train=False)[0].features
    labels = federation.labels[rows]

    def one(label: Array) -> Array:
        def loss(head: PyTree) -> Array:
            logits = server.model.head({**params, "head": head}, features)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return jnp.where(labels == label, losses, 0.0).sum() / (labels == label).sum()

        grads = jax.tree.leaves(jax.grad(loss)(params["head"]))
        return -jnp.concatenate([leaf.ravel() for leaf in grads if leaf.ndim > 1])

    return jax.vmap(one)(jnp.arange(federation.num_classes))


@recipe("long_tail", "wang2021addressing")
def ratio_loss(alpha: NonNegative = 1.0, beta: NonNegative = 0.1) -> Recipe:
    """Cross-entropy with class weights that the server estimates on a few balanced rows.

    Args:
        alpha: weight of the plain loss, at least 0.
        beta: weight of the monitored ratios, at least 0; with 0 and alpha = 1 this is FedAvg. The configuration's
            `auxiliary.per_class` provides the server's rows.

    Example:
        >>> ratio_loss().parts
        (RatioLoss(alpha=1.0, beta=0.1),)
    """
    return Recipe("ratio_loss", (RatioLoss(alpha, beta),))
