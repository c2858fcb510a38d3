"""How networks start whose papers do not start them as their layers do here.

A start goes over what the layers have drawn: weights are drawn anew, each from its own law, and biases set to 0. That
way it covers body and classifier alike.
"""

from collections.abc import Callable

import jax
from jax.nn import initializers
from jax.nn.initializers import Initializer

from fedjax_bal.types import Key, PyTree

Start = Callable[[Key, PyTree], PyTree]


def as_drawn(key: Key, params: PyTree) -> PyTree:
    """What the layers have drawn, as it is.

    Args:
        key: not needed.
        params: the layers' draw.

    Returns:
        The same.
    """
    del key
    return params


def he_fan_out(key: Key, params: PyTree) -> PyTree:
    """Convolutions normal of variance 2 / fan out, dense layers normal of deviation 0.01, biases 0.

    Args:
        key: source of randomness.
        params: of convolutions and dense layers; only shapes and types matter.

    Returns:
        Parameters of the same shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> drawn = he_fan_out(jax.random.key(0), {"kernel": jnp.ones((300, 300)), "bias": jnp.ones(3)})
        >>> round(float(drawn["kernel"].std()), 3), drawn["bias"].tolist()
        (0.01, [0.0, 0.0, 0.0])

    References:
        FL-CIR's code (github.com/ym1231/fl-cir).
    """
    return _redrawn(key, params, initializers.variance_scaling(2.0, "fan_out", "normal"), initializers.normal(0.01))


def glorot(key: Key, params: PyTree) -> PyTree:
    """Weights uniform of variance 2 / (fan in + fan out), biases 0: what Keras does unless told otherwise.

    Args:
        key: source of randomness.
        params: of convolutions and dense layers; only shapes and types matter.

    Returns:
        Parameters of the same shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> drawn = glorot(jax.random.key(0), {"kernel": jnp.ones((200, 400)), "bias": jnp.ones(3)})
        >>> round(float(drawn["kernel"].max()), 3), drawn["bias"].tolist()
        (0.1, [0.0, 0.0, 0.0])
    """
    return _redrawn(key, params, initializers.glorot_uniform(), initializers.glorot_uniform())


def _redrawn(key: Key, params: PyTree, convolution: Initializer, dense: Initializer) -> PyTree:
    """New values for all leaves; the number of axes tells convolutions, dense layers and biases apart."""
    laws = {4: convolution, 2: dense, 1: initializers.zeros}
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    drawn = [laws[leaf.ndim](own, leaf.shape, leaf.dtype) for own, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)
