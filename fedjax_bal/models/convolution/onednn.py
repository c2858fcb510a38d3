"""Convolutions and the sums of batch normalisation through the handler of `fedjax_bal.models.onednn`."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedjax_bal.models import onednn
from fedjax_bal.models.convolution.geometry import Geometry, pad_images


def convolve(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """Convolves with oneDNN; one call processes stacked clients one after another."""
    size = geometry.output_size(images.shape[1:3], kernel.shape[:2])
    return _call("convolve", images, kernel, (len(images), *size, kernel.shape[-1]), geometry)


def weight_gradient(
    images: Float[Array, "B H W K"], cotangent: Float[Array, "B H2 W2 O"], size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """Computes the kernel's gradient with oneDNN; one call processes stacked clients one after another."""
    return _call("weight_gradient", images, cotangent, (*size, images.shape[-1], cotangent.shape[-1]), geometry)


def moments(
    images: Float[Array, "B H W K"], real: Array | None, near: Array | None = None
) -> tuple[Array, Array, Array]:
    """Returns the handler's mean and variance of each channel, and the number of values."""
    rows, height, width, _ = images.shape
    real = jnp.ones(rows, bool) if real is None else real
    return *_reduce("moments", images, real), real.sum() * (height * width)


def slopes(images: Float[Array, "B H W K"], centre: Array, of_result: Array) -> tuple[Array, Array]:
    """Returns the handler's sums over each channel for the gradients of batch normalisation."""
    return _reduce("slopes", images, centre, of_result)


def _reduce(name: str, images: Array, *others: Array) -> tuple[Array, Array]:
    """Calls a function of the handler, whose results are two numbers for each channel."""
    onednn.load()
    each = jax.ShapeDtypeStruct(images.shape[-1:], images.dtype)
    call = jax.ffi.ffi_call(onednn.TARGETS[name], (each, each), vmap_method="broadcast_all")
    first, second = call(images, *others)
    return first, second


def _call(name: str, images: Array, other: Array, shape: tuple[int, ...], geometry: Geometry) -> Array:
    """Calls a function of the handler, whose result has this shape."""
    onednn.load()
    (top, bottom), (left, right) = geometry.pads
    # OneDNN has no padding that crops, so the images are cropped before.
    images = pad_images(images, ((min(top, 0), min(bottom, 0)), (min(left, 0), min(right, 0))))
    pads = np.maximum((top, left, bottom, right), 0)
    # `vmap` adds leading axes to all operands, and the handler loops over them.
    call = jax.ffi.ffi_call(
        onednn.TARGETS[name], jax.ShapeDtypeStruct(shape, images.dtype), vmap_method="broadcast_all"
    )
    return call(images, other, strides=np.array(geometry.strides), pads=pads)
