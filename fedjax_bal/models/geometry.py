"""Where a kernel is applied to images, and what it sees there.

Images are `[..., H, W, K]`, kernels `[h, w, K, O]`, results `[..., H', W', O]`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

LAYOUT = ("NHWC", "HWIO", "NHWC")

Pads = tuple[tuple[int, int], tuple[int, int]]


class Geometry(NamedTuple):
    """Where a kernel is applied: everything about a convolution but its operands.

    Attributes:
        strides: steps between outputs, down and across, in pixels.
        pads: zeros put around the image, `((top, bottom), (left, right))`; a negative number crops.
    """

    strides: tuple[int, int]
    pads: Pads

    def output_size(self, image: Sequence[int], kernel: Sequence[int]) -> tuple[int, int]:
        """Height and width of the result.

        Args:
            image: height and width of the image, in pixels.
            kernel: height and width of the kernel, in pixels.

        Returns:
            Height and width, in pixels.

        Example:
            >>> Geometry((2, 2), ((0, 0), (1, 1))).output_size((28, 28), (5, 5))
            (12, 13)
        """
        height, width = (
            (side + sum(pads) - taps) // stride + 1
            for side, taps, stride, pads in zip(image, kernel, self.strides, self.pads, strict=True)
        )
        return height, width


def pad_images(images: Float[Array, "... H W K"], pads: Pads, spread: tuple[int, int] = (1, 1)) -> Array:
    """Pad images with zeros, and optionally spread their pixels apart.

    Args:
        images: `[..., H, W, K]`.
        pads: zeros on each side; a negative number crops.
        spread: distance of neighbouring pixels in the result; zeros fill the gaps.

    Returns:
        The padded images.

    Example:
        >>> pad_images(jnp.ones((1, 2, 2, 3)), ((1, 0), (-1, 2)), (3, 1)).shape
        (1, 5, 3, 3)
    """
    sides = [(*pad, step - 1) for pad, step in zip(pads, spread, strict=True)]
    return lax.pad(images, jnp.zeros((), images.dtype), [(0, 0, 0)] * (images.ndim - 3) + sides + [(0, 0, 0)])


def patches(images: Float[Array, "... H W K"], size: Sequence[int], geometry: Geometry) -> Array:
    """Lay the pixels under each position of the kernel side by side.

    Columns first, then rows: fewer and longer copies than one slice for every tap.

    Args:
        images: `[..., H, W, K]`.
        size: height and width of the kernel, in pixels.
        geometry: where the kernel is applied.

    Returns:
        `[..., H', W', h * w * K]`, in the order of a kernel flattened over its first three axes.

    Example:
        >>> patches(jnp.arange(9.0).reshape(1, 3, 3, 1), (2, 2), Geometry((1, 1), ((0, 0), (0, 0))))[0, 0, 1]
        Array([1., 2., 4., 5.], dtype=float32)
    """
    height, width = geometry.output_size(images.shape[-3:-1], size)
    images = pad_images(images, geometry.pads)
    across = _windows(images, images.ndim - 2, size[1], width, geometry.strides[1])
    return _windows(across, images.ndim - 3, size[0], height, geometry.strides[0])


def _windows(images: Array, axis: int, taps: int, length: int, stride: int) -> Array:
    """Concatenate along the channels what each tap sees along one axis."""
    reach = (length - 1) * stride + 1
    views = [lax.slice_in_dim(images, i, i + reach, stride, axis) for i in range(taps)]
    return jnp.concatenate(views, -1)
