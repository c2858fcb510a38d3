"""Initial weights of networks that differ from those of their layers.

A start replaces the parameters that the layers have drawn, so that it covers body and classifier alike.
"""

from collections.abc import Callable

import jax
from jax.nn import initializers
from jax.nn.initializers import Initializer

from fedjax_bal.types import Key, PyTree

Start = Callable[[Key, PyTree], PyTree]


def as_drawn(key: Key, params: PyTree) -> PyTree:
    """Keeps the parameters that the layers have drawn."""
    del key
    return params


def he_fan_out(key: Key, params: PyTree) -> PyTree:
    """Draws convolutions with variance 2 / fan out and dense layers with deviation 0.01, both normal; biases are 0.

    References:
        FL-CIR's code (github.com/ym1231/fl-cir).
    """
    return _redraw(key, params, initializers.variance_scaling(2.0, "fan_out", "normal"), initializers.normal(0.01))


def glorot(key: Key, params: PyTree) -> PyTree:
    """Draws weights uniformly with variance 2 / (fan in + fan out), Keras's default; biases are 0."""
    return _redraw(key, params, initializers.glorot_uniform(), initializers.glorot_uniform())


def _redraw(key: Key, params: PyTree, convolution: Initializer, dense: Initializer) -> PyTree:
    """Draws all leaves again; the number of axes distinguishes convolutions, dense layers and biases."""
    laws = {4: convolution, 2: dense, 1: initializers.zeros}
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    drawn = [laws[leaf.ndim](own, leaf.shape, leaf.dtype) for own, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)
