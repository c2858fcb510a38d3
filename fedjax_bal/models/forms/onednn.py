"""The form that oneDNN computes, through the handler of `fedjax_bal.models.onednn`."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jaxtyping import Array, Float

from fedjax_bal.models.geometry import Geometry, pad_images


def convolve(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """A convolution as oneDNN's; stacked clients take turns in one call."""
    size = geometry.output_size(images.shape[1:3], kernel.shape[:2])
    return _call("convolve", (len(images), *size, kernel.shape[-1]), geometry)(images, kernel)


def weight_gradient(
    images: Float[Array, "B H W K"], cotangent: Float[Array, "B H2 W2 O"], size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """The gradient with respect to the kernel as oneDNN's; stacked clients take turns in one call."""
    return _call("weight_gradient", (*size, images.shape[-1], cotangent.shape[-1]), geometry)(images, cotangent)


def _call(name: str, result: Sequence[int], geometry: Geometry) -> Callable[[Array, Array], Array]:
    """A function of the handler, from images and another operand to a result of this shape."""
    (top, bottom), (left, right) = geometry.pads
    outside = np.array([top, left, bottom, right])

    def call(images: Array, other: Array) -> Array:
        # Padding that crops is not oneDNN's.
        images = pad_images(images, ((min(top, 0), min(bottom, 0)), (min(left, 0), min(right, 0))))
        shape = jax.ShapeDtypeStruct(tuple(result), images.dtype)
        handled = jax.ffi.ffi_call(f"fedjax_bal_{name}", shape, vmap_method="broadcast_all")
        return handled(images, other, strides=np.array(geometry.strides), pads=np.maximum(outside, 0))

    return call
