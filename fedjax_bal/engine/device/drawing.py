"""Random keys by identity, and the order in which a client's samples are drawn.

A key is derived from its use (round, client, pass, purpose), never from a position in a batch of clients: the draws
are the same in any order and on any device in which the clients are executed. Orders are positions among a client's
rows, made from one random word per position, so that more padding changes nothing.
"""

import zlib
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.types import Array, Key

SHORT = 128  # sorting fewer words isn't worth another branch


def purpose_key(key: Key, purpose: str) -> Key:
    """The key for one purpose: any text, each with a key of its own."""
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))


def training_key(key: Key, round: Array, client: Array, turn: Array) -> Key:
    """The key of one client's local training in one round and one pass (`turn`)."""
    visit = purpose_key(key, "visit")  # a name that seeds every draw of a run: another one would change all results
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(visit, round), client), turn)


def shuffled(key: Key, size: Array, length: int, longest: Array | None = None) -> Array:
    """Every position once, in random order, `Int32[length]`: a permutation of `0 .. size - 1`, then padding.

    No client is larger than `longest`, if given: then only as many words are sorted as needed, not all the padding.
    """
    if longest is None or length <= SHORT:
        return _sorted_words(key, size, length)
    lengths = [length]
    while lengths[-1] > SHORT:
        lengths.append(-(-lengths[-1] // 2))

    def branch(short: int) -> Array:
        return jnp.pad(_sorted_words(key, size, short), (0, length - short))

    # Sorted words beyond a client's size are padding, so a shorter sort gives the same order.
    enough = (jnp.array(lengths) >= longest).sum() - 1
    return lax.switch(enough, [partial(branch, short) for short in lengths])


def _sorted_words(key: Key, size: Array, length: int) -> Array:
    # Half of the words' range is kept for padding, which therefore sorts behind all real positions.
    words = jax.random.bits(key, (length,), jnp.uint32) >> 1
    return jnp.argsort(jnp.where(jnp.arange(length) < size, words, jnp.uint32(0xFFFFFFFF)), stable=True)


def weighted(key: Key, class_counts: Array, log_weights: Array, length: int) -> Array:
    """Independent draws with replacement from a law that depends on the class only, positions `Int32[length]`.

    Rows are sorted by class, so a draw is a class by the inverse of the cumulated law, then a position within the
    class. `log_weights`, `Float[C]`, are those of one sample of each class, up to a constant; classes without samples
    are never drawn.
    """
    words = jax.random.uniform(key, (length, 2))
    logits = jnp.where(class_counts > 0, log_weights + jnp.log(jnp.maximum(class_counts, 1)), -jnp.inf)
    cumulated = jnp.cumsum(jax.nn.softmax(logits))
    drawn = jnp.searchsorted(cumulated / cumulated[-1], words[:, 0], side="right")
    inside = (words[:, 1] * class_counts[drawn]).astype(jnp.int32)
    starts = jnp.cumsum(class_counts) - class_counts
    return starts[drawn] + jnp.minimum(inside, class_counts[drawn] - 1)
