"""Rules that choose the form of a convolution for a shape.

The rules for one client are those that `benchmarks/forms.py` finds fastest on CPUs. For stacked clients a matrix
product with a client axis is fast on CPUs and GPUs, a convolution with one on TPUs (estimated by `benchmarks/aot.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_bal.models.forms import forward, gradients, onednn
from fedjax_bal.models.geometry import Geometry
from fedjax_bal.models.normalization import XLA_REDUCTIONS, Reductions
from fedjax_bal.target import target_platform

FEW_INPUTS = 4
FEW_OUTPUTS = 16
SMALL_KERNEL = 5


class Form(NamedTuple):
    """A choice of forms for a convolution and its weight gradient.

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
    """Convolves one client's images in the fastest form for the shape."""
    # A matrix product is fast when no side of it is short. With few input channels patches are short: computing several
    # neighbouring pixels at a time makes them longer, and there are fewer. The patches of a 1x1 kernel are the pixels,
    # without a copy. For all others XLA's own convolution is fastest, once it has the channels that its fast library
    # wants: with few on both sides the kernel is widened first.
    *size, inputs, outputs = kernel.shape
    if inputs <= FEW_INPUTS:
        return forward.by_blocks(images, kernel, geometry)
    if size == [1, 1]:
        return forward.by_patches(images, kernel, geometry)
    if max(inputs, outputs) <= FEW_OUTPUTS:
        return forward.by_wide_kernel(images, kernel, geometry)
    return forward.direct(images, kernel, geometry)


def convolve_by_products(images: Array, kernel: Array, geometry: Geometry) -> Float[Array, "B H2 W2 O"]:
    """Convolves with matrix products only, which `jax.vmap` over kernels turns into batched products."""
    # As in `convolve`, but with products in place of XLA's convolution, which would become a grouped one under `vmap`.
    *size, inputs, outputs = kernel.shape
    if inputs <= FEW_INPUTS:
        return forward.by_blocks(images, kernel, geometry)
    few = geometry.strides == (1, 1) and outputs <= FEW_OUTPUTS
    if few or _rows_copy_less(size, inputs, outputs, geometry):
        return forward.by_rows(images, kernel, geometry)
    return forward.by_patches(images, kernel, geometry)


def weight_gradient(
    images: Float[Array, "B H W K"], cotangent: Float[Array, "B H2 W2 O"], size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """The gradient with respect to one client's kernel, in the fastest form for the shape."""
    # Few input channels: as in `convolve`. Shifted rows need stride 1, and a 1x1 kernel has nothing to shift: both take
    # patches. Up to 5x5, shifted rows make the squarest product with the smallest copies. The copies of larger kernels
    # cost more than XLA's convolution, which here runs over the batch as channels.
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
    """The gradient with respect to the kernel by matrix products only, for `jax.vmap` over clients."""
    if images.shape[-1] <= FEW_INPUTS:
        return gradients.by_blocks(images, cotangent, size, geometry)
    if _rows_copy_less(size, images.shape[-1], cotangent.shape[-1], geometry):
        return gradients.by_rows(images, cotangent, size, geometry)
    return gradients.by_patches(images, cotangent, size, geometry)


def _rows_copy_less(size: Sequence[int], inputs: int, outputs: int, geometry: Geometry) -> bool:
    """Tells whether, on an accelerator, shifted rows copy fewer numbers than patches do."""
    height, width = size
    fewer = width * inputs + height * outputs < height * width * inputs
    return fewer and geometry.strides == (1, 1) and target_platform() != "cpu"


def convolve_stacked(images: Array, kernel: Array, geometry: Geometry) -> Float[Array, "B H2 W2 O"]:
    """Convolves in the form that is fastest for `jax.vmap` over kernels on the target."""
    form = forward.direct if target_platform() == "tpu" else convolve_by_products
    return form(images, kernel, geometry)


def gradient_stacked(
    images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """The gradient with respect to the kernel in the form that is fastest for `jax.vmap` over clients on the target."""
    form = gradients.direct if target_platform() == "tpu" else gradient_by_products
    return form(images, cotangent, size, geometry)


def _where_onednn_can(piece: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """A piece of oneDNN's form for float32 on CPUs, another piece elsewhere."""

    def chosen(images: Array, *others: Any) -> Any:
        handled = images.dtype == jnp.float32 and target_platform() == "cpu"
        return (piece if handled else otherwise)(images, *others)

    return chosen


_FAST = Form(convolve, weight_gradient, convolve_stacked, gradient_stacked)
_ONEDNN = Form(onednn.convolve, onednn.weight_gradient, onednn.convolve, onednn.weight_gradient)
FORMS = {
    "fast": _FAST,
    "products": Form(convolve_by_products, gradient_by_products, convolve_by_products, gradient_by_products),
    "grouped": Form(forward.direct, gradients.direct, forward.direct, gradients.direct),
    "onednn": Form(*map(_where_onednn_can, _ONEDNN, _FAST)),
}
"""Forms by name: the fastest of XLA's for each shape; matrix products only; XLA's convolution, grouped for stacked
clients; oneDNN's, an optional part (see `fedjax_bal.models.onednn`)."""


def _with_derivative(chosen: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """A piece with the derivatives, of any order, of another that computes the same."""
    piece = jax.custom_jvp(chosen)
    piece.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
    return piece


REDUCTIONS = {
    "onednn": Reductions(
        *(
            _with_derivative(_where_onednn_can(piece, plain), plain)
            for piece, plain in zip((onednn.moments, onednn.slopes), XLA_REDUCTIONS, strict=True)
        )
    )
}
"""What batch normalisation sums with, by form, where that isn't `XLA_REDUCTIONS`."""
