"""Positions of a kernel on images, and the patches at these positions.

Images are `[..., H, W, K]`, kernels `[h, w, K, O]`, results `[..., H', W', O]`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.target import target_platform

LAYOUT = ("NHWC", "HWIO", "NHWC")

Pads = tuple[tuple[int, int], tuple[int, int]]


class Geometry(NamedTuple):
    """The positions of a kernel on an image: everything about a convolution except its operands.

    Attributes:
        strides: steps between outputs, down and across, in pixels.
        pads: zeros around the image, `((top, bottom), (left, right))`; a negative number crops.
    """

    strides: tuple[int, int]
    pads: Pads

    def output_size(self, image: Sequence[int], kernel: Sequence[int]) -> tuple[int, int]:
        """Computes height and width of the result from those of image and kernel."""
        height, width = (
            (side + sum(pads) - taps) // stride + 1
            for side, taps, stride, pads in zip(image, kernel, self.strides, self.pads, strict=True)
        )
        return height, width


def plain_convolution(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K2 O"], geometry: Geometry) -> Array:
    """Convolves with JAX's own function; in groups of channels if the kernel has fewer channels than the images."""
    groups = images.shape[-1] // kernel.shape[2]
    return lax.conv_general_dilated(
        images, kernel, geometry.strides, geometry.pads, dimension_numbers=LAYOUT, feature_group_count=groups
    )


def pad_images(images: Float[Array, "... H W K"], pads: Pads, spread: tuple[int, int] = (1, 1)) -> Array:
    """Pads images with zeros, and optionally spreads their pixels apart; negative padding crops."""
    sides = [(*pad, step - 1) for pad, step in zip(pads, spread, strict=True)]
    return lax.pad(images, jnp.zeros((), images.dtype), [(0, 0, 0)] * (images.ndim - 3) + sides + [(0, 0, 0)])


def patches(images: Float[Array, "... H W K"], size: Sequence[int], geometry: Geometry) -> Array:
    """Returns the pixels at each position of the kernel, `[..., H', W', h * w * K]`, ordered as a flattened kernel."""
    height, width = geometry.output_size(images.shape[-3:-1], size)
    images = pad_images(images, geometry.pads)
    down, side = geometry.strides
    vertical = images.ndim - 3
    horizontal = images.ndim - 2
    # On GPUs products wait for memory, so each patch is written once. Elsewhere columns are gathered before rows, which
    # needs fewer and longer copies.
    if target_platform() == "gpu":
        rows = _views(images, vertical, size[0], height, down)
        return jnp.concatenate([view for row in rows for view in _views(row, horizontal, size[1], width, side)], -1)
    across = jnp.concatenate(_views(images, horizontal, size[1], width, side), -1)
    return jnp.concatenate(_views(across, vertical, size[0], height, down), -1)


def _views(images: Array, axis: int, taps: int, length: int, stride: int) -> list[Array]:
    """Returns the pixels under each tap along one axis."""
    reach = (length - 1) * stride + 1
    return [lax.slice_in_dim(images, i, i + reach, stride, axis) for i in range(taps)]
