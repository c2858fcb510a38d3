"""Sums over channels, biases and dense layers, in forms that are reproducible and fast on CPUs.

Sums are written as a product with ones there: XLA passes plain sums of this size to a library that splits them among
the threads that happen to be idle, so that their last digit differs from run to run (jax issue 39741).
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_bal.models.derivatives import fast_derivative
from fedjax_bal.target import target_platform

FEW_ROWS = 12
"""Largest batch whose gradient of a dense layer is summed row by row."""


def channel_sums(values: Float[Array, "... K"]) -> Float[Array, " K"]:
    """Sums over all axes but the last."""
    rows = values.reshape(-1, values.shape[-1])
    if target_platform() != "cpu":
        return rows.sum(0)
    ones = jnp.ones((1, rows.shape[0]), rows.dtype)
    summed = lax.dot(ones, rows, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
    return summed[0].astype(values.dtype)


def sums_in_one_pass(*values: Float[Array, "B H W K"]) -> list[Array]:
    """The sums of arrays of one shape over all axes but the last, each `[K]`: few kernels on GPUs.

    Example:
        >>> [sums.tolist() for sums in sums_in_one_pass(jnp.ones((3, 2, 2, 2)), jnp.zeros((3, 2, 2, 2)))]
        [[12.0, 12.0], [0.0, 0.0]]
    """
    # XLA joins these sums of each image to what makes the numbers; of one long sum it would first write them all.
    images = [each.astype(jnp.float32).reshape(len(each), -1, each.shape[-1]).sum(1) for each in values]
    zeros = [jnp.zeros((), jnp.float32) for _ in images]
    return lax.reduce(images, zeros, lambda *sides: [one + other for one, other in zip(*sides, strict=True)], (0,))


@fast_derivative(lambda values, bias: (values + bias, None), lambda _, cotangent: (cotangent, channel_sums(cotangent)))
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
