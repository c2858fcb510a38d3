"""Random keys by identity.

A key is derived from its use (round, client, pass, purpose), never from a position in a batch of clients: the draws
are the same in whatever order and on whatever device the clients are executed.
"""

import zlib

import jax

from fedjax_bal.types import Array, Key


def purpose_key(key: Key, purpose: str) -> Key:
    """The key for one purpose: any text, each with a key of its own."""
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))


def training_key(key: Key, round: Array, client: Array, turn: Array) -> Key:
    """The key of one client's local training in one round and one pass (`turn`)."""
    own = purpose_key(key, "visit")  # a name that seeds every draw of a run: another one would change all results
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(own, round), client), turn)
