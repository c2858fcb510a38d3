"""Random draws from a hash of a few operations: a third of a small program is JAX's own generator otherwise.

What a check compares draws the same words on both sides, so that it doesn't matter how good they are.
"""

import math

import jax
import jax.numpy as jnp
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


def _mixed(words: Array) -> Array:
    """Each word changed beyond recognition, by the finalizer of the hash function `lowbias32`."""
    words = (words ^ (words >> 16)) * jnp.uint32(0x7FEB352D)
    words = (words ^ (words >> 15)) * jnp.uint32(0x846CA68B)
    return words ^ (words >> 16)


def _folded(key: Array, number: Array) -> Array:
    first = _mixed(key[0] ^ _mixed(number + jnp.uint32(0x9E3779B9)))
    return jnp.stack([first, _mixed(key[1] + first)])


def _seeded(seed: Array) -> Array:
    return _folded(jnp.zeros(2, jnp.uint32), seed.astype(jnp.uint32))


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    numbers = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    own = jax.vmap(_folded, (None, 0))(_folded(key, jnp.uint32(1)), numbers)
    return own.reshape(*shape, 2)


def _words(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    counted = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    words = _mixed(key[0] ^ _mixed(key[1] + counted)).reshape(shape)
    if bit_width == 64:
        return words.astype(jnp.uint64) << 32 | _mixed(words).astype(jnp.uint64)
    return words.astype(_BITS[bit_width])


_HASHED = define_prng_impl(
    key_shape=(2,), seed=_seeded, split=_split, random_bits=_words, fold_in=_folded, name="hashed", tag="hsh"
)
