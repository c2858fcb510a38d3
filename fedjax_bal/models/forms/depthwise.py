"""Depthwise convolution: every channel has kernels of its own."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_bal.models.derivatives import fast_derivative
from fedjax_bal.models.forms import forward
from fedjax_bal.models.geometry import Geometry, pad_images, plain_convolution


def depthwise(images: Float[Array, "B H W K"], kernel: Float[Array, "h w 1 O"], geometry: Geometry) -> Array:
    """Convolves each channel i with its own kernels, those from `i O / K` to `(i + 1) O / K - 1` of `[h, w, 1, O]`.

    It needs no matrix product and no rule for stacked clients: sums of shifted copies are as fast with a client axis.
    """
    return _differentiable(geometry)(jnp.repeat(images, kernel.shape[-1] // images.shape[-1], -1), kernel)


@functools.cache
def _differentiable(geometry: Geometry) -> Callable[[Array, Array], Array]:
    """The convolution with one kernel for each channel; its derivative pads once, not once per tap."""

    def save(images: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
        return convolve(images, kernel), (images, kernel)

    def backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
        images, kernel = saved
        seen = forward.taps(images, kernel.shape[:2], geometry)
        of_kernel = jnp.stack([(view * cotangent).sum((0, 1, 2)) for view in seen]).reshape(kernel.shape)
        return _image_gradient(images.shape[1:3], kernel, cotangent, geometry), of_kernel

    @fast_derivative(save, backward, plain=functools.partial(plain_convolution, geometry=geometry))
    def convolve(images: Array, kernel: Array) -> Array:
        return _by_shifts(images, kernel, geometry)

    return convolve


def _by_shifts(images: Float[Array, "B H W K"], kernel: Float[Array, "h w 1 K"], geometry: Geometry) -> Array:
    """The convolution as a sum of shifted copies."""
    seen = forward.taps(images, kernel.shape[:2], geometry)
    weights = kernel.reshape(-1, kernel.shape[-1])
    return functools.reduce(jnp.add, [view * weight for view, weight in zip(seen, weights, strict=True)])


def _image_gradient(image: tuple[int, ...], kernel: Array, cotangent: Array, geometry: Geometry) -> Array:
    """Convolves the cotangent, its pixels spread apart by the strides, with the kernel rotated by 180 degrees."""
    spread = pad_images(cotangent, ((0, 0), (0, 0)), geometry.strides)
    leads = [taps - 1 - pads[0] for taps, pads in zip(kernel.shape[:2], geometry.pads, strict=True)]
    high, wide = (
        (lead, side + taps - 1 - length - lead)
        for lead, side, taps, length in zip(leads, image, kernel.shape[:2], spread.shape[1:3], strict=True)
    )
    return _by_shifts(spread, kernel[::-1, ::-1], Geometry((1, 1), (high, wide)))
