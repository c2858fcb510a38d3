"""The layers of the networks: sums, dense layers, convolutions with a bias, max pooling; and their initial weights.

Weights and biases start as in PyTorch, uniform within 1 / sqrt(fan in), because the papers' repositories use it.

Long sums are written as a product with ones on CPUs: XLA passes plain sums of this size to a library that splits them
among the threads that are idle at the time, so that their last digit differs from run to run (jax issue 39741).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers
from jax.nn.initializers import Initializer
from jaxtyping import Array, Bool, Float

from fedjax_bal.models.derivatives import fast_derivative
from fedjax_bal.target import target_platform
from fedjax_bal.types import Key, PyTree

Convolution = Callable[..., Array]
Real = Bool[Array, " B"] | None
ReplaceParams = Callable[[Key, PyTree], PyTree]
"""A function that replaces the parameters that the layers of body and classifier have drawn."""

GROUP = 32
"""The most rows that CPUs add up before the product with ones: XLA unrolls loops over this many, but not over 64."""

FEW_ROWS = 12
"""Largest batch whose gradient of a dense layer is summed row by row."""


def channel_sums(values: Float[Array, "... K"], group: int = GROUP) -> Float[Array, " K"]:
    """Sums over all axes but the last; CPUs add up at most `group` rows before the product with ones."""
    if target_platform() != "cpu":
        return values.reshape(-1, values.shape[-1]).sum(0)
    # Not ideal: if the number of rows has no small divisors, as a prime has none, groups have one row and gain nothing.
    return _product_with_ones(_grouped(values, group).sum(1)).astype(values.dtype)


def sums_in_one_pass(*values: Float[Array, "B H W K"]) -> list[Array]:
    """Sums arrays of one shape over all axes but the last, each to `[K]`, in fewer passes than one by one.

    Example:
        >>> [sums.tolist() for sums in sums_in_one_pass(jnp.ones((3, 2, 2, 2)), jnp.zeros((3, 2, 2, 2)))]
        [[12.0, 12.0], [0.0, 0.0]]
    """
    if target_platform() == "cpu":
        return [_product_with_ones(sums) for sums in _sums_together([_grouped(each) for each in values], 1)]
    if target_platform() == "tpu":
        return [channel_sums(each) for each in values]
    # XLA fuses sums of single images with the operation that makes the numbers; for one long sum it would write all
    # numbers to memory first.
    images = [_wide(each).reshape(len(each), -1, each.shape[-1]).sum(1) for each in values]
    return _sums_together(images, 0)


def _wide(values: Array) -> Array:
    """Widens values of fewer than 32 bits to 32."""
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))


def _grouped(values: Array, most: int = GROUP) -> Float[Array, "groups rows K"]:
    """Splits values into groups of neighbouring rows, whose sums need no copy of the values; a product would."""
    # The largest group that divides the rows, as padding would copy all of them.
    count = math.prod(values.shape[:-1])
    group = next(size for size in range(most, 0, -1) if count % size == 0)
    return _wide(values).reshape(-1, group, values.shape[-1])


def _product_with_ones(rows: Float[Array, "N K"]) -> Float[Array, " K"]:
    return lax.dot(jnp.ones((1, len(rows)), rows.dtype), rows, precision=lax.Precision.HIGHEST)[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _sums_together(arrays: list[Array], axis: int) -> list[Array]:
    zeros = [jnp.zeros((), each.dtype) for each in arrays]

    def add(totals: list[Array], values: list[Array]) -> list[Array]:
        return [total + value for total, value in zip(totals, values, strict=True)]

    return lax.reduce(arrays, zeros, add, (axis,))


@_sums_together.defjvp
def _(axis: int, primals: tuple[list[Array]], tangents: tuple[list[Array]]) -> tuple[list[Array], list[Array]]:
    # jax's own rule for a reduction of several arrays fails where one of them has no tangent.
    return _sums_together(*primals, axis), [each.sum(axis) for each in tangents[0]]


# The cotangent is in memory already, so the product needs no groups to avoid a copy.
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
        # A product of few rows spends its time writing the result. XLA fuses this sum with its consumer, such as the
        # optimizer's update, so that the gradient is never in memory. It would also fuse the layers before it, and
        # compute them again for each number of the result, but it doesn't fuse a gather.
        every = lax.optimization_barrier(jnp.arange(len(inputs)))
        rows, columns = (jnp.asarray(array).at[every].get(mode="promise_in_bounds") for array in (inputs, cotangent))
        return cotangent @ kernel.T, (rows[:, :, None] * columns[:, None]).sum(0)
    # XLA:CPU's fastest product needs a left operand that is contiguous in memory. Without the barrier, XLA would fold
    # the transposition into the product, and so choose a slower one.
    transposed = lax.optimization_barrier(inputs.T)
    return cotangent @ kernel.T, transposed @ cotangent


@fast_derivative(lambda inputs, kernel: (inputs @ kernel, (inputs, kernel)), _product_gradients)
def _product(inputs: Float[Array, "B F"], kernel: Float[Array, "F O"]) -> Float[Array, "B O"]:
    return inputs @ kernel


# XLA's own gradient of a window maximum is a scatter of selected elements, which is slow on CPUs; comparing with the
# maximum and interleaving the corners is fast. If several pixels are equal, the first one, row by row, takes the
# gradient, as in PyTorch.


def _max_pool_forward(images: Array) -> tuple[Array, tuple[Array, Array]]:
    highest = functools.reduce(jnp.maximum, _corners(images))
    return highest, (images, highest)


def _max_pool_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array]:
    """Sends the gradient to the chosen pixels by interleaving the four corners."""
    images, highest = saved
    _, height, width, channels = images.shape
    # The number of the first corner equal to the maximum; of the last if none is, which happens only for NaN.
    first, second, third, _ = _corners(images)
    chosen = jnp.where(first == highest, 0, jnp.where(second == highest, 1, jnp.where(third == highest, 2, 3)))
    corners = [jnp.where(chosen == i, cotangent, 0) for i in range(4)]
    rows = [jnp.stack(corners[:2], 3), jnp.stack(corners[2:], 3)]
    even = jnp.stack(rows, 2).reshape(-1, height - height % 2, width - width % 2, channels)
    return (jnp.pad(even, ((0, 0), (0, height % 2), (0, width % 2), (0, 0))),)


# `plain`, because JAX's derivative of a maximum is shared among equal pixels.
@fast_derivative(_max_pool_forward, _max_pool_backward, plain=lambda images: _choose_first(_corners(images)))
def max_pool(images: Float[Array, "B H W K"]) -> Float[Array, "B H2 W2 K"]:
    """Takes the maximum of each 2x2 block of pixels, `[B, H // 2, W // 2, K]`; ignores a last odd row or column."""
    return functools.reduce(jnp.maximum, _corners(images))


def _corners(images: Array) -> list[Array]:
    """Returns the four pixels of every block: upper left, upper right, lower left, lower right."""
    height, width = (side - side % 2 for side in images.shape[1:3])
    return [images[:, row:height:2, column:width:2] for row in (0, 1) for column in (0, 1)]


def _choose_first(views: Sequence[Array]) -> Array:
    """Returns the maximum of the views; its derivative is that of the first view equal to it, not shared by equals."""
    highest = functools.reduce(jnp.maximum, views)
    return jnp.select([view == highest for view in views], views, highest)


def _overlapping_forward(images: Array) -> tuple[Array, tuple[Array, Array]]:
    highest = functools.reduce(jnp.maximum, _neighbours(images, -jnp.inf))
    return highest, (images, highest)


def _overlapping_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array]:
    """Sends the gradient to the chosen pixels; to the centre if no pixel is equal, which happens only for NaN."""
    images, highest = saved
    equal = [view == highest for view in _neighbours(images, -jnp.inf)]
    chosen = jnp.select(equal, list(range(9)), 4)
    shares = [jnp.where(chosen == i, cotangent, 0) for i in range(9)]
    # Windows overlap, so a pixel adds up the gradients of all windows that chose it: the transpose of slicing.
    scatter = jax.linear_transpose(lambda images: _neighbours(images, 0), images)
    return scatter(shares)


@fast_derivative(
    _overlapping_forward, _overlapping_backward, plain=lambda images: _choose_first(_neighbours(images, -jnp.inf))
)
def overlapping_max_pool(images: Float[Array, "B H W K"]) -> Float[Array, "B H2 W2 K"]:
    """Takes the maximum around every second pixel, 3x3 within the image: `[B, ceil(H / 2), ceil(W / 2), K]`."""
    return functools.reduce(jnp.maximum, _neighbours(images, -jnp.inf))


def _neighbours(images: Array, outside: float) -> list[Array]:
    """Returns the pixels at each of the nine places around every second pixel, row by row."""
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=outside)
    height, width = (side + side % 2 for side in images.shape[1:3])
    return [padded[:, i : i + height - 1 : 2, j : j + width - 1 : 2] for i in range(3) for j in range(3)]


def uniform_within(fan_in: int) -> Callable[..., Array]:
    """Makes an initializer that is uniform within 1 / sqrt(fan in)."""
    bound = fan_in**-0.5
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)


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
        # Not Flax's own bias, whose gradient is a plain sum (see `channel_sums`).
        return add_bias(maps, self.param("bias", self.bias_init, (self.features,)).astype(maps.dtype))


class Conv(nn.Module):
    """A convolution with a bias, perhaps with 2x2 max pooling between the two.

    After pooling, the bias takes a quarter of the additions, and as it doesn't change the position of the maximum, the
    result is the same. For the same reason a network applies its monotone activation after this layer.

    Attributes:
        outputs: number of channels.
        size: side of the kernel, in pixels.
        padding: zeros on each side in pixels, or "SAME".
        convolve: the convolution, with the signature of `jax.lax.conv_general_dilated`.
        stride: steps between outputs, in pixels.
        pooled: whether the maps are pooled.
    """

    outputs: int
    size: int
    padding: int | str
    convolve: Convolution
    stride: int = 1
    pooled: bool = False

    @nn.compact
    def __call__(self, images: Float[Array, "B H W K"]) -> Float[Array, "B H2 W2 O"]:
        def convolve(*operands: Array, **settings: object) -> Array:
            maps = self.convolve(*operands, **settings)
            return max_pool(maps) if self.pooled else maps

        return _BiasedConv(
            self.outputs,
            (self.size, self.size),
            strides=(self.stride, self.stride),
            padding=self.padding,
            kernel_init=uniform_kernel,
            bias_init=uniform_within(self.size**2 * images.shape[-1]),
            conv_general_dilated=convolve,
            name="conv",
        )(images)


def standardised_kernel(kernel: Float[Array, "H W I O"], scale: float) -> Float[Array, "H W I O"]:
    """Shifts and scales the weights of each output channel to mean 0 and standard deviation `scale`.

    References:
        Qiao et al., "Micro-Batch Training with Batch-Channel Normalization and Weight Standardization", 2019, with
        scale 1; as in the code of FedWSQ, the deviation is unbiased, 1e-5 is added to it, and the scale is 0.001.
    """
    axes = (0, 1, 2)
    centred = kernel - kernel.mean(axes)
    variance = (centred**2).sum(axes) / max(math.prod(kernel.shape[:3]) - 1, 1)
    # The root has no derivative at 0, where the kernel of an output channel is constant.
    varies = variance > 0
    deviation = jnp.where(varies, jnp.sqrt(jnp.where(varies, variance, 1.0)), 0.0)
    return centred * (scale / (deviation + 1e-5))


def standardising(convolve: Convolution, scale: float) -> Convolution:
    """Makes a convolution with `standardised_kernel`."""

    def convolved(maps: Array, kernel: Array, *args: Any, **settings: Any) -> Array:
        return convolve(maps, standardised_kernel(kernel, scale), *args, **settings)

    return convolved


@jax.custom_jvp
def _relu(maps: Array) -> Array:
    return jnp.where(maps <= 0, 0, maps)


_relu.defjvps(lambda tangent, result, maps: jnp.where(result > 0, tangent, 0))


def relu(maps: Array) -> Array:
    """Returns the larger of each number and 0; the derivative depends only on the result.

    On CPUs, XLA recomputes a maximum wherever it is used: after residual units, those of the whole stage. A selection
    is computed once.
    """
    return _relu(maps) if target_platform() == "cpu" else nn.relu(maps)


def flatten(maps: Float[Array, "B ..."]) -> Float[Array, "B F"]:
    """Flattens each row of a batch, for instance `[B, H, W, K]` to `[B, H * W * K]`."""
    return maps.reshape(maps.shape[0], -1)


def as_drawn(key: Key, params: PyTree) -> PyTree:
    """Keeps the parameters that the layers have drawn."""
    del key
    return params


def he_fan_out(key: Key, params: PyTree) -> PyTree:
    """Draws convolutions with variance 2 / fan out and dense layers with deviation 0.01, both normal; biases are 0.

    References:
        FL-CIR's code (github.com/ym1231/fl-cir).
    """
    return _redraw(key, params, initializers.variance_scaling(2.0, "fan_out", "normal"), initializers.normal(0.01))


def glorot(key: Key, params: PyTree) -> PyTree:
    """Draws weights uniformly with variance 2 / (fan in + fan out), Keras's default; biases are 0."""
    return _redraw(key, params, initializers.glorot_uniform(), initializers.glorot_uniform())


def _redraw(key: Key, params: PyTree, convolution: Initializer, dense: Initializer) -> PyTree:
    """Draws all leaves again; the number of axes distinguishes convolutions, dense layers and biases."""
    laws = {4: convolution, 2: dense, 1: initializers.zeros}
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    drawn = [laws[leaf.ndim](leaf_key, leaf.shape, leaf.dtype) for leaf_key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)
