"""MOON: representations are pulled towards the received model's and away from those of the client's last model."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import Count, NonNegative, Recipe, positive, recipe
from fedjax_bal.methods.roles import Loss, Memory, part, static
from fedjax_bal.models import FORMS, with_projection
from fedjax_bal.types import Array, Batch, Context, Model, Outcome, Outputs, PyTree, Variables
from fedjax_bal.validate import one_of

_SMALLEST = 1e-8  # lower bound of norms, as in PyTorch


class LastModel(NamedTuple):
    """A client's model after its last delivered training.

    Attributes:
        variables: the model; zeros if there is none.
        there: whether there is one, `Bool[]`.
    """

    variables: Variables
    there: Array


def cosine_similarity(a: Array, b: Array) -> Array:
    """Returns the cosine of two representations, row by row; 0, with a finite gradient, if one of them is all zeros."""
    norm = lambda x: jnp.sqrt(jnp.maximum((x * x).sum(-1), _SMALLEST**2))
    return (a * b).sum(-1) / (norm(a) * norm(b))


@part
class ModelContrast(Loss, Memory):
    r"""Adds $\mu$ times a contrastive loss between three models' representations of the same images.

    With z the representation by the model in training, $z_g$ by the received model and $z_p$ by the client's model
    after its last local training, the loss of an image is
    $-\log \frac{e^{s_g}}{e^{s_g} + e^{s_p}} = \log(1 + e^{s_p - s_g})$, where $s = \cos(z, \cdot) / T$. The other two
    models are applied in evaluation mode and get no gradient. The term is off for a client that has never delivered.

    Attributes:
        mu: weight of the added loss; 0 is FedAvg.
        temperature: T.
        projection: the form of the representation, see `fedjax_bal.models.with_projection`.
        width: width of the projection.

    References:
        MOON (Li et al., 2021), eq. 3 and Algorithm 1, with one previous model. In the authors' code, from the second
        round on, a client that never trained is contrasted with its random initial model; here it isn't.
    """

    mu: float = 1.0
    temperature: float = 0.5
    projection: str = static("head")
    width: int = static(256)

    def bind(self, model: Model) -> Model:
        """Returns the network with the projection."""
        return with_projection(model, self.projection, self.width)

    def init_memory(self, variables: Variables) -> LastModel:
        """Returns an empty memory."""
        return LastModel(jax.tree.map(jnp.zeros_like, variables), jnp.array(False))

    def remember(self, memory: LastModel, outcome: Outcome) -> LastModel:
        """Remembers the model after training, with its batch statistics."""
        return LastModel(outcome.end, jnp.array(True))

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the contrastive loss, `Float[]`."""
        last: LastModel = ctx.memory[self.slot]

        def similarity(variables: Variables) -> Array:
            theirs, _ = ctx.model.apply(variables, batch.images, train=False)
            theirs = jax.lax.stop_gradient(_representation(theirs))
            return cosine_similarity(_representation(outputs), theirs) / self.temperature

        losses = jax.nn.softplus(similarity(last.variables) - similarity(ctx.start))
        real = batch.real.astype(losses.dtype)
        mean = (losses * real).sum() / jnp.maximum(real.sum(), 1.0)
        return jnp.where(last.there, self.mu * mean, 0.0)


def _representation(outputs: Outputs) -> Array:
    if outputs.projection is None:
        raise ValueError("moon: received a model without a projection; extend it with the part's own `bind`")
    return outputs.projection


@recipe("drift", "li2021moon")
def moon(mu: NonNegative = 1.0, temperature: float = 0.5, projection: str = "head", width: Count = 256) -> Recipe:
    """A contrastive loss pulls representations towards the global model's, away from those of the client's last model.

    Args:
        mu: weight of the contrastive loss, at least 0.
        temperature: divisor of cosines, above 0.
        projection: "head" puts two dense layers between features and classifier, as in the authors' code; "side" puts
            them parallel to the classifier, so that the evaluated network doesn't change; "none" compares features.
        width: width of the projection, without effect for "none".

    Example:
        >>> moon(mu=5.0).parts
        (ModelContrast(mu=5.0, temperature=0.5, projection='head', width=256),)
    """
    temperature = positive("moon: temperature", temperature, "; the authors use 0.5")
    return Recipe("moon", (ModelContrast(mu, temperature, one_of("moon: projection", projection, FORMS), width),))
