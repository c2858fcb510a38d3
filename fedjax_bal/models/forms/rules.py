"""Which way of writing a convolution suits a shape.

The rules for one client are those that `benchmarks/convolution.py` finds fastest on CPUs. The rules for stacked clients
hold for every backend: a matrix product with a client axis is fast everywhere, a convolution with one is not.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxtyping import Array, Float

from fedjax_bal.models.forms import forward, gradients
from fedjax_bal.models.geometry import Geometry

FEW_INPUTS = 4
FEW_OUTPUTS = 16
SMALL_KERNEL = 5


class Form(NamedTuple):
    """How a convolution and its weight gradient are written.

    Attributes:
        convolve: from images, kernel and geometry to the result, for one client.
        gradient: from images, cotangent, size of the kernel and geometry to the kernel's gradient, for one client.
        convolve_stacked: as `convolve`, for `jax.vmap` over clients.
        gradient_stacked: as `gradient`, for `jax.vmap` over clients.
    """

    convolve: Callable[[Array, Array, Geometry], Array]
    gradient: Callable[[Array, Array, Sequence[int], Geometry], Array]
    convolve_stacked: Callable[[Array, Array, Geometry], Array]
    gradient_stacked: Callable[[Array, Array, Sequence[int], Geometry], Array]


def convolve(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """Convolve one client's images in the way that suits the shape.

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, K, O]`.
        geometry: where the kernel is applied.

    Returns:
        `[B, H', W', O]`.

    Example:
        >>> import jax.numpy as jnp
        >>> convolve(jnp.ones((2, 5, 5, 1)), jnp.ones((5, 5, 1, 4)), Geometry((1, 1), ((0, 0), (0, 0)))).shape
        (2, 1, 1, 4)
    """
    *size, inputs, outputs = kernel.shape
    if inputs <= FEW_INPUTS:
        return forward.by_blocks(images, kernel, geometry)
    if size == [1, 1]:
        return forward.by_patches(images, kernel, geometry)
    if max(inputs, outputs) <= FEW_OUTPUTS:
        return forward.by_wide_kernel(images, kernel, geometry)
    return forward.direct(images, kernel, geometry)


def convolve_by_products(images: Array, kernel: Array, geometry: Geometry) -> Float[Array, "B H2 W2 O"]:
    """Convolve with matrix products only, which `jax.vmap` over kernels turns into batched products.

    Args:
        images: `[B, H, W, K]`.
        kernel: `[h, w, K, O]`.
        geometry: where the kernel is applied.

    Returns:
        `[B, H', W', O]`.

    Example:
        >>> import jax.numpy as jnp
        >>> geometry = Geometry((1, 1), ((0, 0), (0, 0)))
        >>> convolve_by_products(jnp.ones((2, 5, 5, 1)), jnp.ones((5, 5, 1, 4)), geometry).shape
        (2, 1, 1, 4)
    """
    inputs, outputs = kernel.shape[2:]
    if inputs <= FEW_INPUTS:
        return forward.by_blocks(images, kernel, geometry)
    if outputs <= FEW_OUTPUTS and geometry.strides == (1, 1):
        return forward.by_rows(images, kernel, geometry)
    return forward.by_patches(images, kernel, geometry)


def weight_gradient(
    images: Float[Array, "B H W K"], cotangent: Float[Array, "B H2 W2 O"], size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """The gradient with respect to one client's kernel, in the way that suits the shape.

    Args:
        images: `[B, H, W, K]`.
        cotangent: `[B, H', W', O]`, the gradient with respect to the result.
        size: height and width of the kernel, in pixels.
        geometry: where the kernel is applied.

    Returns:
        `[h, w, K, O]`.

    Example:
        >>> import jax.numpy as jnp
        >>> images, cotangent = jnp.ones((2, 6, 6, 3)), jnp.ones((2, 2, 2, 4))
        >>> weight_gradient(images, cotangent, (5, 5), Geometry((1, 1), ((0, 0), (0, 0)))).shape
        (5, 5, 3, 4)
    """
    if images.shape[-1] <= FEW_INPUTS:
        return gradients.by_blocks(images, cotangent, size, geometry)
    if geometry.strides != (1, 1) or tuple(size) == (1, 1):
        return gradients.by_patches(images, cotangent, size, geometry)
    if max(size) <= SMALL_KERNEL:
        return gradients.by_rows(images, cotangent, size, geometry)
    return gradients.direct(images, cotangent, size, geometry)


def gradient_by_products(
    images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """The gradient with respect to the kernel with matrix products only, for `jax.vmap` over clients.

    Args:
        images: `[B, H, W, K]`.
        cotangent: `[B, H', W', O]`.
        size: height and width of the kernel, in pixels.
        geometry: where the kernel is applied.

    Returns:
        `[h, w, K, O]`.

    Example:
        >>> import jax.numpy as jnp
        >>> images, cotangent = jnp.ones((2, 6, 6, 3)), jnp.ones((2, 2, 2, 4))
        >>> gradient_by_products(images, cotangent, (5, 5), Geometry((1, 1), ((0, 0), (0, 0)))).shape
        (5, 5, 3, 4)
    """
    if images.shape[-1] <= FEW_INPUTS:
        return gradients.by_blocks(images, cotangent, size, geometry)
    return gradients.by_patches(images, cotangent, size, geometry)


FORMS = {
    "fast": Form(convolve, weight_gradient, convolve_by_products, gradient_by_products),
    "products": Form(convolve_by_products, gradient_by_products, convolve_by_products, gradient_by_products),
    "grouped": Form(forward.direct, gradients.direct, forward.direct, gradients.direct),
}
"""The forms by name: the best for each shape; matrix products only; XLA's convolution, grouped for stacked clients."""
