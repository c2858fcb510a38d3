"""Similarity of generated images to the nearest real ones, and of an attack's images to the truth."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from fedjax_bal.validate import whole_number

_CANDIDATES = 8  # enough that rounding can't push the nearest one out


def nearest(
    images: Float[Any, "M H W K"], pool: Float[Any, "D H W K"], chunk: int = 4096
) -> tuple[Int[Array, " M"], Float[Array, " M"]]:
    r"""Finds each image's nearest neighbour in a pool, and its distance.

    The distance of x and y is the root mean square over pixels and channels, $\sqrt{\|x - y\|^2 / (H W K)}$. For
    normalised images 1 is one standard deviation of a pixel; unrelated images are about $\sqrt 2$ apart.

    One matrix product for each part of the pool proposes candidates; their distances are computed from the differences,
    so that a copy has distance 0.

    Args:
        images: `[M, H, W, K]`, normalised.
        pool: `[D, H, W, K]`, normalised in the same way. It may stay in the host's memory: it is moved part by part.
        chunk: rows of the pool per part; memory grows with M times this, and with M times an image.

    Returns:
        Row numbers into the pool `[M]`, the first of equally near ones (of at least a handful), and distances `[M]` in
        normalised pixels. An image that is not finite gets row 0 and distance infinity; a row of the pool that is not
        finite is never the nearest.

    Raises:
        ValueError: the images' shape is not the pool's, the pool is empty, or the chunk is not a positive integer.

    Example:
        >>> pool = jnp.array([0.0, 1.0, 5.0]).reshape(3, 1, 1, 1) * jnp.ones((3, 2, 2, 1))
        >>> rows, distances = nearest(pool[1:] + 0.5, pool)
        >>> rows.tolist(), distances.tolist()
        ([1, 2], [0.5, 0.5])
    """
    whole_number("chunk", chunk)
    if len(images.shape) != 4 or images.shape[1:] != pool.shape[1:] or not pool.shape[0]:
        raise ValueError(
            f"nearest: received images of shape {tuple(images.shape)} and a pool of shape {tuple(pool.shape)}, must be "
            "[M, H, W, K] and [D, H, W, K] with D of at least 1"
        )
    size = pool.shape[0]
    chunk = min(chunk, size)
    best = jnp.zeros(images.shape[0], jnp.int32), jnp.full(images.shape[0], jnp.inf, jnp.float32)
    # The last part overlaps the one before, so that all parts have the same shape and share one program.
    for start in range(0, size, chunk):
        start = min(start, size - chunk)
        best = _nearer(jnp.asarray(images), jnp.asarray(pool[start : start + chunk]), start, best)
    return best


@jax.jit
def _nearer(images: Array, part: Array, start: Array, best: tuple[Array, Array]) -> tuple[Array, Array]:
    """Updates the best rows and distances so far with a part of the pool that begins at row `start`."""
    images, part = (jnp.asarray(rows.reshape(rows.shape[0], -1), jnp.float32) for rows in (images, part))
    # The few rows with the smallest |y|^2 - 2 x y, in the order of the pool. |x|^2 is left out, as it is the same for
    # all rows. High precision, since two large terms nearly cancel.
    product = jnp.matmul(images, part.T, precision=lax.Precision.HIGHEST)
    apart = (part**2).sum(1) - 2 * product
    apart = jnp.where(jnp.isfinite(apart), apart, jnp.inf)
    candidates = jnp.sort(lax.top_k(-apart, min(_CANDIDATES, part.shape[0]))[1], 1)

    def distances_to(rows: Array) -> Array:
        distances = jnp.sqrt(((images - part[rows]) ** 2).mean(1))
        return jnp.where(jnp.isnan(distances), jnp.inf, distances)

    distances = lax.map(distances_to, candidates.T).T
    first = jnp.argmin(distances, 1)[:, None]
    row, distance = (jnp.take_along_axis(values, first, 1)[:, 0] for values in (candidates, distances))
    nearer = distance < best[1]
    return jnp.where(nearer, row + start, best[0]).astype(jnp.int32), jnp.where(nearer, distance, best[1])


@jax.jit
def recovered(images: Float[Array, "M H W K"], truth: Float[Array, "M H W K"]) -> Float[Array, " M"]:
    """Correlates the pixels of an attack's images with the truth.

    For features of single images the truth is that image: this control shows the attack's power. For a prototype it is
    the class's mean image, or the image nearest to the attack's, see `nearest`. Compare the numbers with those of a
    wrong truth, such as the image of another row: images of one kind have much in common.

    Args:
        images: the attack's, `[M, H, W, K]`, normalised.
        truth: `[M, H, W, K]`, normalised in the same way.

    Returns:
        Correlations from -1 to 1, `[M]`; 0 if one of the two images is constant or not finite. They ignore brightness
            and contrast, which an attack often gets wrong.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> truth = jnp.arange(4.0).reshape(1, 2, 2, 1)
        >>> recovered(3 * truth + 2, truth).round(3).tolist()
        [1.0]
    """
    if len(images.shape) != 4 or images.shape != truth.shape:
        raise ValueError(
            f"recovered: received images of shape {tuple(images.shape)} and truth of shape {tuple(truth.shape)}, must "
            "be [M, H, W, K] both"
        )
    flat = (each.reshape(len(each), -1) for each in (images, truth))
    centred = (rows - rows.mean(1, keepdims=True) for rows in flat)
    return jnp.nan_to_num(optax.cosine_similarity(*centred, epsilon=1e-30))
