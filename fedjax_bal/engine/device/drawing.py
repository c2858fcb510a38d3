"""Random keys by identity, and the order in which a client's samples are drawn.

A key is derived from its use (round, client, pass, purpose), never from a position in a batch of clients, so the draws
don't depend on the order in which clients are executed, or on the device. An order lists positions among a client's
rows; each position has one random word, so that more padding changes nothing.
"""

import math
import zlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl, threefry_prng_impl

from fedjax_bal.target import target_platform
from fedjax_bal.types import Array, Key

SHORT = 128  # sorting fewer words isn't worth another branch
SHARED = 1024  # drawing so many words takes microseconds, so branches that sort at most these share one draw


def purpose_key(key: Key, purpose: str) -> Key:
    """Derives the key for a purpose, any text; different purposes get independent keys."""
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))


def training_key(key: Key, round: Array, client: Array, turn: Array) -> Key:
    """Derives the key of one client's local training in one round and one pass (`turn`)."""
    visit = purpose_key(key, "visit")  # this text seeds every draw of a run: changing it changes all results
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(visit, round), client), turn)


def shuffled(key: Key, size: Array, length: int, longest: Array | None = None) -> Array:
    """Returns a random permutation of the positions `0 .. size - 1`, then padding, `Int32[length]`.

    `longest` bounds the size of the clients that train together: given that, less of the padding is sorted.
    """
    if longest is None or length <= SHORT:
        return _order(_words(key, length), size)
    lengths = [length]
    while lengths[-1] > SHORT:
        lengths.append(-(-lengths[-1] // 2))
    # A word depends only on its position. A draw takes much longer to compile than a sort, and each branch would have
    # its own.
    shared = _words(key, max(short for short in lengths if short <= SHARED))

    def branch(short: int) -> Array:
        words = shared[:short] if short <= SHARED else _words(key, short)
        return jnp.pad(_order(words, size), (0, length - short))

    # Sorted words beyond a client's size are padding, so a shorter sort gives the same order. `longest` has no client
    # axis, so that under `vmap` this stays a branch; on a batched number all lengths would be sorted.
    enough = (jnp.array(lengths) >= longest).sum() - 1
    return lax.switch(enough, [partial(branch, short) for short in lengths])


def _words(key: Key, length: int) -> Array:
    # Half of the words' range is reserved for padding, so that it sorts after all real positions.
    return jax.random.bits(key, (length,), jnp.uint32) >> 1


def _order(words: Array, size: Array) -> Array:
    return jnp.argsort(jnp.where(jnp.arange(len(words)) < size, words, jnp.uint32(0xFFFFFFFF)), stable=True)


def weighted(key: Key, class_counts: Array, log_weights: Array, length: int) -> Array:
    """Draws positions with replacement from a distribution that depends only on the class, `Int32[length]`.

    Rows are sorted by class, so a draw selects a class by inverting the cumulative distribution, then a position within
    the class. `log_weights`, `Float[C]`, has the log weight of one sample of each class, up to a constant; classes
    without samples are never drawn.
    """
    words = jax.random.uniform(key, (length, 2))
    cumulated = jnp.cumsum(class_shares(class_counts, log_weights))
    # Normalised by the last number, which rounding can leave below 1: a word above it would select no class.
    drawn = jnp.searchsorted(cumulated / cumulated[-1], words[:, 0], side="right")
    inside = (words[:, 1] * class_counts[drawn]).astype(jnp.int32)
    starts = jnp.cumsum(class_counts) - class_counts
    # The product of a word just below 1 can round up to the count itself.
    return starts[drawn] + jnp.minimum(inside, class_counts[drawn] - 1)


def class_shares(class_counts: Array, log_weights: Array) -> Array:
    """Returns how often `weighted` draws each class, `Float[C]`, which adds up to 1; NaN for a client without rows."""
    counts = class_counts.astype(float)
    logits = jnp.where(counts > 0, log_weights + jnp.log(jnp.maximum(counts, 1.0)), -jnp.inf)
    return jax.nn.softmax(logits)


# On CPUs jax writes Threefry's 20 rounds as a loop, which XLA doesn't fuse and LLVM unrolls again for every draw: most
# of the time to compile the draw of a model. The generator below computes the same words without a loop.


def unrolled(key: Key) -> Key:
    """Returns a key that draws the same words and compiles faster, if it is jax's default kind on a CPU.

    For the draw of a model only: programs that train a network with dropout compiled no faster with it.
    """
    config: Any = jax.config
    default = jax.random.key_impl(key) == "threefry2x32" and config.jax_threefry_partitionable
    if not default or target_platform() != "cpu":
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_UNROLLED)


@jax.jit
def _threefry(key: Array, counters: Array) -> tuple[Array, Array]:
    """Encrypts counters below 2**32 with Threefry-2x32 (Salmon et al., "Parallel random numbers", 2011)."""
    keys = [key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA)]
    first = jnp.full_like(counters, keys[0])
    second = counters + keys[1]
    for turn in range(1, 6):
        for distance in (13, 15, 26, 6) if turn % 2 else (17, 29, 16, 24):
            first = first + second
            second = first ^ (second << distance | second >> (32 - distance))
        first = first + keys[turn % 3]
        second = second + keys[(turn + 1) % 3] + np.uint32(turn)
    return first, second


def _counters(shape: tuple[int, ...]) -> Array:
    return jnp.arange(math.prod(shape), dtype=np.uint32).reshape(shape)


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return jnp.stack(_threefry(key, _counters(shape)), -1)


def _fold_in(key: Array, number: Any) -> Array:
    return jnp.stack(_threefry(key, jnp.asarray(number, np.uint32)))


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    first, second = _threefry(key, _counters(shape))
    if bit_width == 64:
        return first.astype(np.uint64) << 32 | second.astype(np.uint64)
    return (first ^ second).astype(f"uint{bit_width}")


_UNROLLED = define_prng_impl(
    key_shape=(2,),
    seed=threefry_prng_impl.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="unrolled_threefry2x32",
    tag="unr",
)
