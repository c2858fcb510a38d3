"""Ways of writing one convolution, and the rules that choose among them.

XLA:CPU computes a convolution at the speed of its matrix product only for some shapes, and the gradients that JAX
derives by itself leave that path inside a loop. Each function here is the same linear map written another way; the two
rules, `convolve` and `weight_gradient`, pick the way that `benchmarks/convolution.py` finds fastest for the shape.

Images are `[..., H, W, K]`, kernels `[h, w, K, O]`, results `[..., H', W', O]`.
"""

import functools
import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.models.geometry import Geometry, pad_images, patches

LAYOUT = ("NHWC", "HWIO", "NHWC")
FEW_INPUTS = 4
FEW_OUTPUTS = 16
LARGEST_BLOCK = 4
BLOCK_OUTPUTS = 64


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

    Shifted copies of the kernel, side by side, are one wider kernel with more output channels and a larger stride.
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
    outputs = kernel.shape[-1]
    block, wide = _blocks(images.shape[1:3], kernel.shape[:2], outputs, geometry)
    side = geometry.strides[1]
    copies = [jnp.pad(kernel, ((0, 0), (i * side, (block - 1 - i) * side), (0, 0), (0, 0))) for i in range(block)]
    joined = by_patches(images, jnp.concatenate(copies, -1), wide)
    return joined.reshape(*joined.shape[:2], -1, outputs)


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


def direct(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """A convolution as XLA's own.

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
    return lax.conv_general_dilated(images, kernel, geometry.strides, geometry.pads, dimension_numbers=LAYOUT)


def convolve(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """Convolve in the way that suits the shape.

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, K, O]`.
        geometry: where the kernel is applied.

    Returns:
        `[B, H', W', O]`.

    Example:
        >>> convolve(jnp.ones((2, 5, 5, 1)), jnp.ones((5, 5, 1, 4)), Geometry((1, 1), ((0, 0), (0, 0)))).shape
        (2, 1, 1, 4)
    """
    inputs, outputs = kernel.shape[2:]
    if inputs <= FEW_INPUTS or (outputs <= FEW_OUTPUTS and geometry.strides == (1, 1)):
        return convolve_by_products(images, kernel, geometry)
    return direct(images, kernel, geometry)


def convolve_by_products(images: Array, kernel: Array, geometry: Geometry) -> Array:
    """Convolve with matrix products only, which `jax.vmap` over kernels turns into batched products.

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, K, O]`.
        geometry: where the kernel is applied.

    Returns:
        `[B, H', W', O]`.

    Example:
        >>> geometry = Geometry((1, 1), ((0, 0), (0, 0)))
        >>> convolve_by_products(jnp.ones((2, 5, 5, 1)), jnp.ones((5, 5, 1, 4)), geometry).shape
        (2, 1, 1, 4)
    """
    inputs, outputs = kernel.shape[2:]
    if inputs <= FEW_INPUTS:
        return by_blocks(images, kernel, geometry)
    if outputs <= FEW_OUTPUTS and geometry.strides == (1, 1):
        return by_rows(images, kernel, geometry)
    return by_patches(images, kernel, geometry)


def weight_gradient(
    images: Float[Array, "B H W K"], cotangent: Float[Array, "B H2 W2 O"], size: tuple[int, int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """The gradient of a convolution with respect to its kernel.

    At stride 1 it is itself a convolution, with the same padding: channels take the place of the batch, the batch that
    of the channels, and the cotangent is the kernel. Where strides would put gaps into that kernel, or where it would
    be larger than the image, a product with patches is faster.

    Args:
        images: `[B, H, W, K]`.
        cotangent: `[B, H', W', O]`, the gradient with respect to the result.
        size: height and width of the kernel, in pixels.
        geometry: where the kernel is applied.

    Returns:
        `[h, w, K, O]`.

    Example:
        >>> images, cotangent = jnp.ones((2, 6, 6, 3)), jnp.ones((2, 2, 2, 4))
        >>> weight_gradient(images, cotangent, (5, 5), Geometry((1, 1), ((0, 0), (0, 0)))).shape
        (5, 5, 3, 4)
    """
    (height, width), (down, across) = images.shape[1:3], cotangent.shape[1:3]
    few = images.shape[-1] <= FEW_INPUTS
    if few or geometry.strides != (1, 1) or down > height or across > width:
        return weight_gradient_by_products(images, cotangent, size, geometry)
    swapped = images.transpose(3, 1, 2, 0), cotangent.transpose(1, 2, 0, 3)
    return direct(*swapped, geometry).transpose(1, 2, 0, 3)


def weight_gradient_by_products(images: Array, cotangent: Array, size: tuple[int, int], geometry: Geometry) -> Array:
    """The gradient with respect to the kernel with matrix products only, for `jax.vmap` over clients.

    Args:
        images: `[B, H, W, K]`.
        cotangent: `[B, H', W', O]`.
        size: height and width of the kernel, in pixels.
        geometry: where the kernel is applied.

    Returns:
        `[h, w, K, O]`.

    Example:
        >>> images, cotangent = jnp.ones((2, 6, 6, 3)), jnp.ones((2, 2, 2, 4))
        >>> weight_gradient_by_products(images, cotangent, (5, 5), Geometry((1, 1), ((0, 0), (0, 0)))).shape
        (5, 5, 3, 4)
    """
    if images.shape[-1] <= FEW_INPUTS:
        return gradient_by_blocks(images, cotangent, size, geometry)
    return gradient_by_patches(images, cotangent, size, geometry)


def gradient_by_patches(images: Array, cotangent: Array, size: tuple[int, int], geometry: Geometry) -> Array:
    """The gradient with respect to the kernel as one matrix product of patches and cotangent.

    Args:
        images: `[B, H, W, K]`.
        cotangent: `[B, H', W', O]`.
        size: height and width of the kernel, in pixels.
        geometry: where the kernel is applied.

    Returns:
        `[h, w, K, O]`.

    Example:
        >>> images, cotangent = jnp.ones((2, 6, 6, 3)), jnp.ones((2, 2, 2, 4))
        >>> gradient_by_patches(images, cotangent, (5, 5), Geometry((1, 1), ((0, 0), (0, 0)))).shape
        (5, 5, 3, 4)
    """
    product = jnp.einsum("nhwk,nhwo->ko", patches(images, size, geometry), cotangent)
    return product.reshape(*size, images.shape[-1], cotangent.shape[-1])


def gradient_by_blocks(images: Array, cotangent: Array, size: tuple[int, int], geometry: Geometry) -> Array:
    """The gradient with respect to the kernel, by way of the wider kernel of `by_blocks`.

    Args:
        images: `[B, H, W, K]`.
        cotangent: `[B, H', W', O]`.
        size: height and width of the kernel, in pixels.
        geometry: where the kernel is applied.

    Returns:
        `[h, w, K, O]`.

    Example:
        >>> images, cotangent = jnp.ones((2, 8, 8, 1)), jnp.ones((2, 4, 4, 16))
        >>> gradient_by_blocks(images, cotangent, (5, 5), Geometry((1, 1), ((0, 0), (0, 0)))).shape
        (5, 5, 1, 16)
    """
    inputs, outputs, side = images.shape[-1], cotangent.shape[-1], geometry.strides[1]
    block, wide = _blocks(images.shape[1:3], size, outputs, geometry)
    reach = size[0], size[1] + (block - 1) * side
    product = _planes(images, reach, wide) @ cotangent.reshape(-1, block * outputs)
    copies = jnp.split(product.reshape(*reach, inputs, block * outputs), block, -1)
    return functools.reduce(jnp.add, [copy[:, i * side : i * side + size[1]] for i, copy in enumerate(copies)])


def _planes(images: Array, size: Sequence[int], geometry: Geometry) -> Float[Array, "T P"]:
    """What each tap of the kernel sees, tap by tap: patches transposed, without a transposition."""
    height, width = geometry.output_size(images.shape[1:3], size)
    images = pad_images(images, geometry.pads)
    count, inputs = images.shape[0], images.shape[-1]
    down, across = geometry.strides
    far = (height - 1) * down + 1, (width - 1) * across + 1
    planes = [
        lax.slice(images, (0, i, j, k), (count, i + far[0], j + far[1], k + 1), (1, down, across, 1))
        for i in range(size[0])
        for j in range(size[1])
        for k in range(inputs)
    ]
    return jnp.stack(planes).reshape(len(planes), -1)


def _blocks(image: Sequence[int], kernel: Sequence[int], outputs: int, geometry: Geometry) -> tuple[int, Geometry]:
    """How many neighbouring pixels to take at a time, and where the wider kernel is applied."""
    width = geometry.output_size(image, kernel)[1]
    block = math.gcd(width, min(LARGEST_BLOCK, max(1, BLOCK_OUTPUTS // outputs)))
    down, across = geometry.strides
    return block, Geometry((down, across * block), geometry.pads)
