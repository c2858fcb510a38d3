"""Convolutions through the oneDNN that jaxlib contains: XLA's own custom call, so that nothing needs to be compiled.

The call ends the process, without an exception, if an operand has no channels (see `takes`) or if jaxlib doesn't know
the configuration (so that `automatic` tries it in another process first).
"""

import functools
import json
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.models.convolution.geometry import Geometry, pad_images
from fedjax_bal.models.convolution.gradients import in_chunks
from fedjax_bal.target import target_platform

CACHED = 250_000
"""Numbers that `weight_gradient` transposes at a time, so that they stay in a core's cache."""

FEWEST = 5
"""Smallest chunk of images: fewer make a convolution of too few channels."""

_IMAGES = {"dims": 4, "data": {"batch_dim": 0, "feature_dim": 3, "spatial_dims": [1, 2]}}
_KERNEL = {"dims": 4, "filter": {"input_feature_dim": 2, "output_feature_dim": 3, "spatial_dims": [0, 1]}}


def takes(*operands: Array) -> bool:
    """Tells whether oneDNN can take the operands: float32 on a CPU, and not empty, which would end the process."""
    numbers = all(operand.size and operand.dtype == jnp.float32 for operand in operands)
    return numbers and target_platform() == "cpu"


def convolve(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """A convolution as oneDNN's; stacked clients take turns."""
    size = geometry.output_size(images.shape[1:3], kernel.shape[:2])
    return _call(images, kernel, shape=(len(images), *size, kernel.shape[-1]), geometry=geometry)


def weight_gradient(
    images: Float[Array, "B H W K"], cotangent: Float[Array, "B H2 W2 O"], size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """The gradient with respect to the kernel; stacked clients take turns.

    jaxlib offers oneDNN's convolution, but not its weight gradient. So channels and batch swap their places, the
    cotangent is the kernel, and strides become dilations; batches too large for the processor's cache are processed a
    few images at a time.
    """
    pads = tuple(
        (lead, taps - 1 + (out - 1) * stride + 1 - side - lead)
        for (lead, _), taps, out, stride, side in zip(
            geometry.pads, size, cotangent.shape[1:3], geometry.strides, images.shape[1:3], strict=True
        )
    )

    def product(images: Array, cotangent: Array) -> Array:
        # Transposed in memory: given strange layouts in their place, oneDNN takes its reference kernel, a thousand
        # times slower. The barrier keeps XLA from passing it the layouts.
        shape = (images.shape[-1], *size, cotangent.shape[-1])
        images, kernel = lax.optimization_barrier((images.transpose(3, 1, 2, 0), cotangent.transpose(1, 2, 0, 3)))
        swapped = Geometry((1, 1), (pads[0], pads[1]))
        gradient = _call(images, kernel, shape=shape, geometry=swapped, dilations=geometry.strides)
        return gradient.transpose(1, 2, 0, 3)

    return in_chunks(product, images, cotangent, _chunk(len(images), images[0].size + cotangent[0].size))


def _chunk(count: int, each: int) -> int:
    """Number of images to process at a time: the most that fit the cache, but no fewer than are worth a call."""
    chunks = [size for size in range(min(FEWEST, count), count + 1) if count % size == 0]
    return max((size for size in chunks if size * each <= CACHED), default=chunks[0])


# Compiled as a whole outside of programs too, with what keeps it out of jax's cache.
@functools.partial(jax.jit, static_argnames=("shape", "geometry", "dilations"))
def _call(
    images: Array, kernel: Array, *, shape: tuple[int, ...], geometry: Geometry, dilations: tuple[int, int] = (1, 1)
) -> Array:
    """A call of XLA's target for oneDNN, whose configuration is `xla/service/cpu/onednn_config.proto` as JSON."""
    # Padding that crops is not oneDNN's.
    (top, bottom), (left, right) = geometry.pads
    images = pad_images(images, ((min(top, 0), min(bottom, 0)), (min(left, 0), min(right, 0))))
    window = {
        "pad_left": [max(top, 0), max(left, 0)],
        "pad_right": [max(bottom, 0), max(right, 0)],
        "strides": geometry.strides,
        "window_dilations": dilations,
    }
    config = {"dims": 4, "input": _IMAGES, "kernel": _KERNEL, "output": _IMAGES, "window": window, "feature_groups": 1}
    call = jax.ffi.ffi_call(
        "__onednn$convolution",
        jax.ShapeDtypeStruct(shape, images.dtype),
        custom_call_api_version=1,
        legacy_backend_config=json.dumps({"onednn_conv_config": config}),
        vmap_method="sequential",
    )
    return call(_not_saved().bind(images), kernel)


@functools.cache
def _not_saved() -> Any:
    """A primitive that returns its operand, and keeps the program that it is in out of jax's cache of programs.

    When XLA saves a program, it takes the call for one of another class and reads what isn't there: an error at best.
    Until jax 0.11, programs that call Python are not saved, so that it is told that this one does. Later versions save
    these as well, and leave out programs by the time that they took to compile alone. From the first such program on,
    no program is therefore saved in this process; those that were saved before are still found.
    """
    # Not with the module: jax may move them, which only `automatic`'s other process must notice.
    from jax.extend.core import Primitive
    from jax.interpreters import batching, mlir

    def lower(ctx: Any, operand: Any) -> list[Any]:
        if jax.__version_info__ < (0, 11):
            ctx.module_context.add_host_callback(_never_called)
        else:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
        return [operand]

    primitive = Primitive("not_saved")
    primitive.def_abstract_eval(lambda operand: operand)
    batching.defvectorized(primitive)
    mlir.register_lowering(primitive, lower)
    return primitive


def _never_called() -> None:
    """The Python function that programs seem to call."""
