"""The layers of the networks.

Weights and biases start as in PyTorch, uniform within 1 / sqrt(fan in), because the papers' repositories use it.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Bool, Float

from fedjax_bal.models.pooling import max_pool
from fedjax_bal.models.sums import add_bias, dense_product
from fedjax_bal.target import target_platform

Convolution = Callable[..., Array]
Real = Bool[Array, " B"] | None

uniform_kernel = initializers.variance_scaling(1 / 3, "fan_in", "uniform")
"""Uniform within 1 / sqrt(fan in): its variance is a third of 1 / fan in."""


class Linear(nn.Module):
    """A dense layer, from `[B, F]` to `[B, outputs]`."""

    outputs: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, inputs: Float[Array, "B F"]) -> Float[Array, "B O"]:
        return nn.Dense(
            self.outputs,
            use_bias=self.use_bias,
            kernel_init=uniform_kernel,
            bias_init=uniform_within(inputs.shape[-1]),
            dot_general=dense_product,
            name="dense",
        )(inputs)


class _BiasedConv(nn.Conv):
    """Flax's convolution, with the bias of `add_bias`."""

    use_bias: bool = False

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"]) -> Float[Array, "B H2 W2 O"]:
        maps = super().__call__(images)
        return add_bias(maps, self.param("bias", self.bias_init, (self.features,)).astype(maps.dtype))


class Conv(nn.Module):
    """A convolution with a bias.

    Attributes:
        outputs: number of channels.
        size: side of the kernel, in pixels.
        padding: zeros on each side in pixels, or "SAME".
        convolve: the convolution, with the signature of `jax.lax.conv_general_dilated`.
        stride: steps between outputs, in pixels.
    """

    outputs: int
    size: int
    padding: int | str
    convolve: Convolution
    stride: int = 1

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"]) -> Float[Array, "B H2 W2 O"]:
        return _BiasedConv(
            self.outputs,
            (self.size, self.size),
            strides=(self.stride, self.stride),
            padding=self.padding,
            kernel_init=uniform_kernel,
            bias_init=uniform_within(self.size**2 * images.shape[-1]),
            conv_general_dilated=self.convolve,
            name="conv",
        )(images)


class PooledConv(nn.Module):
    """A convolution, then 2x2 max pooling, then the bias.

    The bias comes last because it does not change the position of the maximum: the result is the same, for a quarter of
    the additions. For the same reason a network applies its activation, which is monotone, after this. Attributes as
    of `Conv`.
    """

    outputs: int
    size: int
    padding: int | str
    convolve: Convolution

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"]) -> Float[Array, "B H2 W2 O"]:

        def pooled(*operands: Array, **settings: object) -> Array:
            return max_pool(self.convolve(*operands, **settings))

        return _BiasedConv(
            self.outputs,
            (self.size, self.size),
            padding=self.padding,
            kernel_init=uniform_kernel,
            bias_init=uniform_within(self.size**2 * images.shape[-1]),
            conv_general_dilated=pooled,
            name="conv",
        )(images)


@jax.custom_jvp
def _relu(maps: Array) -> Array:
    return jnp.where(maps <= 0, 0, maps)


_relu.defjvps(lambda tangent, result, maps: jnp.where(result > 0, tangent, 0))


def relu(maps: Array) -> Array:
    """The larger of each number and 0, whose derivative depends on the result alone.

    On CPUs, XLA recomputes a maximum wherever it is used: behind residual units, the whole stage's. A selection is
    computed once.
    """
    return _relu(maps) if target_platform() == "cpu" else nn.relu(maps)


def flatten(maps: Float[Array, "B ..."]) -> Float[Array, "B F"]:
    """Flattens each row of a batch, `[B, H, W, K]` to `[B, H * W * K]` for instance."""
    return maps.reshape(maps.shape[0], -1)


def uniform_within(fan_in: int) -> Callable[..., Array]:
    """Initializer that is uniform within 1 / sqrt(fan in)."""
    bound = fan_in**-0.5
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)
