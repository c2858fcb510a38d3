"""FedBABU: clients train the body of the network, never its classifier."""

import jax

from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Trainable
from fedjax_bal.types import PyTree


def checked_head(params: PyTree) -> PyTree:
    """The classifier's parameters.

    Args:
        params: a model's.

    Returns:
        `params["head"]`.

    Raises:
        ValueError: there is no such entry.

    Example:
        >>> checked_head({"w1": 0, "w2": 1})
        Traceback (most recent call last):
        ValueError: model: received parameters ['w1', 'w2'], must have the classifier's under 'head': name them so
    """
    names = sorted(params) if isinstance(params, dict) else []
    if "head" not in names:
        raise ValueError(f"model: received parameters {names}, must have the classifier's under 'head': name them so")
    return params["head"]


@part
class FrozenHead(Trainable):
    """Keeps the classifier at its random start, which all clients share.

    Neither the gradient nor weight decay reaches `params["head"]`.

    References:
        FedBABU (Oh et al., 2022), Algorithm 1.
    """

    def trainable(self, params: PyTree) -> PyTree:
        """True for all parameters but the classifier's."""
        head = checked_head(params)
        return {**jax.tree.map(lambda _: True, params), "head": jax.tree.map(lambda _: False, head)}
