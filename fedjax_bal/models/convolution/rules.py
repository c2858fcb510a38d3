"""Rules that choose the form of a convolution for a shape.

The rules for one client choose the form that is fastest on CPUs in `benchmarks/forms.py`. For stacked clients a matrix
product with a client axis is fast on CPUs and GPUs, a convolution with one on TPUs (estimated by `benchmarks/aot.py`).
On GPUs products wait for memory, so the forms there copy as few numbers as possible, and share the copies.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.models.convolution import automatic, builtin, forward, gradients, implicit
from fedjax_bal.models.convolution.geometry import Geometry
from fedjax_bal.target import target_platform

# The limits are measured (`benchmarks/forms.py`), on CPUs only; other machines may have better ones.
FEW_INPUTS = 4
FEW_OUTPUTS = 16
SMALL_KERNEL = 5
FEW_PRODUCTS = 4_000_000
"""The fewest multiplications for which jaxlib's oneDNN is faster; it has a setup cost in every call."""
FEW_IN_AN_IMAGE = 200_000
"""The fewest for each image. A network with smaller layers alone would gain in evaluation only, whose batches are
large, and XLA couldn't save its program for one call."""


class Maps(NamedTuple):
    """A choice of forms for a convolution and its two gradients.

    Attributes:
        convolve: from images, kernel and geometry to the result.
        back: from cotangent, rotated kernel and geometry to the gradient with respect to the images: a convolution too.
        gradient: from images, cotangent, size of the kernel and geometry to the gradient with respect to the kernel.
    """

    convolve: Callable[[Array, Array, Geometry], Array]
    back: Callable[[Array, Array, Geometry], Array]
    gradient: Callable[[Array, Array, Sequence[int], Geometry], Array]


class Form(NamedTuple):
    """The forms for one client, and those for `jax.vmap` over clients."""

    alone: Maps
    stacked: Maps


def keep_apart(operand: Array) -> Array:
    """Keeps XLA from fusing a form with the layers around it, except on GPUs, where that saves passes over memory."""
    # Elsewhere XLA would fold the padding, slices and transpositions of those layers into the form. It is fast, and
    # correct on several CPU devices (see `forward.direct`), only as it is written.
    return operand if target_platform() == "gpu" else lax.optimization_barrier(operand)


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
    inputs, outputs = kernel.shape[2:]
    if inputs <= FEW_INPUTS:
        return forward.by_blocks(images, kernel, geometry)
    if geometry.strides == (1, 1) and outputs <= FEW_OUTPUTS:
        return forward.by_rows(images, kernel, geometry)
    return forward.by_patches(images, kernel, geometry)


def weight_gradient(
    images: Float[Array, "B H W K"], cotangent: Float[Array, "B H2 W2 O"], size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to one client's kernel, in the fastest form for the shape."""
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


def convolve_by_builtin(
    images: Array, kernel: Array, geometry: Geometry, otherwise: Callable[..., Array] = convolve
) -> Float[Array, "B H2 W2 O"]:
    """Convolves through jaxlib's oneDNN, or `otherwise` where that is faster or oneDNN can't."""
    # A 1x1 kernel is a matrix product without copies already.
    *size, inputs, outputs = kernel.shape
    each = _products(geometry.output_size(images.shape[1:3], size), size, inputs, outputs)
    called = size != [1, 1] and _are_many(len(images), each) and builtin.takes(images, kernel)
    return (builtin.convolve if called else otherwise)(images, kernel, geometry)


def gradient_by_builtin(
    images: Array,
    cotangent: Array,
    size: Sequence[int],
    geometry: Geometry,
    otherwise: Callable[..., Array] = weight_gradient,
) -> Float[Array, "h w K O"]:
    """Computes the kernel's gradient through jaxlib's oneDNN, or `otherwise`, as in `convolve_by_builtin`."""
    # With AVX-512 a volume, which needs no transposition, is fastest unless the inputs are few. With AVX2 it isn't, and
    # with 5 to 16 channels on both sides transposing the operands takes longer than the convolution saves; with fewer
    # inputs `otherwise` is slow, too.
    inputs = images.shape[-1]
    outputs = cotangent.shape[-1]
    volume = inputs > FEW_INPUTS and automatic.instruction_set() == "AVX512"
    narrow = inputs > FEW_INPUTS and max(inputs, outputs) <= FEW_OUTPUTS
    many = _are_many(len(images), _products(cotangent.shape[1:3], size, inputs, outputs))
    if max(size) == 1 or (narrow and not volume) or not many or not builtin.takes(images, cotangent):
        return otherwise(images, cotangent, size, geometry)
    return (builtin.gradient_by_depth if volume else builtin.weight_gradient)(images, cotangent, size, geometry)


def _products(result: Sequence[int], size: Sequence[int], inputs: int, outputs: int) -> int:
    """Counts the multiplications for an image; 0 if the result is empty."""
    return math.prod(max(side, 0) for side in result) * math.prod(size) * inputs * outputs


def _are_many(images: int, each: int) -> bool:
    """Tells whether the multiplications for so many images, `each` of an image, are worth a call of oneDNN."""
    return each >= FEW_IN_AN_IMAGE and images * each >= FEW_PRODUCTS


def gradient_by_products(
    images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to the kernel by matrix products only, for `jax.vmap` over clients."""
    if images.shape[-1] <= FEW_INPUTS:
        return gradients.by_blocks(images, cotangent, size, geometry)
    return gradients.by_patches(images, cotangent, size, geometry)


def convolve_by_copies(
    images: Array, kernel: Array, geometry: Geometry, lines: Callable[..., Array] = forward.by_columns
) -> Float[Array, "B H2 W2 O"]:
    """Convolves with matrix products that copy as few numbers as possible; `lines` is the form with few copies."""
    *size, inputs, outputs = kernel.shape
    if inputs <= FEW_INPUTS:
        return forward.by_blocks(images, kernel, geometry)
    form = lines if _lines_copy_less(size, inputs, outputs, geometry) else forward.by_patches
    return form(images, kernel, geometry)


def gradient_by_copies(
    images: Array, cotangent: Array, size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to the kernel, from the copies of `convolve_by_copies`."""
    if images.shape[-1] <= FEW_INPUTS:
        return gradients.of_blocks(images, cotangent, size, geometry)
    fewer = _lines_copy_less(size, images.shape[-1], cotangent.shape[-1], geometry)
    return (gradients.of_lines if fewer else gradients.of_patches)(images, cotangent, size, geometry)


def _lines_copy_less(size: Sequence[int], inputs: int, outputs: int, geometry: Geometry) -> bool:
    """Tells whether lines, and the products of each line, have fewer numbers than patches."""
    height, width = size
    return geometry.strides == (1, 1) and width * inputs + height * outputs < height * width * inputs


def _or_builtin(maps: Maps) -> Maps:
    """Replaces forms by jaxlib's oneDNN where it is faster; it processes stacked clients one after another."""
    ways = (convolve_by_builtin, convolve_by_builtin, gradient_by_builtin)
    return Maps(*(functools.partial(way, otherwise=piece) for way, piece in zip(ways, maps, strict=True)))


def _by_platform(cpu: Maps, gpu: Maps, tpu: Maps) -> Maps:
    """Chooses among forms by platform."""

    # The platform is looked up at each call, because `target.compiling_for` can change it.
    def choose(cpu: Callable[..., Array], gpu: Callable[..., Array], tpu: Callable[..., Array]) -> Callable[..., Array]:
        return lambda *operands: {"cpu": cpu, "tpu": tpu}.get(target_platform(), gpu)(*operands)

    return Maps(*map(choose, cpu, gpu, tpu))


_ALONE = Maps(convolve, convolve, weight_gradient)
_PRODUCTS = Maps(convolve_by_products, convolve_by_products, gradient_by_products)
# Columns for the images and rows for the way back, because `gradients.of_lines` uses exactly these copies again.
_COPIES = Maps(convolve_by_copies, functools.partial(convolve_by_copies, lines=forward.by_rows), gradient_by_copies)
_DIRECT = Maps(forward.direct, forward.direct, gradients.direct)
_FAST = Form(_ALONE, _by_platform(_PRODUCTS, _COPIES, _DIRECT))
FORMS = {
    "fast": _FAST,
    "grouped": Form(_DIRECT, _DIRECT),
    "builtin": Form(*map(_or_builtin, _FAST)),
    "implicit": Form(_ALONE, Maps(implicit.convolve, implicit.convolve, implicit.gradient)),
}
"""Forms by name: the fastest of XLA's for each shape; XLA's convolution, grouped for stacked clients; the oneDNN that
jaxlib contains; and, for stacked clients on GPUs, products without copies, which no device has measured yet."""
