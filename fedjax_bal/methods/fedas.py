"""FedAS: the received body is aligned with the client's last model, and updates count by Fisher information."""

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.data import over_rows, random_order
from fedjax_bal.methods.combine import CountOrZero, NonNegative, Recipe, recipe
from fedjax_bal.methods.fedper import OwnHead
from fedjax_bal.methods.heads import batch_loss
from fedjax_bal.methods.needs import without_other
from fedjax_bal.methods.prototypes import feature_sums, prototypes_of
from fedjax_bal.methods.roles import Adapt, Memory, Need, Prepare, Reduce, Report, Separate, Start, part, static
from fedjax_bal.methods.twins import without
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, PyTree, ServerContext, Variables


@part
class AlignedBody(Prepare, Start, Memory, Adapt):
    r"""Before local training, moves the received body's features towards the client's last model's.

    The prototype $p_c$ of a class is the mean feature, by the client's last model, of the client's rows of that class;
    for a client that never trained, by the initial model. Then all layers below the classifier take steps of gradient
    descent on $\sum_c \frac{1}{n_c F} \sum_x \| f(x) - p_c \|^2$ over the classes and rows of a mini-batch, with F
    features and $n_c$ rows of class c. Local training starts from the result.

    A client's own test rows are classified by its last model, classifier included, not by the received body.

    Attributes:
        learning_rate: the rate of these steps.
        epochs: passes over the client's rows, in the run's batch size and a random order.

    References:
        FedAS (Yang et al., 2024), and the authors' code, where batches have 16 rows, in the stored order, and short
        ones are dropped. In that code clients align one and the same model in turn, so that a client also starts from
        the steps of those before it. FL-bench aligns the mean feature of each class, not each row. Features are
        computed in evaluation mode.
    """

    learning_rate: float = 0.01
    epochs: int = static(1)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that no other part gives each client another model."""
        why = "by which each client has another classifier or model"
        return (without_other("fedas", self, Separate, Adapt, because=why),)

    def init_memory(self, variables: Variables) -> Variables:
        """Returns the initial model without its classifier."""
        return variables._replace(params=without(variables.params, "head"))

    def remember(self, memory: Variables, outcome: Outcome) -> Variables:
        """Returns the trained model without its classifier."""
        return self.init_memory(outcome.trained or outcome.end)

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> PyTree:
        """Computes the aligned layers."""
        prototypes = prototypes_of(feature_sums(self.adapt(variables, ctx), ctx)).means

        def distance(body: PyTree, batch: Batch) -> Array:
            params = {**variables.params, **body}
            features = ctx.model.apply(variables._replace(params=params), batch.images, train=False)[0].features
            squares = ((features - prototypes[batch.labels]) ** 2).mean(-1)
            counts = jnp.zeros(len(prototypes)).at[batch.labels].add(batch.real)
            return jnp.where(batch.real, squares / jnp.maximum(counts[batch.labels], 1.0), 0.0).sum()

        def step(body: PyTree, batch: Batch) -> PyTree:
            return optax.tree.add_scale(body, -self.learning_rate, jax.grad(distance)(body, batch))

        body = without(variables.params, "head")
        for epoch in range(self.epochs):
            body = over_rows(step, body, ctx, random_order(jax.random.fold_in(key, epoch), ctx))
        return body

    def start(self, variables: Variables, ctx: Context) -> Variables:
        """Returns the model with the aligned layers."""
        return variables._replace(params={**variables.params, **ctx.prepared[self.slot]})

    def adapt(self, variables: Variables, ctx: Context) -> Variables:
        """Returns the client's last model."""
        last: Variables = ctx.memory[self.slot]
        return Variables({**variables.params, **last.params}, last.stats)


@part
class FisherWeights(Prepare, Report, Reduce):
    r"""Weights updates by the trace of the Fisher information of the trained model.

    A client computes the trace as $\sum_b \| \nabla f(w; b) \|^2$ over mini-batches b of its rows, in a random order
    and with all parameters, where f is the mean cross-entropy in evaluation mode. Numbers of samples don't count. A
    chain of several clients has the mean of their traces. Batch statistics are averaged as without this part.

    References:
        FedAS (Yang et al., 2024), and the authors' code, which drops short batches.
    """

    by_client = True
    unweighted = True

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Array:
        """Draws the order of the client's rows."""
        return random_order(key, ctx)

    def report(self, outcome: Outcome) -> Array:
        """Returns the trace, `Float[]`."""
        ctx = outcome.ctx
        trained = outcome.trained or outcome.end

        def loss(params: PyTree, batch: Batch) -> Array:
            outputs, _ = ctx.model.apply(trained._replace(params=params), batch.images, train=False)
            return batch_loss(outputs.logits, batch)

        def add(trace: Array, batch: Batch) -> Array:
            return trace + optax.tree.norm(jax.grad(loss)(trained.params, batch), squared=True)

        return over_rows(add, jnp.zeros(()), ctx, ctx.prepared[self.slot])

    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """Returns the mean weighted by traces; by the given weights if all traces are 0."""
        delivered = (server.cohort.local_steps > 0).sum(1)
        traces = server.aggregate.reports[self.slot].sum(1) / jnp.maximum(delivered, 1)
        traces = jnp.where(weights > 0, traces, 0.0)
        shares = jnp.where(traces.sum() > 0, traces, weights)
        shares = shares / jnp.where(shares.sum() > 0, shares.sum(), 1.0)
        return jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, 1), deltas)


@recipe("personal", "yang2024fedas")
def fedas(learning_rate: NonNegative = 0.01, epochs: CountOrZero = 1, fisher: bool = True) -> Recipe:
    """FedPer whose clients align the received body with their last model; Fisher information weights updates.

    Args:
        learning_rate: learning rate of the alignment, at least 0.
        epochs: passes over a client's rows for the alignment; with 0 local training starts from the received body.
        fisher: whether to weight updates by the trace of the Fisher information instead of by number of samples.

    Example:
        >>> [part.slot for part in fedas().parts]
        ['OwnHead', 'AlignedBody', 'FisherWeights']
    """
    parts = (OwnHead(), AlignedBody(learning_rate, epochs))
    return Recipe("fedas", (*parts, FisherWeights()) if fisher else parts)
