"""Reads a federation's rows on the device."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.balance import warp
from fedjax_bal.data.inputs import are_tokens
from fedjax_bal.types import Batch, Context, Federation, PyTree, Warp


def normalised(images: jax.Array, mean: jax.Array, std: jax.Array) -> jax.Array:
    """Turns stored pixels, or other inputs, into network input.

    Bytes are scaled to [0, 1] first; floats are not; token ids are not normalised at all.

    Args:
        images: `UInt8[..., K]`, `Float[..., K]`, or token ids `Int[...]`.
        mean: `Float[K]`.
        std: `Float[K]`.

    Returns:
        `Float32[..., K]`; token ids as `Int32[...]`.

    Example:
        >>> import jax.numpy as jnp
        >>> float(normalised(jnp.array([[255]], jnp.uint8), jnp.array([0.5]), jnp.array([0.5]))[0, 0])
        1.0
    """
    if are_tokens(images):
        return images.astype(jnp.int32)
    scale = 255.0 if images.dtype == jnp.uint8 else 1.0
    return (images.astype(jnp.float32) / scale - mean) / std


def gather(federation: Federation, positions: jax.Array, real: jax.Array) -> Batch:
    """Returns the mini-batch at some positions of the federation's list of rows.

    Args:
        federation: the federation, on the device.
        positions: `Int32[B]`, positions in `federation.rows`; clipped to its length.
        real: `Bool[B]`, False for padding.

    Returns:
        The batch, its images normalised.
    """
    # Padding may lie beyond the last row: "clip" gathers some row in its place, which `real` masks.
    rows = federation.rows.at[positions].get(mode="clip")
    images = federation.images.at[rows].get(mode="clip")
    if federation.warp is not None:
        images = make_copies(federation.warp, images, rows, federation.copy.at[positions].get(mode="clip"))
    images = normalised(images, federation.mean, federation.std)
    return Batch(images, federation.labels.at[rows].get(mode="clip"), rows, real)


def make_copies(table: Warp, images: jax.Array, rows: jax.Array, copies: jax.Array) -> jax.Array:
    """Makes augmented copies of images `[B, H, W, K]`, by row number and copy number; copy 0 is the original."""
    key = jax.random.key(table.seed)

    # The map depends on row and copy number only, so a copy is the same in every epoch and for every client.
    def chosen(row: jax.Array, copy: jax.Array) -> jax.Array:
        own_key = jax.random.fold_in(jax.random.fold_in(key, row), copy)
        return table.maps[jax.random.bits(own_key, (), jnp.uint32) % len(table.maps)]

    moved = warp(images, jax.vmap(chosen)(rows, copies))
    return jnp.where(copies.reshape(-1, 1, 1, 1) > 0, moved, images)


def append_rows(batch: Batch, images: jax.Array, labels: jax.Array) -> Batch:
    """Appends rows to a batch, after the client's rows.

    Args:
        batch: the batch.
        images: `Float[A, H, W, K]`, as the network sees them.
        labels: `Int32[A]`.

    Returns:
        The batch of B + A rows; the added ones are marked as extra, and their row numbers exceed all others.

    Example:
        >>> one = Batch(jnp.zeros((1, 2, 2, 1)), jnp.zeros(1, int), jnp.zeros(1, int), jnp.ones(1, bool))
        >>> both = append_rows(one, jnp.ones((2, 2, 2, 1)), jnp.array([3, 4]))
        >>> both.labels.tolist(), both.real.tolist(), both.seen.tolist()
        ([0, 3, 4], [True, False, False], [True, True, True])
    """
    none = jnp.zeros(len(labels), bool)
    before = jnp.zeros_like(batch.real) if batch.extra is None else batch.extra
    nowhere = jnp.full(len(labels), jnp.iinfo(batch.rows.dtype).max, batch.rows.dtype)
    return Batch(
        jnp.concatenate([batch.images, images.astype(batch.images.dtype)]),
        jnp.concatenate([batch.labels, labels.astype(batch.labels.dtype)]),
        jnp.concatenate([batch.rows, nowhere]),
        jnp.concatenate([batch.real, none]),
        jnp.concatenate([before, ~none]),
    )


def with_images(batch: Batch, images: jax.Array) -> Batch:
    """Replaces the images of the client's own rows; rows that a part has added to the batch keep theirs."""
    if batch.extra is not None:
        images = jnp.where(batch.extra.reshape(-1, *[1] * (images.ndim - 1)), batch.images, images)
    return batch._replace(images=images)


def bounded_loop(
    body: Callable[[jax.Array, PyTree], PyTree], count: jax.Array, init: PyTree, most: int | None
) -> PyTree:
    """Applies `body(index, carry) -> carry` `count` times, in a loop of static length `most` if that is given.

    Iterations beyond `count` then change nothing, and reverse-mode differentiation works.
    """
    # A loop with a traced count has no reverse-mode derivative, one with a static count has.
    if most is None:
        return lax.fori_loop(0, count, body, init)

    def body_or_nothing(index: jax.Array, carry: PyTree) -> PyTree:
        return jax.tree.map(lambda new, old: jnp.where(index < count, new, old), body(index, carry), carry)

    return lax.fori_loop(0, most, body_or_nothing, init)


def over_rows(
    function: Callable[[PyTree, Batch], PyTree], init: PyTree, ctx: Context, order: jax.Array | None = None
) -> PyTree:
    """Folds a function over all of a client's rows, a batch at a time.

    The last batch may be padded; `batch.real` marks its rows.

    Args:
        function: `function(carry, batch) -> carry`.
        init: the first carry, and the result for a client without rows.
        ctx: the context of local training, with the client and the batch size.
        order: positions among the client's rows, `Int32[ctx.row_length]`, of which the first `ctx.size` count; None for
            the stored order, by class.

    Returns:
        The last carry.

    Example:
        A report that counts a client's rows:

        >>> from fedjax_bal.parts import Report, part
        >>> @part
        ... class Rows(Report):
        ...     def report(self, outcome):
        ...         count = lambda total, batch: total + batch.real.sum()
        ...         return over_rows(count, jnp.zeros((), int), outcome.ctx)
    """
    first = ctx.federation.offsets.at[ctx.client].get(mode="clip")
    within = jnp.arange(ctx.batch_size)

    def fold(index: jax.Array, carry: PyTree) -> PyTree:
        position = index * ctx.batch_size + within
        chosen = position if order is None else order.at[position].get(mode="clip")
        return function(carry, gather(ctx.federation, first + chosen, position < ctx.size))

    most = None if ctx.max_size is None else -(-ctx.max_size // ctx.batch_size)
    return bounded_loop(fold, -(-ctx.size // ctx.batch_size), init, most)


def random_order(key: jax.Array, ctx: Context) -> jax.Array:
    """Draws an order of a client's rows for `over_rows`: in the stored one, by class, most batches have one class."""
    draws = jax.random.uniform(key, (ctx.row_length,))
    return jnp.argsort(jnp.where(jnp.arange(ctx.row_length) < ctx.size, draws, 2.0))  # padding last


def stack_rows(function: Callable[[Batch], PyTree], ctx: Context) -> PyTree:
    """Applies a function of a batch to all of a client's rows, in the stored order, and stacks its results.

    Args:
        function: returns arrays with a first axis of B.
        ctx: the context of local training, with the client and the batch size.

    Returns:
        The results, `[ctx.row_length, ...]`; those from place `ctx.size` on are padding.
    """
    zeros = jnp.zeros(ctx.batch_size, jnp.int32)
    shapes = jax.eval_shape(lambda: function(gather(ctx.federation, zeros, zeros > 0)))
    empty = jax.tree.map(lambda leaf: jnp.zeros((ctx.row_length, *leaf.shape[1:]), leaf.dtype), shapes)

    def put(carry: tuple[jax.Array, PyTree], batch: Batch) -> tuple[jax.Array, PyTree]:
        place, stacked = carry
        write = lambda whole, piece: lax.dynamic_update_slice_in_dim(whole, piece, place, 0)
        return place + ctx.batch_size, jax.tree.map(write, stacked, function(batch))

    return over_rows(put, (jnp.zeros((), jnp.int32), empty), ctx)[1]
