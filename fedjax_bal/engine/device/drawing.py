"""The order in which a client's samples are drawn.

Both functions return positions among the client's own rows, made from one random word per position, so that more
padding changes nothing.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.types import Array, Key

SHORT = 128  # sorting fewer words isn't worth another branch


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
