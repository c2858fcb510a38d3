"""Positions of a kernel on images, and the patches under it.

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
    """The positions of a kernel on an image: everything about a convolution but its operands.

    Attributes:
        strides: steps between outputs, down and across, in pixels.
        pads: zeros around the image, `((top, bottom), (left, right))`; a negative number crops.
    """

    strides: tuple[int, int]
    pads: Pads

    def output_size(self, image: Sequence[int], kernel: Sequence[int]) -> tuple[int, int]:
        """Height and width of the result, from those of image and kernel."""
        height, width = (
            (side + sum(pads) - taps) // stride + 1
            for side, taps, stride, pads in zip(image, kernel, self.strides, self.pads, strict=True)
        )
        return height, width


def plain_convolution(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K2 O"], geometry: Geometry) -> Array:
    """JAX's own convolution; with a kernel of fewer channels than the images, in groups of channels."""
    groups = images.shape[-1] // kernel.shape[2]
    return lax.conv_general_dilated(
        images, kernel, geometry.strides, geometry.pads, dimension_numbers=LAYOUT, feature_group_count=groups
    )


def pad_images(images: Float[Array, "... H W K"], pads: Pads, spread: tuple[int, int] = (1, 1)) -> Array:
    """Pads images with zeros, and optionally spreads their pixels apart; negative padding crops."""
    sides = [(*pad, step - 1) for pad, step in zip(pads, spread, strict=True)]
    return lax.pad(images, jnp.zeros((), images.dtype), [(0, 0, 0)] * (images.ndim - 3) + sides + [(0, 0, 0)])


def patches(images: Float[Array, "... H W K"], size: Sequence[int], geometry: Geometry) -> Array:
    """Pixels under each position of the kernel, `[..., H', W', h * w * K]`, in the order of a flattened kernel.

    Columns are gathered before rows, which needs fewer and longer copies than one slice per tap.
    """
    height, width = geometry.output_size(images.shape[-3:-1], size)
    images = pad_images(images, geometry.pads)
    across = _windows(images, images.ndim - 2, size[1], width, geometry.strides[1])
    return _windows(across, images.ndim - 3, size[0], height, geometry.strides[0])


def _windows(images: Array, axis: int, taps: int, length: int, stride: int) -> Array:
    """Concatenates along the channels the pixels under each tap along one axis."""
    reach = (length - 1) * stride + 1
    views = [lax.slice_in_dim(images, i, i + reach, stride, axis) for i in range(taps)]
    return jnp.concatenate(views, -1)
