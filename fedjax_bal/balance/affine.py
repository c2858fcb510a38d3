"""Random affine maps of images: shift, rotation, shear and zoom."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Num, UInt32


@jax.jit
def random_affine(
    keys: Key[Array, " B"] | UInt32[Array, "B _"],
    images: Num[Array, "B H W K"],
    shift: Num[Array, ""] | float,
    rotate: Num[Array, ""] | float,
    shear: Num[Array, ""] | float,
    zoom: Num[Array, ""] | float,
) -> Num[Array, "B H W K"]:
    """Applies an independent random affine map to each image.

    Each image is zoomed about its centre, then sheared, rotated and shifted, by amounts drawn uniformly between minus
    and plus the range; see `affine_matrix`. Interpolation is bilinear, and pixels outside are zero: warp pixels before
    normalising them.

    Args:
        keys: one JAX random key per image, `[B]`. The same key always gives the same map.
        images: `[B, H, W, K]`, of any real type.
        shift: share of the side, along each axis.
        rotate: degrees.
        shear: tangent of the angle.
        zoom: relative, from 0 to 1; the same along both axes.

    Returns:
        `[B, H, W, K]` of the type of `images`: integers are rounded. Ranges of 0 return the images exactly.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> images = jnp.full((2, 28, 28, 1), 200, jnp.uint8)
        >>> warped = random_affine(jax.random.split(jax.random.key(0), 2), images, 0.1, 15.0, 0.2, 0.2)
        >>> warped.dtype, int(warped[0, 14, 14, 0])
        (dtype('uint8'), 200)

    References:
        Astraea (Duan et al., 2019), section III-B, which names shift, rotation, shear and zoom without ranges or order.
    """
    return warp(images, random_matrices(keys, images.shape[1], images.shape[2], shift, rotate, shear, zoom))


@jax.jit(static_argnames=("height", "width"))
def random_matrices(
    keys: Key[Array, " B"] | UInt32[Array, "B _"],
    height: int,
    width: int,
    shift: Num[Array, ""] | float,
    rotate: Num[Array, ""] | float,
    shear: Num[Array, ""] | float,
    zoom: Num[Array, ""] | float,
) -> Float[Array, "B 2 3"]:
    """Draws the affine maps of `random_affine`.

    Use it for images that must move together, such as a picture and its mask.

    Args:
        keys: one JAX random key per map, `[B]`.
        height: H, in pixels.
        width: W, in pixels.
        shift: like all ranges, see `random_affine`.
        rotate: degrees.
        shear: tangent of the angle.
        zoom: relative, from 0 to 1.

    Returns:
        `[B, 2, 3]`, for `warp`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> matrices = random_matrices(jax.random.split(jax.random.key(0), 2), 28, 28, 0.1, 0.0, 0.0, 0.0)
        >>> matrices.shape, bool((jnp.abs(matrices[:, :, 2]) <= 2.8).all())
        ((2, 2, 3), True)
    """
    chex.assert_rank([shift, rotate, shear, zoom], 0)
    drawn = jax.vmap(lambda key: jax.random.uniform(key, (5,), float, -1.0, 1.0))(keys)
    moved = shift * drawn[:, :2] * jnp.array([height, width], float)
    return affine_matrix(moved, rotate * drawn[:, 2], shear * drawn[:, 3], 1.0 + zoom * drawn[:, 4])


@jax.jit
def affine_matrix(
    shift: Num[Array, "*batch 2"],
    rotate: Num[Array, "*#batch"] | float,
    shear: Num[Array, "*#batch"] | float,
    zoom: Num[Array, "*#batch"] | float,
) -> Float[Array, "*batch 2 3"]:
    r"""Computes affine maps from the pixels of a zoomed, sheared, rotated and shifted image back to the original's.

    With offsets $p$ from the centre, in pixels, rows downwards and columns to the right, the image's point $p$ moves to
    $q = R S z p + t$: zoomed by $z$, then sheared by $S$ (columns move by $s$ times the row), then rotated by $R$,
    then shifted by $t$. The matrix describes the inverse map, $p = [A \mid -A t] (q, 1)$ with $A = (R S z)^{-1}$.

    Args:
        shift: t, rows down and columns to the right, in pixels, `[..., 2]`.
        rotate: degrees, anticlockwise on the screen, `[...]`.
        shear: s, a tangent, `[...]`.
        zoom: z, above 0; 2 doubles every size, `[...]`.

    Returns:
        `[..., 2, 3]`, for `warp`.

    Example:
        >>> import jax.numpy as jnp
        >>> affine_matrix(jnp.array([3.0, 1.0]), 0.0, 0.5, 2.0).tolist()
        [[0.5, 0.0, -1.5], [-0.25, 0.5, 0.25]]
    """
    angle = jnp.deg2rad(jnp.asarray(rotate, float))
    cosine = jnp.cos(angle)
    sine = jnp.sin(angle)
    rows = jnp.stack([cosine, sine], -1)
    columns = jnp.stack([-sine - shear * cosine, cosine - shear * sine], -1)
    back = jnp.stack([rows, columns], -2) / jnp.asarray(zoom, float)[..., None, None]
    # Not a matrix product: accelerators may compute it with reduced precision.
    return jnp.concatenate([back, -(back * shift[..., None, :]).sum(-1, keepdims=True)], -1)


@jax.jit
def warp(images: Num[Array, "B H W K"], matrices: Float[Array, "B 2 3"]) -> Num[Array, "B H W K"]:
    """Applies an affine map to each image, with bilinear interpolation.

    The output's pixel at the offset $q$ from the centre, $((H - 1) / 2, (W - 1) / 2)$, is the input at $M (q, 1)$,
    bilinear between pixel centres and zero from the first pixel outside on.

    Args:
        images: `[B, H, W, K]`, of any real type.
        matrices: M, from an output offset to an input offset, (row, column) in pixels, `[B, 2, 3]`.

    Returns:
        `[B, H, W, K]` of the type of `images`; integers are rounded.

    Example:
        A shift by one column to the right:

        >>> import jax.numpy as jnp
        >>> image = jnp.array([[1, 2, 3]])[None, :, :, None]
        >>> warp(image, jnp.array([[[1.0, 0.0, 0.0], [0.0, 1.0, -1.0]]]))[0, 0, :, 0].tolist()
        [0, 1, 2]
    """
    return jax.vmap(_warp_image)(images, matrices)


def _warp_image(image: Num[Array, "H W K"], matrix: Float[Array, "2 3"]) -> Num[Array, "H W K"]:
    height, width, channels = image.shape
    down = jnp.arange(height)[:, None] - (height - 1) / 2
    right = jnp.arange(width)[None, :] - (width - 1) / 2
    row, column = (line[0] * down + line[1] * right + line[2] for line in matrix)
    top, low = _split(row + (height - 1) / 2, height)
    left, far = _split(column + (width - 1) / 2, width)
    # A frame of zeros replaces a mask for each neighbour. Positions range from -1 to the side, and each reads the pixel
    # at or before it and the next one; hence one zero before and two after.
    framed = jnp.pad(image, ((1, 2), (1, 2), (0, 0))).reshape(-1, channels)
    first = (top + 1) * (width + 3) + left + 1
    exact = jnp.promote_types(image.dtype, jnp.float32)
    pixel = lambda step: framed.at[first + step].get(mode="clip").astype(exact)
    upper = pixel(0) * (1.0 - far) + pixel(1) * far
    lower = pixel(width + 3) * (1.0 - far) + pixel(width + 4) * far
    mixed = upper * (1.0 - low) + lower * low
    return (jnp.round(mixed) if jnp.issubdtype(image.dtype, jnp.integer) else mixed).astype(image.dtype)


def _split(place: Float[Array, "H W"], side: int) -> tuple[Num[Array, "H W"], Float[Array, "H W 1"]]:
    """Returns the pixel at or before a position, and the remaining fraction; positions outside are clipped."""
    place = jnp.clip(place, -1.0, side)
    before = jnp.floor(place)
    return before.astype(int), (place - before)[..., None]
