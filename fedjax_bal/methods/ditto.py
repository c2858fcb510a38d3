"""Ditto: in addition to the global model, every client trains a personal model that is kept near the global one."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.heads import batch_loss
from fedjax_bal.methods.roles import Loss, Need, RunFacts, Separate, part
from fedjax_bal.types import Array, Batch, Context, Key, Model, Outputs, PyTree, Variables

_TWIN = "own_model"


@part
class SeparateModel(Separate, Loss):
    r"""Trains a personal model v along with the global one, on $F_k(v) + \frac{\lambda}{2} \|v - w\|^2$.

    Both take their steps on the same batches with the same optimizer; w is the received model. The personal model
    doesn't influence the global one, and loss terms, corrections and ascents of other parts don't affect the personal
    one. It is a second set of parameters, `params["own_model"]`, initialised like the first.

    Attributes:
        attraction: lambda; 0 trains the personal model only on the client's rows.

    References:
        Ditto (Li et al., 2021), Algorithm 1, with equally many steps for v and w. The personal model is trained with
        plain cross-entropy and without dropout. Updates are averaged by number of samples; add `equal_weights` for the
        paper's uniform average.
    """

    attraction: float = 0.1

    own = (_TWIN,)

    def bind(self, model: Model) -> Model:
        """Returns the network with the second set of parameters."""
        return _with_twin(model)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires a model without batch statistics, as two models would need two sets of them."""
        return (Need("a model without batch normalisation", _check_statistics),)

    def own_model(self, variables: Variables) -> Variables:
        """Replaces the first set of parameters by the second."""
        own = variables.params[_TWIN]
        return variables._replace(params={**own, _TWIN: own})

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the personal model's objective, `Float[]`."""
        own = params[_TWIN]
        received = _without_twin(ctx.start.params)
        theirs, _ = ctx.model.apply(
            self.own_model(Variables(params, ctx.start.stats)), batch.images, train=True, real=batch.seen
        )
        distance = optax.tree.norm(jax.tree.map(jnp.subtract, own, received), squared=True)
        return batch_loss(theirs.logits, batch) + 0.5 * self.attraction * distance


@functools.lru_cache(maxsize=64)  # equal models must be one object: another object would be compiled again
def _with_twin(model: Model) -> Model:
    return model._replace(init=functools.partial(_init, model), apply=functools.partial(_apply, model))


def _init(model: Model, key: Key) -> Variables:
    variables = model.init(key)
    return variables._replace(params={**variables.params, _TWIN: variables.params})


def _apply(model: Model, variables: Variables, images: Array, **settings: Any) -> tuple[Outputs, Variables]:
    first = variables._replace(params=_without_twin(variables.params))
    outputs, after = model.apply(first, images, **settings)
    return outputs, after._replace(params=variables.params)


def _without_twin(params: PyTree) -> PyTree:
    return {name: own for name, own in params.items() if name != _TWIN}


def _check_statistics(facts: RunFacts) -> None:
    if facts.normalisation and facts.normalisation.statistics:
        raise ValueError(
            f"ditto: received the model {facts.model}, whose batch statistics can't be those of two models: "
            "take one without batch normalisation"
        )


@recipe("personal", "li2021ditto")
def ditto(attraction: NonNegative = 0.1) -> Recipe:
    """FedAvg, plus a personal model for each client that is kept near the global one.

    Args:
        attraction: lambda, the weight of the squared distance, at least 0; with 0 the personal models are `local`'s.

    Example:
        >>> ditto().parts
        (SeparateModel(attraction=0.1),)
    """
    return Recipe("ditto", (SeparateModel(attraction),))
