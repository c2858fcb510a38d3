"""Forms of the two gradients of a convolution.

Images are `[B, H, W, K]`, kernels `[h, w, K, O]`, `size` is the kernel's height and width, and cotangents (gradients
with respect to the result) are `[B, H', W', O]`.
"""

import functools
import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.models.convolution import forward
from fedjax_bal.models.convolution.geometry import Geometry, pad_images, patches
from fedjax_bal.target import target_platform

CACHED = 500_000
"""Numbers that `by_rows` copies at a time, so that they stay in a core's cache."""

FEWEST = 4
"""Smallest chunk of images that is worth a loop; below it the whole batch is one chunk."""


def direct(images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to the kernel as a convolution.

    Channels and batch are exchanged, and the cotangent is the kernel, its pixels spread apart by the strides.
    """
    swapped = exchanged(images.shape[1:3], cotangent.shape[1:3], size, geometry)
    apart = pad_images(cotangent, ((0, 0), (0, 0)), geometry.strides)
    gradient = forward.direct(images.transpose(3, 1, 2, 0), apart.transpose(1, 2, 0, 3), swapped)
    return gradient.transpose(1, 2, 0, 3)


def exchanged(image: Sequence[int], result: Sequence[int], size: Sequence[int], geometry: Geometry) -> Geometry:
    """Returns the geometry, of stride 1, of the convolution of the images with a cotangent spread apart."""
    high, wide = (
        (lead, taps - 1 + (out - 1) * stride + 1 - side - lead)
        for (lead, _), taps, out, stride, side in zip(geometry.pads, size, result, geometry.strides, image, strict=True)
    )
    return Geometry((1, 1), (high, wide))


def by_patches(images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to the kernel as one matrix product of cotangent and patches."""
    seen = jnp.stack(forward.taps(images, tuple(size), geometry), 3)
    product = cotangent.reshape(-1, cotangent.shape[-1]).T @ seen.reshape(-1, math.prod(seen.shape[3:]))
    return product.reshape(-1, *size, images.shape[-1]).transpose(1, 2, 3, 0)


def by_rows(images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to a kernel of stride 1 from shifted images and shifted cotangents.

    The factors of the matrix product are copies of the images, shifted sideways, and of the cotangent, shifted upwards.
    """
    # The product is square, whereas that of `by_patches` has h times as many rows as columns; the copies are smaller,
    # too. On CPUs, batches too large for the processor's cache are processed a few images at a time.
    count, height = images.shape[:2]
    (top, _), columns = geometry.pads
    down, width = cotangent.shape[1:3]
    above = (size[0] - 1 - top, height + top - down)

    def product(images: Array, cotangent: Array) -> Array:
        padded = pad_images(images, ((0, 0), columns))
        sideways = jnp.stack([padded[:, :, j : j + width] for j in range(size[1])], 3)
        tall = pad_images(cotangent, (above, (0, 0)))
        upwards = jnp.stack([tall[:, i : i + height] for i in reversed(range(size[0]))], 3)
        flat = [shifted.reshape(-1, math.prod(shifted.shape[3:])) for shifted in (sideways, upwards)]
        return flat[0].T @ flat[1]

    each = height * width * (size[1] * images.shape[-1] + size[0] * cotangent.shape[-1])
    chunk = _chunk(count, each) if target_platform() == "cpu" else count
    summed = in_chunks(product, images, cotangent, chunk)
    return summed.reshape(size[1], images.shape[-1], size[0], -1).transpose(2, 0, 1, 3)


def by_blocks(
    images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry, planes: Callable[..., Array] | None = None
) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to the kernel through the wider kernel of `forward.by_blocks`.

    `planes` makes transposed patches; by default from one plane for each tap and channel.
    """
    outputs = cotangent.shape[-1]
    side = geometry.strides[1]
    # Only the kernel's shape is used, so XLA removes the zeros.
    kernel = jnp.zeros((*size, images.shape[-1], outputs))
    wide, where = forward.widen_kernel(images.shape[1:3], kernel, geometry, 64)
    block = wide.shape[-1] // outputs
    product = (planes or _planes)(images, wide.shape[:2], where) @ cotangent.reshape(-1, block * outputs)
    # Each copy of the kernel lies `side` taps further right in the wider one than the copy before.
    copies = jnp.split(product.reshape(wide.shape), block, -1)
    return functools.reduce(jnp.add, [copy[:, i * side : i * side + size[1]] for i, copy in enumerate(copies)])


def phase_kernel(
    kernel: Float[Array, "h w K O"], geometry: Geometry, image: Sequence[int], result: Sequence[int]
) -> tuple[Array, Geometry]:
    """Makes the kernel whose convolution with a cotangent is the gradient with respect to the images.

    At stride 1 it is the kernel rotated by 180 degrees. At strides s and s' the pixels of the image fall into s s'
    phases, each of which depends on its own part of the kernel; the phases become channels, `[h', w', O, s s' K]`, for
    `interleave_phases`.
    """
    # The usual way, a cotangent spread apart with zeros, takes s s' times the work.
    margins = []
    counts = []
    pads = []
    for taps, (lead, _), stride, side, out in zip(
        kernel.shape[:2], geometry.pads, geometry.strides, image, result, strict=True
    ):
        # A pixel meets the outputs from `first` to `last`, counted from the one at its phase's place.
        last = (stride - 1 + lead) // stride
        first = -((taps - 1 - lead) // stride)
        count = last - first + 1
        front = stride * last - lead
        counts.append(count)
        margins.append((front, count * stride - front - taps))
        pads.append((-first, -(-side // stride) - out + last))
    down, across = geometry.strides
    high, wide = counts
    inputs, outputs = kernel.shape[2:]
    parts = jnp.pad(kernel, (*margins, (0, 0), (0, 0))).reshape(high, down, wide, across, inputs, outputs)
    phases = parts[::-1, :, ::-1].transpose(0, 2, 5, 1, 3, 4).reshape(high, wide, outputs, -1)
    return phases, Geometry((1, 1), (pads[0], pads[1]))


def interleave_phases(phases: Array, strides: tuple[int, int], image: Sequence[int]) -> Array:
    """Moves phases, which are channels `[..., A, A', s s' K]`, to their places in the image `[..., H, W, K]`."""
    if strides == (1, 1):
        return phases
    *lead, high, wide, _ = phases.shape
    parts = jnp.moveaxis(phases.reshape(*lead, high, wide, *strides, -1), -3, -4)
    return parts.reshape(*lead, high * strides[0], wide * strides[1], -1)[..., : image[0], : image[1], :]


def _chunk(count: int, each: int) -> int:
    """Chooses how many images to process at a time; `each` is how many numbers the copies of one image have."""
    fitting = max(size for size in range(1, count + 1) if count % size == 0 and size * each <= max(CACHED, each))
    return fitting if fitting >= FEWEST else count


def in_chunks(product: Callable[[Array, Array], Array], images: Array, cotangent: Array, chunk: int) -> Array:
    """Sums a product over the batch, a chunk of images at a time."""
    if chunk == len(images):
        return product(images, cotangent)

    def part(turn: Array | int) -> Array:
        return product(*(lax.dynamic_slice_in_dim(operand, turn * chunk, chunk) for operand in (images, cotangent)))

    # The first chunk is outside of the loop, because it defines the shape and type of the sum.
    return lax.fori_loop(1, len(images) // chunk, lambda turn, total: total + part(turn), part(0))


def _planes(images: Array, size: Sequence[int], geometry: Geometry) -> Float[Array, "T P"]:
    """Makes transposed patches, one row for each tap and channel, without a transposition."""
    height, width = geometry.output_size(images.shape[1:3], size)
    images = pad_images(images, geometry.pads)
    count = images.shape[0]
    inputs = images.shape[-1]
    down, across = geometry.strides
    far = (height - 1) * down + 1, (width - 1) * across + 1
    planes = [
        lax.slice(images, (0, i, j, k), (count, i + far[0], j + far[1], k + 1), (1, down, across, 1))
        for i in range(size[0])
        for j in range(size[1])
        for k in range(inputs)
    ]
    return jnp.stack(planes).reshape(len(planes), -1)


# The forms from here on are for GPUs: each makes the same copies as a form of `forward`, by the same operations, so
# that XLA makes them once for the convolution, the gradient of the images and that of the kernel.


def of_patches(images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to the kernel from the copies of `forward.by_patches`."""
    product = _product(patches(images, size, geometry), cotangent)
    return product.reshape(*size, images.shape[-1], -1)


def of_lines(images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to a kernel of stride 1 from the copies of two convolutions.

    These are the copies of the images in `forward.by_columns`, and of the cotangent in `forward.by_rows` for the image
    gradient.
    """
    left, _ = geometry.pads[1]
    width = images.shape[2]
    back = Geometry((1, 1), ((0, 0), (size[1] - 1 - left, width - cotangent.shape[2] + left)))
    columns = forward.lines(images, size[0], geometry, 0)
    rows = forward.lines(cotangent, size[1], back, 1)
    product = _product(columns, rows).reshape(size[0], images.shape[-1], size[1], -1)
    return product[:, :, ::-1].transpose(0, 2, 1, 3)


def of_blocks(images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to the kernel from the copies of `forward.by_blocks`."""
    return by_blocks(images, cotangent, size, geometry, lambda *where: _flat(patches(*where)).T)


def _product(seen: Array, cotangent: Array) -> Float[Array, "P O"]:
    return _flat(seen).T @ _flat(cotangent)


def _flat(channels: Array) -> Array:
    return channels.reshape(-1, channels.shape[-1])
