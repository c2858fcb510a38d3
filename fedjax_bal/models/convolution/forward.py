"""Forms of a convolution: different ways to compute the same linear map.

XLA:CPU computes a convolution at the speed of its matrix product only for some shapes;
`fedjax_bal.models.convolution.rules` chooses the form for a shape. Images are `[B, H, W, K]`, kernels `[h, w, K, O]`,
results `[B, H', W', O]`.
"""

import functools
import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.models.convolution.geometry import LAYOUT, Geometry, pad_images, patches, plain_convolution
from fedjax_bal.models.derivatives import fast_derivative
from fedjax_bal.target import target_platform

LARGEST_BLOCK = 4

LIBRARY_CHANNELS = 17
"""The fewest channels, in or out, with which XLA uses its fast convolution on CPUs."""


def direct(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """Convolves with XLA's own convolution, arranged on CPUs so that XLA uses its fast library."""
    outputs = kernel.shape[-1]
    # XLA's fast library on CPUs takes convolutions with more than 16 channels in or out, whose padding doesn't make the
    # result larger than the images. Others go to another library, which is slower and, if two devices use it at the
    # same time, returns wrong numbers after some hundred calls (jax 0.10.2 and 0.11.2).
    if target_platform() == "cpu":
        images, kernel, geometry = _fit_library(images, kernel, geometry)
    result = lax.conv_general_dilated(images, kernel, geometry.strides, geometry.pads, dimension_numbers=LAYOUT)
    return result[..., :outputs]


def _fit_library(images: Array, kernel: Array, geometry: Geometry) -> tuple[Array, Array, Geometry]:
    """Pads the images beforehand, and the kernel with outputs of zero, until XLA's fast library takes them."""
    (top, left), (bottom, right) = (
        [min(max(pads[end], 0), (taps - 1) // 2) for pads, taps in zip(geometry.pads, kernel.shape[:2], strict=True)]
        for end in (0, 1)
    )
    (above, below), (before, behind) = geometry.pads
    outside = (above - top, below - bottom), (before - left, behind - right)
    if any(any(sides) for sides in outside):
        # Without the barrier XLA would fold the padding back into the convolution.
        images = lax.optimization_barrier(pad_images(images, outside))
    # Not ideal: the added outputs are computed and thrown away.
    if max(kernel.shape[2:]) < LIBRARY_CHANNELS:
        kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, 0), (0, LIBRARY_CHANNELS - kernel.shape[-1])))
    return images, kernel, Geometry(geometry.strides, ((top, bottom), (left, right)))


def by_patches(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """Convolves by one matrix product of patches and kernel."""
    return patches(images, kernel.shape[:2], geometry) @ kernel.reshape(-1, kernel.shape[-1])


def by_blocks(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """Convolves by one matrix product that computes several neighbouring pixels at a time.

    With few channels this makes the product squarer and the patches fewer, at the price of some products with zero.
    """
    wide, where = widen_kernel(images.shape[1:3], kernel, geometry, 64)
    return _unfold_blocks(by_patches(images, wide, where), kernel)


def by_wide_kernel(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """Convolves with XLA's own convolution and a wider kernel, which computes several neighbouring pixels at a time.

    XLA's fast convolution on CPUs needs more than 16 channels in or out; the wider kernel has them.
    """
    wide, where = widen_kernel(images.shape[1:3], kernel, geometry, 32)
    return _unfold_blocks(direct(images, wide, where), kernel)


def by_rows(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """Convolves with stride 1 by one matrix product per row of pixels, then a sum of shifted rows.

    The product has `h * O` columns instead of O, which fills the vector units when O is small, and its patches are
    h times smaller than those of `by_patches`.
    """
    return _by_lines(images, kernel, geometry, 1)


def by_columns(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """Convolves as `by_rows` does, with rows and columns exchanged."""
    return _by_lines(images, kernel, geometry, 0)


def lines(images: Float[Array, "B H W K"], taps: int, geometry: Geometry, axis: int) -> Float[Array, "B H2 W2 P"]:
    """Returns the pixels under the taps of a kernel along columns (axis 0) or rows (axis 1), for stride 1."""
    none = (0, 0)
    size = (1, taps) if axis else (taps, 1)
    pads = (none, geometry.pads[1]) if axis else (geometry.pads[0], none)
    return patches(images, size, Geometry((1, 1), pads))


def _by_lines(images: Array, kernel: Array, geometry: Geometry, along: int) -> Array:
    """Convolves with stride 1 by one product of lines along an axis, then a sum of lines shifted along the other."""
    across = 1 - along
    taps = kernel.shape[across]
    outputs = kernel.shape[-1]
    seen = lines(images, kernel.shape[along], geometry, along)
    # One product for all taps across the lines; the result of each tap is then shifted by the tap's distance.
    products = seen @ kernel.transpose(along, 2, across, 3).reshape(seen.shape[-1], taps * outputs)
    first, last = geometry.pads[across]
    shifted = []
    for i in range(taps):
        shift = (first - i, last - (taps - 1 - i))
        pads = ((0, 0), shift) if across else (shift, (0, 0))
        shifted.append(pad_images(products[..., i * outputs : (i + 1) * outputs], pads))
    return functools.reduce(jnp.add, shifted)


def taps(images: Float[Array, "B H W K"], size: tuple[int, ...], geometry: Geometry) -> list[Array]:
    """Returns the pixels under each tap of a kernel at every position: h * w arrays `[B, H', W', K]`, row by row."""
    height, width = geometry.output_size(images.shape[1:3], size)
    images = pad_images(images, geometry.pads)
    down, across = geometry.strides
    far = (height - 1) * down + 1, (width - 1) * across + 1
    return [images[:, i : i + far[0] : down, j : j + far[1] : across] for i in range(size[0]) for j in range(size[1])]


def widen_kernel(
    image: tuple[int, ...], kernel: Float[Array, "h w K O"], geometry: Geometry, outputs: int
) -> tuple[Array, Geometry]:
    """Joins shifted copies of a kernel to a wider one with about `outputs` outputs and a larger stride.

    The kernel is `[h, w', K, n O]`, where n, the number of copies, divides the width of the result.
    """
    # A block must divide the width, because a shorter last block would need another kernel.
    width = geometry.output_size(image, kernel.shape[:2])[1]
    block = math.gcd(width, min(LARGEST_BLOCK, max(1, outputs // kernel.shape[-1])))
    down, across = geometry.strides
    copies = [jnp.pad(kernel, ((0, 0), (i * across, (block - 1 - i) * across), (0, 0), (0, 0))) for i in range(block)]
    return jnp.concatenate(copies, -1), Geometry((down, across * block), geometry.pads)


def _unfold_blocks(blocks: Array, kernel: Array) -> Array:
    return blocks.reshape(*blocks.shape[:2], -1, kernel.shape[-1])


def depthwise(images: Float[Array, "B H W K"], kernel: Float[Array, "h w 1 O"], geometry: Geometry) -> Array:
    """Convolves each channel i with its own kernels, those from `i O / K` to `(i + 1) O / K - 1` of `[h, w, 1, O]`.

    It needs no matrix product and no rule for stacked clients: sums of shifted copies are as fast with a client axis.
    """
    return _depthwise(geometry)(jnp.repeat(images, kernel.shape[-1] // images.shape[-1], -1), kernel)


# Cached, because a new closure would be traced and compiled again in every call.
@functools.cache
def _depthwise(geometry: Geometry) -> Callable[[Array, Array], Array]:
    """Makes the convolution with one kernel for each channel, and its derivative."""

    def save(images: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
        return convolve(images, kernel), (images, kernel)

    def backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
        # JAX's own derivative would pad the cotangent once for each tap; here it is padded once for all.
        images, kernel = saved
        seen = taps(images, kernel.shape[:2], geometry)
        of_kernel = jnp.stack([(view * cotangent).sum((0, 1, 2)) for view in seen]).reshape(kernel.shape)
        return _depthwise_image_gradient(images.shape[1:3], kernel, cotangent, geometry), of_kernel

    @fast_derivative(save, backward, plain=functools.partial(plain_convolution, geometry=geometry))
    def convolve(images: Array, kernel: Array) -> Array:
        return _by_shifts(images, kernel, geometry)

    return convolve


def _by_shifts(images: Float[Array, "B H W K"], kernel: Float[Array, "h w 1 K"], geometry: Geometry) -> Array:
    """Convolves by a sum of shifted copies."""
    seen = taps(images, kernel.shape[:2], geometry)
    weights = kernel.reshape(-1, kernel.shape[-1])
    return functools.reduce(jnp.add, [view * weight for view, weight in zip(seen, weights, strict=True)])


def _depthwise_image_gradient(image: tuple[int, ...], kernel: Array, cotangent: Array, geometry: Geometry) -> Array:
    """Convolves the cotangent, its pixels spread apart by the strides, with the kernel rotated by 180 degrees."""
    # Not ideal for strides above 1: most products are with zeros between pixels (`gradients.phase_kernel` avoids them).
    spread = pad_images(cotangent, ((0, 0), (0, 0)), geometry.strides)
    leads = [taps - 1 - pads[0] for taps, pads in zip(kernel.shape[:2], geometry.pads, strict=True)]
    high, wide = (
        (lead, side + taps - 1 - length - lead)
        for lead, side, taps, length in zip(leads, image, kernel.shape[:2], spread.shape[1:3], strict=True)
    )
    return _by_shifts(spread, kernel[::-1, ::-1], Geometry((1, 1), (high, wide)))
