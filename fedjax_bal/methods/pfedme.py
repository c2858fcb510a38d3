"""pFedMe: every client has a personal model near its copy of the global one, which then moves towards it."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.methods.combine import Count, NonNegative, Positive, Recipe, recipe
from fedjax_bal.methods.heads import batch_loss
from fedjax_bal.methods.needs import plain_sgd, without_other
from fedjax_bal.methods.roles import (
    CheckContext,
    Criterion,
    Gradient,
    Logits,
    Loss,
    Need,
    NeedsContext,
    Separate,
    Shift,
    Start,
    Step,
    part,
    static,
)
from fedjax_bal.methods.twins import check_twin, no_statistics, with_twin, without
from fedjax_bal.types import Array, Batch, Context, Model, Outputs, PyTree, ServerContext, Variables

_TWIN = "own_model"


@part
class MoreauEnvelope(Separate, Start, Loss, Gradient, Step):
    r"""Replaces the local loss by its Moreau envelope, $\min_\theta f(\theta) + \frac{\lambda}{2} \|\theta - w\|^2$.

    In each local step the personal model takes K steps on the batch,
    $\theta \leftarrow \theta - \rho (\nabla f(\theta) + \lambda (\theta - w) + \mu \theta)$, from where the last local
    step left it, in the first one from w. Then w takes a step of the local optimizer along the envelope's gradient,
    $w \leftarrow w - \eta \lambda (w - \theta)$. The server averages the w and moves by beta times their mean change.

    The personal model is a second set of parameters, `params["own_model"]`, which each round starts at the received w;
    its last value classifies the client's own test rows. The reported training loss is that of w.

    Attributes:
        attraction: lambda.
        learning_rate: rho, the personal model's learning rate.
        decay: mu, the personal model's weight decay.
        server_rate: beta.
        steps: K.

    References:
        pFedMe (T. Dinh et al., 2020), Algorithm 1, which leaves open how the inner problem is solved; there a local
        step has a new batch, as here. Start, number of steps, weight decay and defaults are those of the authors' code.
        In that code all clients train in each round and only then some are chosen; here only the cohort trains. The
        loss is the plain cross-entropy, without dropout. Clients are averaged by number of samples, as in that code;
        Algorithm 1 has the plain mean: combine with `equal_weights`.
    """

    attraction: float = 15.0
    learning_rate: float = 0.09
    decay: float = 0.001
    server_rate: float = 1.0
    steps: int = static(5)

    own = (_TWIN,)

    def bind(self, model: Model) -> Model:
        """Returns the network with the second set of parameters."""
        return with_twin(model, _TWIN)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires plain SGD, no batch statistics, and no part whose change of loss or gradient would be lost."""
        why = "which changes a local loss or gradient that pfedme replaces"
        alone = without_other("pfedme", self, Criterion, Logits, Loss, Shift, Gradient, because=why)
        sgd = plain_sgd("pfedme", "it sets the steps of the personal model itself")
        return no_statistics("pfedme"), alone, sgd, Need("no local momentum", _check_plain)

    def check(self, context: CheckContext) -> None:
        """Rejects parts that change the network after it was doubled."""
        check_twin("pfedme", _TWIN, context)

    def own_model(self, variables: Variables) -> Variables:
        """Replaces the first set of parameters by the second."""
        return variables._replace(params={**variables.params, **variables.params[_TWIN]})

    def start(self, variables: Variables, ctx: Context) -> Variables:
        """Returns the received model, as a start for the personal one, too."""
        received = without(variables.params, _TWIN)
        return variables._replace(params={**received, _TWIN: received})

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns 0, whose gradient for the personal model is minus its change in this local step."""
        received, own = lax.stop_gradient((without(params, _TWIN), params[_TWIN]))

        def objective(theta: PyTree) -> Array:
            theirs, _ = ctx.model.apply(Variables(theta, ctx.start.stats), batch.images, train=False)
            return batch_loss(theirs.logits, batch)

        def descended(_: Array, theta: PyTree) -> PyTree:
            def one(theta: Array, slope: Array, w: Array) -> Array:
                return theta - self.learning_rate * (slope + self.attraction * (theta - w) + self.decay * theta)

            return jax.tree.map(one, theta, jax.grad(objective)(theta), received)

        theta = lax.fori_loop(0, self.steps, descended, own)
        product = lambda start, end, leaf: (lax.stop_gradient(start - end) * (leaf - start)).sum()
        return sum(jax.tree.leaves(jax.tree.map(product, own, theta, params[_TWIN])), jnp.zeros(()))

    def gradient(self, grads: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Returns the envelope's gradient for w, and one with which SGD makes the personal model's change."""
        descent = grads[_TWIN]
        envelope = jax.tree.map(
            lambda w, own, by: self.attraction * (w - (own - by)), without(params, _TWIN), params[_TWIN], descent
        )
        rate = jnp.asarray(ctx.learning_rate)
        # At a rate of 0 no gradient has an effect, and the personal model stays with w.
        inverse = jnp.where(rate > 0, 1.0 / jnp.where(rate > 0, rate, 1.0), 0.0)
        return {**envelope, _TWIN: jax.tree.map(lambda leaf: leaf * inverse, descent)}

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Returns beta times the mean change."""
        return jax.tree.map(lambda leaf: self.server_rate * leaf, delta), server.state


def _check_plain(context: NeedsContext) -> None:
    local = context.local
    extras = {
        "momentum": local.options.get("momentum"),
        "weight_decay": local.weight_decay,
        "clip_norm": local.clip_norm,
        "clip_value": local.clip_value,
    }
    given = [name for name, value in extras.items() if value]
    if given:
        raise ValueError(
            f"pfedme: received a local optimizer with {' and '.join(given)}, must be without: its steps follow the "
            "distance to the personal model, not a gradient; leave it out, or set pfedme's own decay"
        )


@recipe("personal", "dinh2020pfedme")
def pfedme(
    attraction: Positive = 15.0,
    learning_rate: NonNegative = 0.09,
    decay: NonNegative = 0.001,
    server_rate: Positive = 1.0,
    steps: Count = 5,
) -> Recipe:
    """A personal model for each client, near its copy of the global model, which moves towards it.

    A local step costs `steps` passes more than one of FedAvg. It moves w by the share learning rate times `attraction`
    of its distance to the personal model: a learning rate above 1 / `attraction` overshoots.

    Args:
        attraction: lambda, the weight of the squared distance, above 0.
        learning_rate: learning rate of the personal model, at least 0.
        decay: weight decay of the personal model, at least 0; 0 in the paper.
        server_rate: beta, the server's factor on the mean change, above 0.
        steps: steps of the personal model in each local step, at least 1.

    Example:
        >>> pfedme(steps=3).parts
        (MoreauEnvelope(attraction=15.0, learning_rate=0.09, decay=0.001, server_rate=1.0, steps=3),)
    """
    return Recipe("pfedme", (MoreauEnvelope(attraction, learning_rate, decay, server_rate, steps),))
