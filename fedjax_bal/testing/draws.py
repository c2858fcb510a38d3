"""Random draws from a hash of a few operations, in place of JAX's generator, which is a third of a small program.

Both sides of a comparison draw the same words, so that their quality doesn't matter.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from fedjax_bal.types import Array, Key

_BITS = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}


def key_of(seed: int) -> Key:
    """A run's key, of the hashed generator."""
    return jax.random.key(seed, impl=_HASHED)


def _mix(words: Any) -> Any:
    """Mixes the bits of each word by the finalizer of the hash function `lowbias32`."""
    words = (words ^ (words >> 16)) * np.uint32(0x7FEB352D)
    words = (words ^ (words >> 15)) * np.uint32(0x846CA68B)
    return words ^ (words >> 16)


def _fold(key: Array, number: Any) -> Array:
    first = _mix(key[0] ^ _mix(number + np.uint32(0x9E3779B9)))
    return jnp.stack([first, _mix(key[1] + first)])


def _hashes(key: Array, length: int) -> Array:
    return _mix(key[0] ^ _mix(key[1] + jnp.arange(length, dtype=np.uint32)))


def _seed(seed: Array) -> Array:
    return _fold(jnp.zeros(2, np.uint32), seed.astype(np.uint32))


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    own = _fold(key, jnp.uint32(1))
    return jnp.stack([_hashes(own, math.prod(shape)), _hashes(key, math.prod(shape))], -1).reshape(*shape, 2)


def _words(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    words = _hashes(key, math.prod(shape)).reshape(shape)
    if bit_width == 64:
        return words.astype(jnp.uint64) << 32 | _mix(words).astype(jnp.uint64)
    return words.astype(_BITS[bit_width])


_HASHED = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_words, fold_in=_fold, name="hashed", tag="hsh"
)
