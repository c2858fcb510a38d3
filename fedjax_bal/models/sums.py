"""Sums over channels, biases and dense layers, in forms that are reproducible and fast on CPUs.

Long sums are written as a product with ones there: XLA passes plain sums of this size to a library that splits them
among the threads that happen to be idle, so that their last digit differs from run to run (jax issue 39741).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.models.derivatives import fast_derivative
from fedjax_bal.target import target_platform

GROUP = 32
"""The most rows that CPUs add up before the product with ones: XLA unrolls loops over this many, but not over 64."""

FEW_ROWS = 12
"""Largest batch whose gradient of a dense layer is summed row by row."""


def channel_sums(values: Float[Array, "... K"], group: int = GROUP) -> Float[Array, " K"]:
    """Sums over all axes but the last; CPUs add up at most `group` rows before the product with ones."""
    if target_platform() != "cpu":
        return values.reshape(-1, values.shape[-1]).sum(0)
    return _product_with_ones(_grouped(values, group).sum(1)).astype(values.dtype)


def sums_in_one_pass(*values: Float[Array, "B H W K"]) -> list[Array]:
    """The sums of arrays of one shape over all axes but the last, each `[K]`, in fewer passes than one by one.

    Example:
        >>> [sums.tolist() for sums in sums_in_one_pass(jnp.ones((3, 2, 2, 2)), jnp.zeros((3, 2, 2, 2)))]
        [[12.0, 12.0], [0.0, 0.0]]
    """
    if target_platform() == "cpu":
        return [_product_with_ones(sums) for sums in _sums_together([_grouped(each) for each in values], 1)]
    if target_platform() == "tpu":
        return [channel_sums(each) for each in values]
    # XLA joins these sums of each image to what makes the numbers; of one long sum it would first write them all.
    images = [_wide(each).reshape(len(each), -1, each.shape[-1]).sum(1) for each in values]
    return _sums_together(images, 0)


def _wide(values: Array) -> Array:
    """The values in 32 bits, if they have fewer."""
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))


def _grouped(values: Array, most: int = GROUP) -> Float[Array, "groups rows K"]:
    """Groups of neighbouring rows, whose sums take no copy of the numbers, as a product would."""
    count = math.prod(values.shape[:-1])
    group = next(size for size in range(most, 0, -1) if count % size == 0)
    return _wide(values).reshape(-1, group, values.shape[-1])


def _product_with_ones(rows: Float[Array, "N K"]) -> Float[Array, " K"]:
    return lax.dot(jnp.ones((1, len(rows)), rows.dtype), rows, precision=lax.Precision.HIGHEST)[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _sums_together(arrays: list[Array], axis: int) -> list[Array]:
    zeros = [jnp.zeros((), each.dtype) for each in arrays]
    return lax.reduce(arrays, zeros, lambda *sides: [one + other for one, other in zip(*sides, strict=True)], (axis,))


@_sums_together.defjvp
def _(axis: int, primals: tuple[list[Array]], tangents: tuple[list[Array]]) -> tuple[list[Array], list[Array]]:
    # jax's own rule for a reduction of several arrays fails where one of them has no tangent.
    return _sums_together(*primals, axis), [each.sum(axis) for each in tangents[0]]


# The cotangent is in memory already, so that a product alone takes no copy.
@fast_derivative(lambda values, bias: (values + bias, None), lambda _, of_sum: (of_sum, channel_sums(of_sum, group=1)))
def add_bias(values: Float[Array, "... K"], bias: Float[Array, " K"]) -> Float[Array, "... K"]:
    """Adds a bias to each channel; its gradient is a `channel_sums`."""
    return values + bias


def dense_product(
    inputs: Float[Array, "... F"],
    kernel: Float[Array, "F O"],
    dimension_numbers: Any = (((1,), (0,)), ((), ())),
    **settings: Any,
) -> Float[Array, "... O"]:
    """Multiplies inputs `[..., F]` by a kernel `[F, O]`; the argument `dot_general` of `flax.linen.Dense`."""
    if inputs.ndim != 2 or target_platform() != "cpu":
        return lax.dot_general(inputs, kernel, dimension_numbers, **settings)
    return _product(inputs, kernel)


def _product_gradients(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    inputs, kernel = saved
    if len(inputs) <= FEW_ROWS and inputs.dtype == jnp.float32:
        # A product of so few rows mostly writes its result. XLA fuses this sum with what takes it, such as the
        # optimizer's update, so that the gradient is never in memory. It would also fuse the layers before, and compute
        # them again for each number of the result, but it doesn't fuse a gather.
        every = lax.optimization_barrier(jnp.arange(len(inputs)))
        rows, columns = (values.at[every].get(mode="promise_in_bounds") for values in (inputs, cotangent))
        return cotangent @ kernel.T, (rows[:, :, None] * columns[:, None]).sum(0)
    # XLA:CPU's fastest product needs a left operand that is contiguous in memory. Without the barrier, XLA would fold
    # the transposition into the product, and so choose a slower one.
    transposed = lax.optimization_barrier(inputs.T)
    return cotangent @ kernel.T, transposed @ cotangent


@fast_derivative(lambda inputs, kernel: (inputs @ kernel, (inputs, kernel)), _product_gradients)
def _product(inputs: Float[Array, "B F"], kernel: Float[Array, "F O"]) -> Float[Array, "B O"]:
    return inputs @ kernel
