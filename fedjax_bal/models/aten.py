"""Operations of PyTorch's graphs in JAX, by the names that they have in ATen, PyTorch's library of operations.

Arrays with four axes are stored with their channels last, `[B, H, W, K]`, as this package's convolution, pooling and
batch normalisation need them; all others have PyTorch's axes. Operations take positional arguments in the order of
their declarations in ATen, defaults included. PyTorch isn't imported.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_bal.models.adapters import NO_KEY
from fedjax_bal.models.convolution.geometry import LAYOUT
from fedjax_bal.models.layers import add_bias, dense_product, max_pool, overlapping_max_pool, relu
from fedjax_bal.models.normalization import affine, moments, move_running, normalise_batch
from fedjax_bal.types import Array, Key

BATCH_NORMS = ("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit_no_training.default")
"""Batch normalisation with running statistics, whose fourth argument is the running mean."""


class UnsupportedError(ValueError):
    """Raised for an unknown operation, or an unknown setting of one; the message says what was received."""


def channels_first(value: Any) -> Any:
    """Converts an array from the order of axes in which it is stored to PyTorch's; leaves other values as they are."""
    return jnp.moveaxis(value, -1, 1) if np.ndim(value) == 4 else value


def channels_last(value: Any) -> Any:
    """Converts an array from PyTorch's order of axes to that in which it is stored."""
    return jnp.moveaxis(value, 1, -1) if np.ndim(value) == 4 else value


class ForwardPass:
    """One call of a network: its convolution, random numbers, real rows, and the moments of normalised inputs."""

    def __init__(self, convolve: Callable[..., Array], key: Key | None, real: Array | None) -> None:
        self.convolve = convolve
        self.real = real
        self._key = key
        self._drawn = 0

    def run(self, name: str, arguments: Sequence[Any], pointwise: bool) -> Any:
        """Runs an operation, such as "conv2d.default"; `pointwise` says that it acts on each number by itself."""
        if name in _LAYERS:
            return _LAYERS[name](self, *arguments)
        if name not in _FUNCTIONS:
            raise UnsupportedError(f"the operation {name.removesuffix('.default')}")
        if pointwise and {np.ndim(array) for array in jax.tree.leaves(arguments) if hasattr(array, "ndim")} <= {0, 4}:
            return _FUNCTIONS[name](*arguments)
        return jax.tree.map(channels_last, _FUNCTIONS[name](*jax.tree.map(channels_first, arguments)))

    def next_key(self) -> Key:
        """Returns another key for each layer that draws random numbers."""
        if self._key is None:
            raise ValueError(NO_KEY)
        self._drawn += 1
        return jax.random.fold_in(self._key, self._drawn)


def knows(name: str) -> bool:
    """Tells whether an operation is known by its own name, so that it needn't be decomposed."""
    return name in _LAYERS or name in _FUNCTIONS


def moments_of(forward: ForwardPass, arguments: Sequence[Any]) -> tuple[Array, Array]:
    """Computes mean and variance of the inputs of one of `BATCH_NORMS`, over the real rows."""
    return moments(_as_maps(arguments[0]), forward.real)[:2]


def _as_maps(inputs: Array) -> Array:
    """Reshapes `[B, K]`, `[B, K, ...]` or stored maps `[B, H, W, K]` to maps `[B, H, W, K]`."""
    last = inputs if inputs.ndim == 4 else jnp.moveaxis(inputs, 1, -1)
    return last if inputs.ndim == 4 else last.reshape(len(inputs), 1, -1, last.shape[-1])


def _like(maps: Array, inputs: Array) -> Array:
    """Undoes `_as_maps`."""
    if inputs.ndim == 4:
        return maps
    return jnp.moveaxis(maps.reshape(len(inputs), *inputs.shape[2:], inputs.shape[1]), -1, 1)


def _pair(lengths: Any) -> tuple[int, int]:
    """Reads lengths along both sides, of which a single one is meant for both."""
    if isinstance(lengths, int):
        return lengths, lengths
    first, *others = lengths
    return (first, *others) if others else (first, first)


def _sides(padding: Any) -> Any:
    """Returns the padding before and after each side."""
    return [(side, side) for side in _pair(padding)]


def _conv2d(
    forward: ForwardPass,
    images: Array,
    weight: Array,
    bias: Array | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Array:
    spread = _pair(dilation)
    maps = forward.convolve(
        images,
        jnp.transpose(weight, (1, 2, 3, 0)),  # a kernel [O, I, h, w] is stored as [O, h, w, I]
        _pair(stride),
        padding.upper() if isinstance(padding, str) else _sides(padding),
        dimension_numbers=LAYOUT,
        feature_group_count=groups,
        **({"rhs_dilation": spread} if spread != (1, 1) else {}),
    )
    return maps if bias is None else add_bias(maps, bias)


def _max_pool2d(
    _: ForwardPass, maps: Array, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Array:
    if ceil_mode or _pair(dilation) != (1, 1):
        raise UnsupportedError("max pooling with ceil_mode or dilation")
    window, steps, edges = _pair(size), _pair(stride or size), _sides(padding)
    if (window, steps, edges) == ((2, 2), (2, 2), _sides(0)):
        return max_pool(maps)
    if (window, steps, edges) == ((3, 3), (2, 2), _sides(1)):
        return overlapping_max_pool(maps)
    return nn.max_pool(maps, window, steps, edges)


def _max_pool_with_indices(forward: ForwardPass, *arguments: Any) -> tuple[Array]:
    return (_max_pool2d(forward, *arguments),)


def _avg_pool2d(
    _: ForwardPass, maps: Array, size: Any, stride: Any, padding: Any, ceil_mode: bool, counts: bool, divisor: Any
) -> Array:
    if ceil_mode or divisor is not None:
        raise UnsupportedError("average pooling with ceil_mode or divisor_override")
    return nn.avg_pool(maps, _pair(size), _pair(stride or size), _sides(padding), count_include_pad=counts)


def _adaptive_avg_pool2d(_: ForwardPass, maps: Array, size: Sequence[int | None]) -> Array:
    rows, columns = (
        _shares(side, wanted or side, maps.dtype) for side, wanted in zip(maps.shape[1:3], size, strict=True)
    )
    return jnp.einsum("bhwk,ih,jw->bijk", maps, rows, columns)


def _shares(side: int, wanted: int, dtype: Any) -> np.ndarray:
    """Returns the share of each pixel in each of the wanted averages, `[wanted, side]`; windows may overlap."""
    shares = np.zeros((wanted, side), dtype)
    for number in range(wanted):
        window = slice(number * side // wanted, math.ceil((number + 1) * side / wanted))
        shares[number, window] = 1 / (window.stop - window.start)
    return shares


def _conv1d(
    forward: ForwardPass,
    inputs: Array,
    weight: Array,
    bias: Array | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Array:
    # A line is an image of one row, and so is a kernel.
    maps, kernel = (jnp.moveaxis(values, 1, -1)[:, None] for values in (inputs, weight))
    edges = padding if isinstance(padding, str) else (0, _pair(padding)[1])
    settings = (1, _pair(stride)[1]), edges, (1, _pair(dilation)[1]), groups
    return jnp.moveaxis(_conv2d(forward, maps, kernel, bias, *settings)[:, 0], -1, 1)


def _batch_norm(
    forward: ForwardPass,
    inputs: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    var: Array,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[Array, None, None, Array, Array]:
    maps = _as_maps(inputs)
    scale = jnp.ones_like(mean) if weight is None else weight
    shift = jnp.zeros_like(mean) if bias is None else bias
    if not training:
        return _like(affine(maps, mean, var, scale, shift, epsilon), inputs), None, None, mean, var
    results: Any = normalise_batch(maps, scale, shift, forward.real, (mean, var), epsilon)
    normalised, *batch = results
    of_mean, of_var, count = batch
    running = move_running((mean, var), of_mean, of_var, count, momentum)
    return _like(normalised, inputs), None, None, *running


def _frozen_batch_norm(
    forward: ForwardPass, inputs: Array, weight: Any, bias: Any, mean: Array, var: Array, rate: float, epsilon: float
) -> tuple[Array, None, None, Array, Array]:
    return _batch_norm(forward, inputs, weight, bias, mean, var, False, rate, epsilon)


def _group_norm(
    _: ForwardPass, inputs: Array, groups: int, weight: Array | None, bias: Array | None, epsilon: float, __: bool
) -> Array:
    maps = _as_maps(inputs)
    grouped = maps.reshape(len(maps), -1, groups, maps.shape[-1] // groups)
    normalised = _standardise(grouped, (1, 3), epsilon).reshape(maps.shape)
    return _like(_scale(normalised, weight, bias), inputs)


def _instance_norm(
    forward: ForwardPass, inputs: Array, weight: Any, bias: Any, mean: Any, var: Any, *settings: Any
) -> Array:
    if mean is not None or var is not None:
        raise UnsupportedError("instance normalisation with running statistics")
    *_, epsilon, cudnn = settings
    return _group_norm(forward, inputs, _as_maps(inputs).shape[-1], weight, bias, epsilon, cudnn)


def _layer_norm(inputs: Array, shape: Sequence[int], weight: Any, bias: Any, epsilon: float, _: bool) -> Array:
    return _scale(_standardise(inputs, tuple(range(-len(shape), 0)), epsilon), weight, bias)


def _standardise(values: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    mean = values.mean(axes, keepdims=True)
    # Two passes: the difference of the mean square and the squared mean would lose digits.
    var = ((values - mean) ** 2).mean(axes, keepdims=True)
    return (values - mean) * lax.rsqrt(var + epsilon)


def _scale(values: Array, weight: Array | None, bias: Array | None) -> Array:
    scaled = values if weight is None else values * weight
    return scaled if bias is None else scaled + bias


def _dropout(forward: ForwardPass, values: Array, share: float, train: bool | None) -> tuple[Array]:
    if train is False or share == 0:
        return (values,)
    kept = jax.random.bernoulli(forward.next_key(), 1 - share, values.shape)
    return (jnp.where(kept, values / (1 - share), 0).astype(values.dtype),)


def _bernoulli(forward: ForwardPass, values: Array, share: float, _: Any) -> Array:
    return jax.random.bernoulli(forward.next_key(), share, values.shape).astype(values.dtype)


def _cat(_: ForwardPass, arrays: Sequence[Array], axis: int) -> Array:
    # The axes of maps by their numbers in PyTorch.
    return jnp.concatenate(arrays, (0, 3, 1, 2)[axis] if arrays[0].ndim == 4 else axis)


_LAYERS: Mapping[str, Callable[..., Any]] = {
    "conv2d.default": _conv2d,
    "conv2d.padding": _conv2d,
    "conv1d.default": _conv1d,
    "conv1d.padding": _conv1d,
    "_native_batch_norm_legit_functional.default": _batch_norm,
    "_native_batch_norm_legit_no_training.default": _frozen_batch_norm,
    "group_norm.default": _group_norm,
    "instance_norm.default": _instance_norm,
    "max_pool2d.default": _max_pool2d,
    "max_pool2d_with_indices.default": _max_pool_with_indices,
    "avg_pool2d.default": _avg_pool2d,
    "adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
    "native_dropout.default": _dropout,
    "bernoulli.p": _bernoulli,
    "cat.default": _cat,
}
"""Operations on arrays as they are stored."""


def linear(inputs: Array, weight: Array, bias: Array | None) -> Array:
    """Multiplies inputs `[..., F]` by a weight `[O, F]` and adds a bias `[O]`, if any."""
    result = dense_product(inputs, weight.T, (((inputs.ndim - 1,), (0,)), ((), ())))
    return result if bias is None else result + bias


def _embedding(weight: Array, ids: Array, padding: int, by_frequency: bool, sparse: bool) -> Array:
    if by_frequency or sparse:
        raise UnsupportedError("an embedding with scale_grad_by_freq or sparse gradients")
    # An id beyond the table gives NaN, which ends the run; PyTorch raises an error.
    vectors = weight.at[ids].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    return jnp.where((ids == padding)[..., None], lax.stop_gradient(vectors), vectors) if padding >= 0 else vectors


def _add(one: Array, other: Any, factor: Any = 1) -> Array:
    return one + (other if factor == 1 else factor * other)


def _subtract(one: Array, other: Any, factor: Any = 1) -> Array:
    return one - (other if factor == 1 else factor * other)


def _hardtanh(values: Array, lowest: float, highest: float) -> Array:
    # Without a gradient at the limits, as in PyTorch; that of `jnp.clip` is half there.
    return jnp.where(values <= lowest, lowest, jnp.where(values >= highest, highest, values))


def _clamp(values: Array, lowest: Any, highest: Any) -> Array:
    if lowest is not None:
        values = jnp.where(values < lowest, lowest, values)
    return values if highest is None else jnp.where(values > highest, highest, values)


def _leaky_relu(values: Array, slope: float) -> Array:
    return jnp.where(values > 0, values, slope * values)


def _elu(values: Array, alpha: float, scale: float, input_scale: float) -> Array:
    # The exponential of large numbers, which are not selected, would have an infinite derivative.
    return scale * jnp.where(values > 0, values, alpha * jnp.expm1(input_scale * jnp.minimum(values, 0)))


def _gelu(values: Array, approximate: str) -> Array:
    return jax.nn.gelu(values, approximate == "tanh")


def _reduced(reduction: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(values: Array, axes: Any, keepdims: bool = False, _: Any = None) -> Array:
        chosen = axes if isinstance(axes, int) else tuple(axes or range(values.ndim))
        return reduction(values, axis=chosen, keepdims=keepdims)

    return reduce


def _softmax(values: Array, axis: int, _: Any) -> Array:
    return jax.nn.softmax(values, axis)


def _log_softmax(values: Array, axis: int, _: Any) -> Array:
    return jax.nn.log_softmax(values, axis)


def _addmm(added: Array, one: Array, other: Array, beta: Any, alpha: Any) -> Array:
    return beta * added + alpha * (one @ other)


def _size(values: Array, axis: int) -> int:
    return values.shape[axis]


def _expand(values: Array, sizes: Sequence[int], _: bool) -> Array:
    shape = (1,) * (len(sizes) - values.ndim) + values.shape
    return jnp.broadcast_to(values, [old if new == -1 else new for old, new in zip(shape, sizes, strict=True)])


def _squeeze(values: Array, axes: Any) -> Array:
    listed = [axes] if isinstance(axes, int) else axes
    return jnp.squeeze(values, tuple(axis for axis in listed if values.shape[axis] == 1))


def _slice(values: Array, axis: int, start: int | None, stop: int | None, step: int) -> Array:
    return values[(slice(None),) * (axis % values.ndim) + (slice(start, stop, step),)]


def _select(values: Array, axis: int, index: int) -> Array:
    return jnp.take(values, index, axis)


def _split(values: Array, sizes: Any, axis: int) -> list[Array]:
    stops = range(sizes, values.shape[axis], sizes) if isinstance(sizes, int) else np.cumsum(sizes)[:-1]
    return jnp.split(values, list(stops), axis)


def _pad(values: Array, sides: Sequence[int], value: Any) -> Array:
    # Pairs of numbers, those of the last axis first.
    pairs = [(sides[at], sides[at + 1]) for at in range(0, len(sides), 2)]
    return jnp.pad(values, [(0, 0)] * (values.ndim - len(pairs)) + pairs[::-1], constant_values=value)


def _full(sizes: Sequence[int], value: Any, dtype: Any = None, *_: Any) -> Array:
    return jnp.full(sizes, value, _dtype(dtype) or type(value))


def _full_like(values: Array, value: Any, dtype: Any = None, *_: Any) -> Array:
    return jnp.full_like(values, value, dtype=_dtype(dtype))


def _empty(sizes: Sequence[int], dtype: Any = None, *_: Any) -> Array:
    return jnp.zeros(sizes, _dtype(dtype) or jnp.float32)


def _new_empty(values: Array, sizes: Sequence[int], *_: Any) -> Array:
    return jnp.zeros(sizes, values.dtype)


def _to_copy(values: Array, dtype: Any, *_: Any) -> Array:
    return values if dtype is None else values.astype(_dtype(dtype))


def _dtype(dtype: Any) -> Any:
    """Converts a type of PyTorch, with at most 32 bits as everywhere in this package."""
    name = str(dtype).removeprefix("torch.")
    return None if dtype is None else jnp.dtype(name.replace("64", "32"))


def _same(values: Array, *_: Any) -> Array:
    return values


def _nothing(*_: Any) -> None:
    return None


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{f"{name}.{kind}": function for kind in ("Tensor", "Scalar") for name, function in (
        ("add", _add), ("sub", _subtract), ("mul", jnp.multiply), ("div", jnp.divide), ("eq", operator.eq),
        ("ne", operator.ne), ("lt", operator.lt), ("le", operator.le), ("gt", operator.gt), ("ge", operator.ge),
    )},
    "pow.Tensor_Scalar": operator.pow,
    **{f"{name}.default": getattr(jnp, name) for name in (
        "abs", "cos", "exp", "expm1", "flip", "log", "log1p", "logical_and", "logical_not", "logical_or", "maximum",
        "minimum", "sin", "sqrt", "tanh",
    )},
    "erf.default": lax.erf,
    "neg.default": jnp.negative,
    "reciprocal.default": jnp.reciprocal,
    "rsqrt.default": lax.rsqrt,
    "relu.default": relu,
    "sigmoid.default": jax.nn.sigmoid,
    "silu.default": jax.nn.silu,
    "gelu.default": _gelu,
    "elu.default": _elu,
    "leaky_relu.default": _leaky_relu,
    "hardtanh.default": _hardtanh,
    "clamp.default": _clamp,
    "where.self": jnp.where,
    "softmax.int": _softmax,
    "_softmax.default": _softmax,
    "log_softmax.int": _log_softmax,
    "_log_softmax.default": _log_softmax,
    "linear.default": linear,
    "embedding.default": _embedding,
    "layer_norm.default": _layer_norm,
    "mean.dim": _reduced(jnp.mean),
    "sum.dim_IntList": _reduced(jnp.sum),
    "amax.default": _reduced(jnp.max),
    "amin.default": _reduced(jnp.min),
    "any.dim": _reduced(jnp.any),
    "mm.default": jnp.matmul,
    "bmm.default": jnp.matmul,
    "addmm.default": _addmm,
    "sym_size.int": _size,
    "view.default": jnp.reshape,
    "_unsafe_view.default": jnp.reshape,
    "permute.default": jnp.transpose,
    "unsqueeze.default": jnp.expand_dims,
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
    "expand.default": _expand,
    "repeat.default": jnp.tile,
    "slice.Tensor": _slice,
    "select.int": _select,
    "split.Tensor": _split,
    "split_with_sizes.default": _split,
    "constant_pad_nd.default": _pad,
    "full.default": _full,
    "full_like.default": _full_like,
    "empty.memory_format": _empty,
    "new_empty.default": _new_empty,
    "_to_copy.default": _to_copy,
    "clone.default": _same,
    "alias.default": _same,
    "_assert_scalar.default": _nothing,
    "_assert_tensor_metadata.default": _nothing,
}  # fmt: skip
"""Operations on arrays with PyTorch's order of axes."""
