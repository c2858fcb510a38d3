"""Ways of writing one convolution.

XLA:CPU computes a convolution at the speed of its matrix product only for some shapes. Each function here is the same
linear map written another way; `fedjax_bal.models.forms.rules` picks one for a shape.

Images are `[B, H, W, K]`, kernels `[h, w, K, O]`, results `[B, H', W', O]`.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.models.geometry import LAYOUT, Geometry, pad_images, patches

LARGEST_BLOCK = 4

LIBRARY_CHANNELS = 17
"""So many channels, in or out, XLA's fast convolution on CPUs needs at least."""


def direct(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """A convolution as XLA's own.

    On CPUs it is put so that XLA takes its fast library: that one wants more than 16 channels on either side, and no
    more zeros around the images than leave their size as it is. What it refuses goes to another library, which is
    slower and, once two devices use it at a time, returns wrong numbers after some hundred calls (jax 0.10.2 and
    0.11.2).

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, K, O]`.
        geometry: where the kernel is applied.

    Returns:
        `[B, H', W', O]`.

    Example:
        >>> direct(jnp.ones((2, 5, 5, 3)), jnp.ones((5, 5, 3, 4)), Geometry((1, 1), ((0, 0), (0, 0)))).shape
        (2, 1, 1, 4)
    """
    outputs = kernel.shape[-1]
    if jax.default_backend() == "cpu":
        images, kernel, geometry = _for_the_library(images, kernel, geometry)
    result = lax.conv_general_dilated(images, kernel, geometry.strides, geometry.pads, dimension_numbers=LAYOUT)
    return result[..., :outputs]


def _for_the_library(images: Array, kernel: Array, geometry: Geometry) -> tuple[Array, Array, Geometry]:
    """The same convolution with few zeros left to add and, where channels are few, with outputs that are zero."""
    (top, left), (bottom, right) = (
        [min(max(pads[end], 0), (taps - 1) // 2) for pads, taps in zip(geometry.pads, kernel.shape[:2], strict=True)]
        for end in (0, 1)
    )
    (above, below), (before, behind) = geometry.pads
    outside = (above - top, below - bottom), (before - left, behind - right)
    if any(any(sides) for sides in outside):
        # Without the barrier XLA would make the padding part of the convolution again.
        images = lax.optimization_barrier(pad_images(images, outside))
    if max(kernel.shape[2:]) < LIBRARY_CHANNELS:
        kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, 0), (0, LIBRARY_CHANNELS - kernel.shape[-1])))
    return images, kernel, Geometry(geometry.strides, ((top, bottom), (left, right)))


def by_patches(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """A convolution as one matrix product of patches and kernel.

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, K, O]`.
        geometry: where the kernel is applied.

    Returns:
        `[B, H', W', O]`.

    Example:
        >>> by_patches(jnp.ones((2, 5, 5, 3)), jnp.ones((5, 5, 3, 4)), Geometry((1, 1), ((0, 0), (0, 0)))).shape
        (2, 1, 1, 4)
    """
    return patches(images, kernel.shape[:2], geometry) @ kernel.reshape(-1, kernel.shape[-1])


def by_blocks(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """A convolution as one matrix product that yields several neighbouring pixels at a time.

    With few channels this makes the product squarer and the patches fewer, at the price of some products with zero.

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, K, O]`.
        geometry: where the kernel is applied.

    Returns:
        `[B, H', W', O]`.

    Example:
        >>> by_blocks(jnp.ones((2, 8, 8, 1)), jnp.ones((5, 5, 1, 16)), Geometry((1, 1), ((0, 0), (0, 0)))).shape
        (2, 4, 4, 16)
    """
    wide, where = widened(images.shape[1:3], kernel, geometry, 64)
    return _unfold(by_patches(images, wide, where), kernel)


def by_wide_kernel(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """A convolution as XLA's own with a wider kernel, which yields several neighbouring pixels at a time.

    XLA's fast convolution on CPUs needs more than 16 channels; the wider kernel has them.

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, K, O]`.
        geometry: where the kernel is applied.

    Returns:
        `[B, H', W', O]`.

    Example:
        >>> by_wide_kernel(jnp.ones((2, 8, 8, 5)), jnp.ones((3, 3, 5, 16)), Geometry((1, 1), ((1, 1), (1, 1)))).shape
        (2, 8, 8, 16)
    """
    wide, where = widened(images.shape[1:3], kernel, geometry, 32)
    return _unfold(direct(images, wide, where), kernel)


def by_rows(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """A convolution of stride 1 as one matrix product per row of pixels, then a sum of shifted rows.

    The product has `h * O` columns instead of O, which fills the vector units when O is small, and its patches are
    h times smaller than those of `by_patches`.

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, K, O]`.
        geometry: where the kernel is applied; its strides must be 1.

    Returns:
        `[B, H', W', O]`.

    Example:
        >>> by_rows(jnp.ones((2, 5, 5, 3)), jnp.ones((5, 5, 3, 4)), Geometry((1, 1), ((1, 1), (0, 0)))).shape
        (2, 3, 1, 4)
    """
    taps, across, inputs, outputs = kernel.shape
    (top, bottom), columns = geometry.pads
    rows = patches(images, (1, across), Geometry((1, 1), ((0, 0), columns)))
    products = rows @ kernel.transpose(1, 2, 0, 3).reshape(across * inputs, taps * outputs)
    shifted = [
        pad_images(products[..., i * outputs : (i + 1) * outputs], ((top - i, bottom - (taps - 1 - i)), (0, 0)))
        for i in range(taps)
    ]
    return functools.reduce(jnp.add, shifted)


def by_shifts(images: Float[Array, "B H W K"], kernel: Float[Array, "h w 1 K"], geometry: Geometry) -> Array:
    """A depthwise convolution, one kernel for each channel, as a sum of shifted copies.

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, 1, K]`.
        geometry: where the kernel is applied.

    Returns:
        `[B, H', W', K]`.

    Example:
        >>> by_shifts(jnp.ones((1, 3, 3, 2)), jnp.ones((3, 3, 1, 2)), Geometry((1, 1), ((0, 0), (0, 0)))).ravel()
        Array([9., 9.], dtype=float32)
    """
    seen = taps(images, kernel.shape[:2], geometry)
    weights = kernel.reshape(-1, kernel.shape[-1])
    return functools.reduce(jnp.add, [view * weight for view, weight in zip(seen, weights, strict=True)])


def taps(images: Float[Array, "B H W K"], size: tuple[int, ...], geometry: Geometry) -> list[Array]:
    """What each tap of a kernel sees at every position, row by row.

    Args:
        images: `[B, H, W, K]`.
        size: height and width of the kernel, in pixels.
        geometry: where the kernel is applied.

    Returns:
        h * w arrays `[B, H', W', K]`.

    Example:
        >>> len(taps(jnp.ones((1, 3, 3, 2)), (2, 2), Geometry((1, 1), ((0, 0), (0, 0)))))
        4
    """
    height, width = geometry.output_size(images.shape[1:3], size)
    images = pad_images(images, geometry.pads)
    down, across = geometry.strides
    far = (height - 1) * down + 1, (width - 1) * across + 1
    return [images[:, i : i + far[0] : down, j : j + far[1] : across] for i in range(size[0]) for j in range(size[1])]


def widened(
    image: tuple[int, ...], kernel: Float[Array, "h w K O"], geometry: Geometry, outputs: int
) -> tuple[Array, Geometry]:
    """Shifted copies of a kernel side by side, which are one wider kernel with more outputs and a larger stride.

    Args:
        image: height and width of the images, in pixels.
        kernel: `[h, w, K, O]`.
        geometry: where the kernel is applied.
        outputs: outputs to aim at; the number of copies divides the width of the result.

    Returns:
        The wider kernel `[h, w', K, n O]`, and where it is applied.

    Example:
        >>> wide, where = widened((8, 8), jnp.ones((3, 3, 5, 16)), Geometry((1, 1), ((1, 1), (1, 1))), 32)
        >>> wide.shape, where.strides
        ((3, 4, 5, 32), (1, 2))
    """
    width = geometry.output_size(image, kernel.shape[:2])[1]
    block = math.gcd(width, min(LARGEST_BLOCK, max(1, outputs // kernel.shape[-1])))
    down, across = geometry.strides
    copies = [jnp.pad(kernel, ((0, 0), (i * across, (block - 1 - i) * across), (0, 0), (0, 0))) for i in range(block)]
    return jnp.concatenate(copies, -1), Geometry((down, across * block), geometry.pads)


def _unfold(blocks: Array, kernel: Array) -> Array:
    return blocks.reshape(*blocks.shape[:2], -1, kernel.shape[-1])
