"""Random draws from a hash of a few operations: a third of a small program is JAX's own generator otherwise.

What a check compares draws the same words on both sides, so that it doesn't matter how good they are.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.random import define_prng_impl

from fedjax_bal.types import Array, Key

_BITS = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}


def key_of(seed: int) -> Key:
    """A run's key.

    Example:
        >>> bool((jax.random.bits(key_of(0), (2,)) == jax.random.bits(key_of(1), (2,))).any())
        False
    """
    return jax.random.key(seed, impl=_HASHED)


def _mixed(words: Any) -> Any:
    """Each word changed beyond recognition, by the finalizer of the hash function `lowbias32`."""
    words = (words ^ (words >> 16)) * np.uint32(0x7FEB352D)
    words = (words ^ (words >> 15)) * np.uint32(0x846CA68B)
    return words ^ (words >> 16)


def _at_once(function: Callable[..., Any]) -> Callable[..., Array]:
    """In NumPy where a program is not being traced: it is a dozen operations for a single word."""

    @functools.wraps(function)
    def chosen(*words: Array, **sizes: Any) -> Array:
        if any(isinstance(each, Tracer) for each in words):
            return function(jnp, *words, **sizes)
        with np.errstate(over="ignore"):
            return jax.device_put(function(np, *map(np.asarray, words), **sizes))

    return chosen


@_at_once
def _folded(numpy: Any, key: Array, number: Array) -> Array:
    first = _mixed(key[0] ^ _mixed(number + np.uint32(0x9E3779B9)))
    return numpy.stack([first, _mixed(key[1] + first)])


@_at_once
def _counted(numpy: Any, key: Array, *, length: int) -> Array:
    return _mixed(key[0] ^ _mixed(key[1] + numpy.arange(length, dtype=np.uint32)))


def _seeded(seed: Array) -> Array:
    return _folded(np.zeros(2, np.uint32), seed.astype(np.uint32))


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    own = _folded(key, jnp.uint32(1))
    return jnp.stack([_counted(own, length=math.prod(shape)), _counted(key, length=math.prod(shape))], -1).reshape(
        *shape, 2
    )


def _words(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    words = _counted(key, length=math.prod(shape)).reshape(shape)
    if bit_width == 64:
        return words.astype(jnp.uint64) << 32 | _mixed(words).astype(jnp.uint64)
    return words.astype(_BITS[bit_width])


_HASHED = define_prng_impl(
    key_shape=(2,), seed=_seeded, split=_split, random_bits=_words, fold_in=_folded, name="hashed", tag="hsh"
)
