"""FedBABU: clients train the body of the network, never its classifier."""

import jax

from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Freeze
from fedjax_bal.types import Model, PyTree


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
class FrozenHead(Freeze):
    """Keeps the classifier, `params["head"]`, at its random start, which all clients share.

    References:
        FedBABU (Oh et al., 2022), Algorithm 1.
    """

    def frozen(self, params: PyTree) -> PyTree:
        """The classifier."""
        classifier(params)
        return {name: name == "head" for name in params}
