"""Sums over all axes but the channels, and a bias whose gradient is such a sum.

On CPUs they are written as a product with ones: XLA passes plain sums of this size to a library that splits them among
the threads that happen to be idle, so that their last digit differs from run to run.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def channel_sums(values: Float[Array, "... K"]) -> Float[Array, " K"]:
    """Sums over all axes but the last.

    Example:
        >>> channel_sums(jnp.arange(6.0).reshape(3, 1, 2)).tolist()
        [6.0, 9.0]

    References:
        jax issue 39741, on sums that differ between calls.
    """
    rows = values.reshape(-1, values.shape[-1])
    if jax.default_backend() != "cpu":
        return rows.sum(0)
    ones = jnp.ones((1, rows.shape[0]), rows.dtype)
    summed = lax.dot(ones, rows, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
    return summed[0].astype(values.dtype)


@jax.custom_vjp
def add_bias(values: Float[Array, "... K"], bias: Float[Array, " K"]) -> Float[Array, "... K"]:
    """Adds a bias to each channel."""
    return values + bias


def _forward(values: Array, bias: Array) -> tuple[Array, None]:
    return values + bias, None


def _backward(_: None, cotangent: Array) -> tuple[Array, Array]:
    return cotangent, channel_sums(cotangent)


add_bias.defvjp(_forward, _backward)
