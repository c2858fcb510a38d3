"""FedALA: each client learns, number by number, how much of the global model to take over into its own."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.data import over_rows, random_order
from fedjax_bal.methods.combine import Count, NonNegative, PositiveShare, Recipe, recipe
from fedjax_bal.methods.heads import batch_loss, classifier_shapes
from fedjax_bal.methods.own_models import own_start
from fedjax_bal.methods.roles import Adapt, CheckContext, Memory, Need, Prepare, Start, part, static
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, PyTree, Variables


class Aggregation(NamedTuple):
    """What a client keeps between its local trainings.

    Attributes:
        variables: its model after the last of them; zeros if there is none.
        weights: W, like the parameters that it mixes.
        trained: whether it has trained, `Bool[]`.
        mixed: whether it has learned W, `Bool[]`.
    """

    variables: Variables
    weights: PyTree
    trained: Array
    mixed: Array


class Mixture(NamedTuple):
    """The model from which a client starts, and its weights W."""

    variables: Variables
    weights: PyTree


@part
class AdaptiveAggregation(Prepare, Start, Memory, Adapt):
    r"""Starts a client from $\theta_k + (\theta - \theta_k) \odot W_k$, where $\theta_k$ is its own last model.

    The weights $W_k$, one for each parameter of the mixed layers, start as 1 and stay with the client. Before each
    local training they descend the gradient of the mixture's loss on a share of the client's rows, drawn anew,
    $W_k \leftarrow W_k - \eta (\theta - \theta_k) \odot \nabla F_k$, cut to [0, 1], in one pass of mini-batches; the
    first time in as many passes as it takes until the losses of the last `window` of them, each that of the pass's last
    batch, have a standard deviation below `threshold`. The other layers are taken over as received. A client's own test
    rows are classified by its model after its last local training.

    Attributes:
        rate: $\eta$.
        share: the share of the client's rows, rounded down, but at least one row.
        threshold: see above.
        layers: "head" mixes the classifier, `params["head"]`, "all" the whole model.
        window: see above.
        most_passes: the largest number of passes.

    References:
        FedALA (Zhang et al., 2023), eq. 2 to 5, and the authors' code, with its defaults. There the rows are a span of
        the stored ones; passes aren't limited; in each round all clients mix the global model into theirs, also those
        that don't train, and are evaluated before training. Here a client that has never trained takes the received
        model, and models are mixed in evaluation mode, with the received batch statistics.
    """

    rate: float = 1.0
    share: float = 0.8
    threshold: float = 0.1
    layers: str = static("head")
    window: int = static(10)
    most_passes: int = static(100)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that clients have no other model of their own."""
        return own_start("fedala", self)

    def check(self, context: CheckContext) -> None:
        """Rejects a model without a classifier of that name."""
        if self.layers == "head":
            classifier_shapes(context.model)

    def init_memory(self, variables: Variables) -> Aggregation:
        """Returns weights of 1, and no model."""
        weights = jax.tree.map(jnp.ones_like, self._mixed(variables.params))
        zeros = jax.tree.map(jnp.zeros_like, variables)
        return Aggregation(zeros, weights, jnp.array(False), jnp.array(False))

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Mixture:
        """Learns the weights."""
        memory: Aggregation = ctx.memory[self.slot]
        received, own = (self._mixed(tree) for tree in (variables.params, memory.variables.params))
        span = jax.tree.map(jnp.subtract, received, own)
        order = random_order(key, ctx)
        # A share of 0.29 of 100 rows is 28.99... in binary but means 29.
        count = jnp.maximum(jnp.floor(self.share * ctx.size + 1e-4).astype(jnp.int32), 1)
        some = ctx._replace(size=jnp.minimum(count, ctx.size))

        def with_weights(weights: PyTree) -> Variables:
            mixed = jax.tree.map(lambda own, span, weight: own + span * weight, own, span, weights)
            return variables._replace(params=self._with_mixed(variables.params, mixed))

        def descended(carry: tuple[PyTree, Array], batch: Batch) -> tuple[PyTree, Array]:
            def loss(params: PyTree) -> Array:
                outputs, _ = ctx.model.apply(variables._replace(params=params), batch.images, train=False)
                return batch_loss(outputs.logits, batch)

            value, slopes = jax.value_and_grad(loss)(with_weights(carry[0]).params)
            step = lambda weight, slope, span: jnp.clip(weight - self.rate * (slope * span), 0.0, 1.0)
            return jax.tree.map(step, carry[0], self._mixed(slopes), span), value

        def one_pass(carry: tuple[PyTree, Array, Array]) -> tuple[PyTree, Array, Array]:
            weights, losses, passes = carry
            weights, last = over_rows(descended, (weights, jnp.zeros(())), some, order)
            return weights, jnp.append(losses[1:], last), passes + 1

        def goes_on(carry: tuple[PyTree, Array, Array]) -> Array:
            _, losses, passes = carry
            settled = (passes > self.window) & (losses.std() < self.threshold)
            wanted = jnp.where(memory.mixed, passes < 1, ~settled & (passes < self.most_passes))
            return wanted & memory.trained & (ctx.size > 0)

        def pass_or_nothing(_: Array, carry: tuple[PyTree, Array, Array]) -> tuple[PyTree, Array, Array]:
            return jax.tree.map(lambda new, old: jnp.where(goes_on(carry), new, old), one_pass(carry), carry)

        begin = (memory.weights, jnp.zeros(self.window), jnp.zeros((), jnp.int32))
        if ctx.max_size is None:
            weights = lax.while_loop(goes_on, one_pass, begin)[0]
        else:  # loops must have a static length
            weights = lax.fori_loop(0, self.most_passes, pass_or_nothing, begin)[0]
        start = with_weights(weights)
        return Mixture(jax.tree.map(lambda a, b: jnp.where(memory.trained, a, b), start, variables), weights)

    def start(self, variables: Variables, ctx: Context) -> Variables:
        """Replaces the received model by the mixture."""
        return variables._replace(params=ctx.prepared[self.slot].variables.params)

    def remember(self, memory: Aggregation, outcome: Outcome) -> Aggregation:
        """Remembers the trained model and the weights."""
        weights = outcome.ctx.prepared[self.slot].weights
        return Aggregation(outcome.trained or outcome.end, weights, jnp.array(True), memory.trained)

    def adapt(self, variables: Variables, ctx: Context) -> Variables:
        """Returns the client's model, or the global one if it has never trained."""
        memory: Aggregation = ctx.memory[self.slot]
        return jax.tree.map(lambda own, others: jnp.where(memory.trained, own, others), memory.variables, variables)

    def _mixed(self, params: PyTree) -> PyTree:
        return {"head": params["head"]} if self.layers == "head" else params

    def _with_mixed(self, params: PyTree, mixed: PyTree) -> PyTree:
        return {**params, **mixed} if self.layers == "head" else mixed


@recipe("personal", "zhang2023fedala")
def fedala(
    learning_rate: NonNegative = 1.0,
    share: PositiveShare = 0.8,
    layers: Literal["head", "all"] = "head",
    threshold: NonNegative = 0.1,
    window: Count = 10,
    most_passes: Count = 100,
) -> Recipe:
    """FedAvg whose clients start from a mixture of the global model and their own, with learned weights.

    Each client keeps a model, and a weight for every parameter that it mixes.

    Args:
        learning_rate: learning rate of the weights, at least 0; with 0 clients start from the global model.
        share: share of a client's rows on which it learns the weights, above 0 and at most 1.
        layers: whether weights are for the classifier ("head") or for the whole model ("all").
        threshold: when a client first learns its weights, it stops once the standard deviation of its last `window`
            losses is below this.
        window: number of losses in this standard deviation.
        most_passes: maximum number of passes over its rows when a client first learns its weights.

    Example:
        >>> fedala(layers="all").parts[0].layers
        'all'
    """
    return Recipe("fedala", (AdaptiveAggregation(learning_rate, share, threshold, layers, window, most_passes),))
