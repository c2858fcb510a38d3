"""FedBABU: clients train the body of the network, never its classifier."""

import jax
import jax.numpy as jnp

from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Freeze, Update
from fedjax_bal.types import Context, Model, PyTree


def classifier(params: PyTree) -> PyTree:
    """The classifier's parameters, `params["head"]`; raises `ValueError` for a model without that entry."""
    names = sorted(params) if isinstance(params, dict) else []
    if "head" not in names:
        raise ValueError(f"model: received parameters {names}, must have the classifier's under 'head': name them so")
    return params["head"]


def classifier_shapes(model: Model) -> PyTree:
    """The shapes of a network's classifier; raises `ValueError` for a network without one of that name."""
    return classifier(jax.eval_shape(model.init, jax.random.key(0)).params)


@part
class FrozenHead(Update, Freeze):
    """Keeps the classifier at its random start, which all clients share.

    Neither the gradient nor weight decay reaches `params["head"]`.

    References:
        FedBABU (Oh et al., 2022), Algorithm 1.
    """

    def frozen(self, params: PyTree) -> PyTree:
        """The classifier."""
        return {name: name == "head" for name in params}

    def updates(self, updates: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """The updates, zeros for the classifier."""
        return {**updates, "head": jax.tree.map(jnp.zeros_like, classifier(updates))}
