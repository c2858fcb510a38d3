"""Convolutions through the oneDNN in jaxlib, by XLA's own custom call, so that no C++ needs to be compiled.

The call ends the process, without an exception, if an operand has no channels (see `takes`) or if jaxlib doesn't know
the configuration; `automatic` therefore tries it in another process first.
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
from fedjax_bal.models.convolution.gradients import exchanged, in_chunks
from fedjax_bal.target import target_platform

CACHED = 250_000
"""Numbers that `weight_gradient` transposes at a time, so that they stay in a core's cache."""

FEWEST = 5
"""Smallest chunk of images, which are channels in the weight gradient: fewer are too few for a fast convolution."""


def takes(*operands: Array) -> bool:
    """Tells whether oneDNN can take the operands: float32 on a CPU, and not empty, which would end the process."""
    numbers = all(operand.size and operand.dtype == jnp.float32 for operand in operands)
    return numbers and target_platform() == "cpu"


def convolve(images: Float[Array, "B H W K"], kernel: Float[Array, "h w K O"], geometry: Geometry) -> Array:
    """Convolves with oneDNN; stacked clients are processed one after another."""
    size = geometry.output_size(images.shape[1:3], kernel.shape[:2])
    return _call(images, kernel, shape=(len(images), *size, kernel.shape[-1]), geometry=geometry)


def weight_gradient(
    images: Float[Array, "B H W K"], cotangent: Float[Array, "B H2 W2 O"], size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to the kernel; stacked clients are processed one after another.

    jaxlib offers oneDNN's convolution, but not its weight gradient. So channels and batch are exchanged, the cotangent
    is the kernel, and strides become dilations; batches too large for the processor's cache are processed a few images
    at a time.
    """
    swapped = exchanged(images.shape[1:3], cotangent.shape[1:3], size, geometry)

    def product(images: Array, cotangent: Array) -> Array:
        # Transposed in memory: for unusual layouts oneDNN uses its reference kernel, which is a thousand times slower.
        # The barrier keeps XLA from passing such layouts instead of transposing.
        shape = (images.shape[-1], *size, cotangent.shape[-1])
        images, kernel = lax.optimization_barrier((images.transpose(3, 1, 2, 0), cotangent.transpose(1, 2, 0, 3)))
        gradient = _call(images, kernel, shape=shape, geometry=swapped, dilations=geometry.strides)
        return gradient.transpose(1, 2, 0, 3)

    return in_chunks(product, images, cotangent, _chunk(len(images), images[0].size + cotangent[0].size))


def gradient_by_depth(
    images: Float[Array, "B H W K"], cotangent: Float[Array, "B H2 W2 O"], size: Sequence[int], geometry: Geometry
) -> Float[Array, "h w K O"]:
    """Computes the gradient with respect to the kernel as one convolution of a volume, without moving a number.

    The batch is the volume's depth, and its only channel holds the channels of a row side by side, so the taps of the
    cotangent, which is the kernel, lie that many numbers apart. Fast with AVX-512 only.
    """
    high, wide = exchanged(images.shape[1:3], cotangent.shape[1:3], size, geometry).pads
    inputs, outputs = images.shape[-1], cotangent.shape[-1]
    down, across = geometry.strides
    gradient = _call(
        images.reshape(1, *images.shape[:2], -1, 1),
        cotangent.reshape(*cotangent.shape[:3], 1, outputs),
        shape=(1, 1, size[0], size[1] * inputs, outputs),
        geometry=Geometry((1, 1), (high, (wide[0] * inputs, wide[1] * inputs))),
        dilations=(down, across * inputs),
    )
    return gradient.reshape(*size, inputs, outputs)


def _chunk(count: int, each: int) -> int:
    """Chooses how many images to process at a time: as many as fit the cache, but enough to be worth a call."""
    chunks = [size for size in range(min(FEWEST, count), count + 1) if count % size == 0]
    return max((size for size in chunks if size * each <= CACHED), default=chunks[0])


# Jitted, so that the call is always in one program with the primitive that keeps it out of jax's cache.
@functools.partial(jax.jit, static_argnames=("shape", "geometry", "dilations"))
def _call(
    images: Array, kernel: Array, *, shape: tuple[int, ...], geometry: Geometry, dilations: tuple[int, int] = (1, 1)
) -> Array:
    """Calls XLA's target for oneDNN, whose configuration is `xla/service/cpu/onednn_config.proto` as JSON.

    Volumes `[B, D, H, W, K]` have neither padding nor strides along their depth.
    """
    # OneDNN has no padding that crops, so the images are cropped before.
    (top, bottom), (left, right) = geometry.pads
    images = pad_images(images, ((min(top, 0), min(bottom, 0)), (min(left, 0), min(right, 0))))
    dims = images.ndim
    depth = dims - 4
    window = {
        "pad_left": [0] * depth + [max(top, 0), max(left, 0)],
        "pad_right": [0] * depth + [max(bottom, 0), max(right, 0)],
        "strides": [1] * depth + [*geometry.strides],
        "window_dilations": [1] * depth + [*dilations],
    }
    sides = list(range(dims - 2))
    data = {"batch_dim": 0, "feature_dim": dims - 1, "spatial_dims": [side + 1 for side in sides]}
    taps = {"input_feature_dim": dims - 2, "output_feature_dim": dims - 1, "spatial_dims": sides}
    config = {
        "dims": dims,
        "input": {"dims": dims, "data": data},
        "kernel": {"dims": dims, "filter": taps},
        "output": {"dims": dims, "data": data},
        "window": window,
        "feature_groups": 1,
    }
    # Sequential, because the configuration has no axis for clients with different kernels.
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
    """Makes a primitive that returns its operand, and keeps the program that contains it out of jax's cache.

    When XLA saves a program, it casts the call to a wrong class and reads invalid memory: an error at best. Before
    jax 0.11, programs that call Python are not saved, so the primitive registers such a call. Later versions save these
    programs, too, and skip only programs that compile quickly, so from the first program with this primitive on, no
    program is saved in this process; programs that were saved before are still found.
    """
    # Imported here, because jax may move them: then only `automatic`'s other process must fail.
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
    """Stands for the Python function that programs pretend to call."""
