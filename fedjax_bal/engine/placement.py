"""Putting data on devices."""

from typing import Any

import jax
import numpy as np

from fedjax_bal.engine.layout import Layout
from fedjax_bal.types import PyTree

_ALIGNMENT = 64  # bytes at which XLA's CPU client takes an array as it is


def replicate(tree: PyTree, layout: Layout) -> PyTree:
    """Puts a tree on every device in full.

    CPU devices share one copy of each array.

    Args:
        tree: arrays.
        layout: the layout.

    Returns:
        The same on the devices.
    """
    return jax.device_put(_shareable(tree), layout.replicated)


def divide(tree: PyTree, layout: Layout) -> PyTree:
    """Cuts a tree along its first axis, a piece for each device; the axis' length must divide."""
    return jax.device_put(_shareable(tree), layout.divided)


def _shareable(tree: PyTree) -> PyTree:
    return jax.tree.map(_aligned, tree) if jax.default_backend() == "cpu" else tree


def _aligned(array: Any) -> Any:
    if not isinstance(array, np.ndarray) or array.nbytes < 2**16 or array.ctypes.data % _ALIGNMENT == 0:
        return array
    room = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % _ALIGNMENT
    copy = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
