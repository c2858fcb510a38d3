"""Per-FedAvg: the global model is trained to be good after a client has taken a step on its own rows."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.data import over_rows
from fedjax_bal.methods.combine import Count, NonNegative, Positive, Recipe, recipe
from fedjax_bal.methods.heads import batch_loss
from fedjax_bal.methods.needs import without_other
from fedjax_bal.methods.roles import Adapt, Need, Separate, Shift, part, static
from fedjax_bal.types import Array, Batch, Context, PyTree, Variables


@part
class StepAhead(Shift, Adapt):
    r"""Descends the loss after a step on the client's rows, $F_k(w) = f_k(w - \alpha \nabla f_k(w))$.

    With the gradient $v = \nabla f(w - \alpha \nabla f(w; D); D')$ after a step on the rows D, a local step follows v,
    which ignores that the step itself depends on w, or $v - \alpha H v$, where the product with the Hessian is computed
    from two more gradients, $H v = (\nabla f(w + \delta v; D'') - \nabla f(w - \delta v; D'')) / 2 \delta$. D, D' and
    D'' are every second, or every third, row of the mini-batch; all of them for a batch with fewer rows than sets.

    A client's own test rows are classified by the global model after steps of gradient descent on all of the client's
    training rows, with plain cross-entropy, in evaluation mode; the test set by the global model itself.

    Attributes:
        learning_rate: $\alpha$, of the step ahead and of those before evaluation.
        difference: $\delta$.
        steps: the number of steps before evaluation.
        corrects: whether the Hessian counts.

    References:
        Per-FedAvg (Fallah et al., 2020), Algorithm 1, with its approximations "FO" and "HF". There the three sets of
        rows are drawn independently; FL-bench takes consecutive mini-batches, PFLlib the halves of one. The local
        optimizer has the paper's $\beta$, and the reported training loss is that after the step ahead. Before
        evaluation, PFLlib takes a step on one mini-batch, FL-bench trains for an epoch. Updates are averaged by number
        of samples; add `equal_weights` for the paper's plain mean.
    """

    learning_rate: float = 0.01
    difference: float = 0.001
    steps: int = static(1)
    corrects: bool = static(False)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that no other part gives each client another model."""
        why = "by which each client has another classifier or model, that no step ahead is taken for"
        return (without_other("per_fedavg", self, Separate, because=why),)

    def rows(self, batch: Batch, use: Literal["shift", "step", "correct"]) -> Array:
        """Returns every second or third row, `Bool[B]`."""
        sets = ("shift", "step", "correct")[: 3 if self.corrects else 2]
        mine = jnp.arange(len(batch.real)) % len(sets) == sets.index(use)
        return batch.real & (mine | (batch.real.sum() < len(sets)))

    def shift(self, params: PyTree, grads: PyTree, ctx: Context) -> PyTree:
        """Returns the parameters after the step ahead."""
        return jax.tree.map(lambda w, g: w - self.learning_rate * g, params, grads)

    def correct(self, grads: PyTree, gradient: Callable[[PyTree], PyTree], params: PyTree, ctx: Context) -> PyTree:
        """Subtracts the learning rate times the product with the Hessian, if it counts."""
        if not self.corrects:
            return grads
        moved = lambda sign: jax.tree.map(lambda w, v: w + sign * self.difference * v, params, grads)
        scale = 0.5 * self.learning_rate / self.difference
        return jax.tree.map(lambda v, up, down: v - scale * (up - down), grads, gradient(moved(1)), gradient(moved(-1)))

    def adapt(self, variables: Variables, ctx: Context) -> Variables:
        """Returns the model after the steps on all of the client's rows."""

        def summed_loss(params: PyTree, batch: Batch) -> Array:
            outputs, _ = ctx.model.apply(variables._replace(params=params), batch.images, train=False)
            return batch_loss(outputs.logits, batch) * batch.real.sum()

        def descended(_: Array, params: PyTree) -> PyTree:
            add = lambda total, batch: jax.tree.map(jnp.add, total, jax.grad(summed_loss)(params, batch))
            total = over_rows(add, jax.tree.map(jnp.zeros_like, params), ctx)
            rate = self.learning_rate / jnp.maximum(ctx.size, 1)
            return jax.tree.map(lambda w, g: w - rate * g, params, total)

        return variables._replace(params=lax.fori_loop(0, self.steps, descended, variables.params))


@recipe("personal", "fallah2020perfedavg")
def per_fedavg(
    learning_rate: NonNegative = 0.01,
    hessian: Literal["ignored", "difference"] = "ignored",
    difference: Positive = 0.001,
    steps: Count = 1,
) -> Recipe:
    """A global model that is trained to perform well after a gradient step on a client's own rows.

    A local step takes two passes through the model, or four with the Hessian.

    Args:
        learning_rate: alpha, of the step ahead, at least 0; beta is that of the local optimizer.
        hessian: "ignored" is Per-FedAvg (FO), "difference" the Hessian-free Per-FedAvg (HF).
        difference: delta, the multiple of the gradient over which HF takes a difference, above 0.
        steps: steps that a client takes on its own rows before its test rows are classified, at least 1.

    Example:
        >>> per_fedavg(hessian="difference").parts
        (StepAhead(learning_rate=0.01, difference=0.001, steps=1, corrects=True),)
    """
    return Recipe("per_fedavg", (StepAhead(learning_rate, difference, steps, hessian == "difference"),))
