"""FedROD: a generic model with balanced softmax, and on it a classifier of each client's own."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

import fedjax_bal
from fedjax_bal.parts import Loss, Personal, PriorCalibration, part
from fedjax_bal.recipes import Recipe
from fedjax_bal.types import Array, Batch, Context, Key, Model, Outputs, PyTree, Variables

from .bibtex import FEDROD
from .heads import head_of

_OWN = "own_head"


@part
class ResidualHead(Personal, Loss):
    r"""Trains a classifier of the client's own on what the generic one leaves over.

    The personalised logits are $\psi^\top f + \varphi_k^\top f$, of the features f, the shared classifier $\psi$ and
    the client's own $\varphi_k$, whose mean cross-entropy is added to the loss. Its gradient reaches $\varphi_k$ alone,
    so that the generic model is trained as without it. $\varphi_k$ is a second set of a classifier's parameters,
    `params["own_head"]`, and begins as zeros: a client that never trained is classified by the generic model.

    References:
        FedROD (Chen and Chao, ICLR 2022, arXiv:2107.00778), section 4, its linear personalised head; the one that a
        hypernetwork makes is left out. How the paper's linear head begins is not stated.
    """

    def bind(self, model: Model) -> Model:
        """The network with the second set; refuses a classifier that isn't linear in its parameters."""
        return _with_own_head(model)

    def personal(self, params: PyTree) -> PyTree:
        """The second set."""
        return {name: name == _OWN for name in params}

    def own_model(self, variables: Variables) -> Variables:
        """With the sum of both classifiers, whose logits are the sum of theirs."""
        params = variables.params
        return variables._replace(params={**params, "head": jax.tree.map(jnp.add, params["head"], params[_OWN])})

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """The personalised predictor's mean cross-entropy, `Float[]`."""
        generic, features = jax.lax.stop_gradient((outputs.logits, outputs.features))
        own = ctx.model.head({**params, "head": params[_OWN]}, features)
        losses = optax.softmax_cross_entropy_with_integer_labels(generic + own, batch.labels)
        return jnp.where(batch.real, losses, 0.0).sum() / jnp.maximum(batch.real.sum(), 1)


@functools.lru_cache(maxsize=64)  # equal models are one object, so that their runs share a program
def _with_own_head(model: Model) -> Model:
    shapes = jax.eval_shape(model.init, jax.random.key(0)).params
    _check_linear(model, shapes, head_of(shapes))
    return model._replace(init=functools.partial(_init, model), apply=functools.partial(_apply, model))


def _init(model: Model, key: Key) -> Variables:
    variables = model.init(key)
    own = jax.tree.map(jnp.zeros_like, variables.params["head"])
    return variables._replace(params={**variables.params, _OWN: own})


def _apply(model: Model, variables: Variables, images: Array, **settings: Any) -> tuple[Outputs, Variables]:
    shared = {name: leaf for name, leaf in variables.params.items() if name != _OWN}
    outputs, after = model.apply(variables._replace(params=shared), images, **settings)
    return outputs, after._replace(params=variables.params)


def _check_linear(model: Model, params: PyTree, head: PyTree) -> None:
    image = jax.ShapeDtypeStruct((1, *model.input_shape), jnp.dtype(model.input_dtype))
    variables = jax.eval_shape(model.init, jax.random.key(0))
    width = jax.eval_shape(lambda v, x: model.apply(v, x, train=False)[0].features, variables, image).shape[-1]
    ones = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), head)
    logits = lambda scale: model.head({**params, "head": jax.tree.map(lambda w: scale * w, ones)}, jnp.ones((1, width)))
    if not jnp.allclose(logits(3.0), 3.0 * logits(1.0), rtol=1e-3):
        raise ValueError(
            f"fedrod: received the model {model.name}, whose classifier isn't linear in its parameters, so that two of "
            "them don't add up to one: take a model that ends in a dense layer"
        )


@fedjax_bal.register("recipe", "fedrod", citation=FEDROD)
def fedrod() -> Recipe:
    """Balanced softmax for the global model, and a classifier of each client's own for its own rows.

    The test set sees the global model, that of `balanced_softmax`; the clients' own test rows,
    `evaluation.client_test` in a configuration, see the personalised ones.

    References:
        Chen and Chao, 2022, Algorithm 1, with balanced softmax and gamma = 1.
    """
    return Recipe("fedrod", (PriorCalibration(0.0), ResidualHead()))
