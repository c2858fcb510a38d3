"""Places data on devices, and fetches it from them."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Sharding

from fedjax_bal.engine.device import Layout
from fedjax_bal.target import target_platform
from fedjax_bal.types import PyTree

_ALIGNMENT = 64  # XLA's CPU client uses an array in place if its address is a multiple of this, in bytes


def replicate(tree: PyTree, layout: Layout) -> PyTree:
    """Puts a tree on every device in full; CPU devices share one copy of each array."""
    return put(_shareable(tree), layout.replicated)


def divide(tree: PyTree, layout: Layout) -> PyTree:
    """Divides a tree along its first axis among the devices; their number must divide the axis' length."""
    return put(_shareable(tree), layout.divided)


def put(tree: PyTree, place: Sharding) -> PyTree:
    """Puts a tree, equal on all processes, on the devices of a sharding; each process fills its own devices."""
    if place.is_fully_addressable:
        return jax.device_put(tree, place)
    return jax.tree.map(lambda leaf: _own_share(leaf, place), tree)


def fetch(tree: PyTree) -> PyTree:
    """Brings a tree to the host as NumPy arrays, equal on every process; all processes must call it."""
    return jax.device_get(jax.tree.map(_everywhere, tree))


def _own_share(leaf: Any, place: Sharding) -> Any:
    if isinstance(leaf, jax.Array) and leaf.sharding.device_set == place.device_set:
        return jax.device_put(leaf, place)
    # Every process has the whole array on its host and cuts out its devices' pieces, so nothing is sent.
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, place, lambda index: whole[index])


def _everywhere(leaf: Any) -> Any:
    # An array that this process holds in full needs no message to the others.
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return leaf
    return multihost_utils.process_allgather(leaf, tiled=True)


def _shareable(tree: PyTree) -> PyTree:
    return jax.tree.map(_aligned, tree) if target_platform() == "cpu" else tree


def _aligned(array: Any) -> Any:
    """Copies a large array to memory that XLA's CPU client can use in place, instead of copying it for each device."""
    if not isinstance(array, np.ndarray) or array.nbytes < 2**16 or array.ctypes.data % _ALIGNMENT == 0:
        return array
    room = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % _ALIGNMENT
    copy = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
