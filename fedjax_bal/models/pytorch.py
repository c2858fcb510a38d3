"""Weights of PyTorch's networks in this package's layouts, and back; PyTorch itself isn't needed.

PyTorch has channels first, so that kernels of convolutions are `[O, I, h, w]` in place of `[h, w, I, O]`, and flattened
feature maps have all pixels of the first channel before those of the second. Its dense kernels are `[O, I]`.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import unflatten_dict
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from fedjax_bal.jax_setup import package_settings, start_jax
from fedjax_bal.models.derivatives import differentiable
from fedjax_bal.models.weights import named_leaves
from fedjax_bal.types import Model, Variables

_NAMES = {
    "kernel": "weight",
    "embedding": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
"""Names of a layer's arrays in Flax, and in PyTorch."""

_COUNTER = "num_batches_tracked"
_UNCLEAR = -1
_ORDER = "give the layers in the order in which they compute"


class _Leaf(NamedTuple):
    """An array of a layer.

    Attributes:
        name: its name among the variables, such as "params.head.kernel".
        shape: its shape.
        parts: the same, but with pixels and channels of flattened inputs as two axes.
        axes: the order of these axes in PyTorch.
        torch_shape: its shape in PyTorch.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[int, ...]
    axes: tuple[int, ...]
    torch_shape: tuple[int, ...]

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """Converts the array to PyTorch's layout."""
        return array.reshape(self.parts).transpose(self.axes).reshape(self.torch_shape)

    def from_torch(self, array: np.ndarray) -> np.ndarray:
        """Converts the array from PyTorch's layout."""
        parts = array.reshape([self.parts[axis] for axis in self.axes])
        return parts.transpose(np.argsort(self.axes)).reshape(self.shape)


def _leaf(name: str, shape: tuple[int, ...], channels: int) -> _Leaf:
    """Describes an array; `channels` are those of a dense layer's inputs if they are flattened maps, otherwise 0."""
    if not name.endswith(".kernel"):
        return _Leaf(name, shape, shape, tuple(range(len(shape))), shape)
    *window, inputs, outputs = shape
    parts = (-1, channels, outputs) if channels and not window else shape
    last = len(parts) - 1
    return _Leaf(name, shape, parts, (last, last - 1, *range(last - 1)), (outputs, inputs, *window))


class _Layer(NamedTuple):
    """A layer: its name, and its arrays by their names in PyTorch."""

    name: str
    leaves: dict[str, _Leaf]


@package_settings()
def weights_from_torch(model: Model, state: Mapping[str, Any]) -> Variables:
    """Converts the weights of a PyTorch network to those of a model with the same layers.

    For networks whose layers follow one another: dense layers, convolutions, embeddings, and batch, group and layer
    normalisation, with anything between them that has no weights. The first layer of one is the first layer of the
    other, and so on; names don't matter.

    Args:
        model: the model, from `build`, `from_linen` or `from_nnx`.
        state: the network's `state_dict()`: its tensors, or NumPy arrays, in the order in which its layers compute. A
            file of safetensors has them in the alphabet's order, so that layer 10 comes before layer 2. Without the
            last layer's, the classifier is left out of the result, so that `with_weights` has it drawn.

    Returns:
        The variables, for `with_weights` or `simulate(..., variables=...)`; flattened feature maps count as flattened
        with their channels first, as PyTorch does.

    Raises:
        ValueError: the layers aren't those of the model, in number, kind or shape.

    Example:
        >>> from fedjax_bal.models import build
        >>> model = build("mlp", 2, (4,), hidden=[3])
        >>> state = {"0.weight": np.ones((3, 4)), "0.bias": np.zeros(3), "2.weight": np.ones((2, 3)), "2.bias": [0, 1]}
        >>> weights_from_torch(model, state).params["head"]["dense"]["bias"]
        array([0., 1.], dtype=float32)
        >>> weights_from_torch(model, state | {"2.weight": np.ones((3, 2))})  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        ValueError: state: received [3, 2] for 2.weight, must be [2, 3], as head.dense of the model mlp has [3, 2]: give
        the layers in the order in which they compute
    """
    leaves = {leaf.name: leaf.from_torch(np.asarray(state[name])) for name, leaf in _matched(model, state, "state")}
    nested = unflatten_dict({name: np.array(array, np.float32) for name, array in leaves.items()}, sep=".")
    return Variables(nested["params"], nested.get("stats", {}))


@package_settings()
def weights_to_torch(model: Model, variables: Variables, like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Converts a model's weights to those of a PyTorch network with the same layers; undoes `weights_from_torch`.

    Args:
        model: the model.
        variables: its weights.
        like: the network's own `state_dict()`, for names and shapes.

    Returns:
        Arrays by name, for `load_state_dict` once they are tensors; what isn't a weight is that of `like`.

    Raises:
        ValueError: the layers aren't those of the model, in number, kind or shape.

    Example:
        >>> from fedjax_bal.models import build
        >>> model = build("mlp", 2, (4,), hidden=[3])
        >>> state = {"0.weight": np.ones((3, 4)), "0.bias": np.zeros(3), "2.weight": np.ones((2, 3)), "2.bias": [0, 1]}
        >>> weights_to_torch(model, weights_from_torch(model, state), state)["2.weight"].shape
        (2, 3)
    """
    ours = named_leaves(variables)
    converted = {name: leaf.to_torch(np.asarray(ours[leaf.name])) for name, leaf in _matched(model, like, "like")}
    return {name: np.array(converted.get(name, value), order="C") for name, value in like.items()}


def _matched(model: Model, state: Mapping[str, Any], argument: str) -> Iterator[tuple[str, _Leaf]]:
    """Yields the names of a PyTorch network's arrays, each with the model's array; refuses what doesn't fit."""
    layers = _layers(model)
    theirs: dict[str, dict[str, str]] = {}
    for name in state:
        layer, _, kind = name.rpartition(".")
        if kind != _COUNTER:
            theirs.setdefault(layer, {})[kind] = name
    numbered: dict[str, list[tuple[int, ...]]] = {}
    for layer in theirs:
        numbered.setdefault(re.sub(r"\d+", "#", layer), []).append(tuple(map(int, re.findall(r"\d+", layer))))
    if any(numbers != sorted(numbers) for numbers in numbered.values()):
        raise ValueError(f"{argument}: received the layers {', '.join(theirs)}, must be sorted by number: {_ORDER}")
    ends_in_head = layers[-1].name.partition(".")[0] == "head"
    if len(theirs) not in (len(layers), len(layers) - ends_in_head):
        raise ValueError(
            f"{argument}: received {len(theirs)} layers with weights ({', '.join(theirs)}), must be the {len(layers)} "
            f"of the model {model.name} ({', '.join(layer.name for layer in layers)}), with or without the classifier"
        )
    for layer, (name, kinds) in zip(layers, theirs.items(), strict=False):
        whose = f"{layer.name} of the model {model.name}"
        if kinds.keys() != layer.leaves.keys():
            raise ValueError(
                f"{argument}: received {', '.join(sorted(kinds))} for {name}, must be "
                f"{', '.join(sorted(layer.leaves))}, those of {whose}: {_ORDER}"
            )
        for kind, leaf in layer.leaves.items():
            shape = np.shape(state[kinds[kind]])
            if shape != leaf.torch_shape:
                raise ValueError(
                    f"{argument}: received {list(shape)} for {kinds[kind]}, must be {list(leaf.torch_shape)}, as "
                    f"{whose} has {list(leaf.shape)}: {_ORDER}"
                )
            yield kinds[kind], leaf


@functools.lru_cache(maxsize=64)
def _layers(model: Model) -> tuple[_Layer, ...]:
    """Finds the layers of a model, in the order in which they compute."""
    start_jax()
    variables = jax.eval_shape(model.init, jax.random.key(0))
    images = jax.ShapeDtypeStruct((1, *model.input_shape), model.input_dtype)
    # With JAX's own derivatives no layer hides its arrays in a function with a derivative of its own.
    plain = differentiable(model)
    program = jax.make_jaxpr(lambda *given: plain.apply(*given, train=False)[0].logits)(variables, images)
    names = list(named_leaves(variables))
    used, _ = _first_uses(program.jaxpr, dict(zip(program.jaxpr.invars, names, strict=False)), {})

    shapes = {name: leaf.shape for name, leaf in named_leaves(variables).items()}
    layers: dict[str, dict[str, _Leaf]] = {}
    for name, channels in used.items():
        layer, _, kind = name.partition(".")[2].rpartition(".")
        if kind not in _NAMES:
            raise ValueError(
                f"model {model.name}: received the array {name}, must have dense, convolutional, embedding and "
                "normalisation layers only: convert the weights by hand"
            )
        if kind == "kernel" and channels == _UNCLEAR:
            raise ValueError(
                f"model {model.name}: received inputs of {layer} that are flattened maps, but transposed or in several "
                "pieces, so that their order in PyTorch isn't clear: convert the weights by hand"
            )
        layers.setdefault(layer, {})[_NAMES[kind]] = _leaf(name, shapes[name], channels)
    return tuple(_Layer(layer, leaves) for layer, leaves in layers.items())


def _first_uses(
    program: Jaxpr, names: Mapping[Var, str], channels: Mapping[Var, int]
) -> tuple[dict[str, int], list[int]]:
    """Finds the named inputs of a program in the order of their first use, and the flattened maps that they multiply.

    Args:
        program: the program.
        names: the names of some of its inputs.
        channels: the channels of inputs that are flattened maps; see `_channels`.

    Returns:
        For each name the channels of the flattened maps that it multiplies, otherwise 0; and those of the program's
        results.
    """
    used: dict[str, int] = {}
    named, maps = dict(names), dict(channels)
    for equation in program.eqns:
        operands = [operand if isinstance(operand, Var) else None for operand in equation.invars]
        inputs = [named.get(operand) if operand else None for operand in operands]
        given = [maps.get(operand, 0) if operand else 0 for operand in operands]
        results = [_channels(equation, given, _shape(result)) for result in equation.outvars]
        for value in equation.params.values():
            body = value.jaxpr if isinstance(value, ClosedJaxpr) else value
            if isinstance(body, Jaxpr) and len(body.invars) == len(inputs):  # a function that is called, not a loop
                within = {place: name for place, name in zip(body.invars, inputs, strict=True) if name is not None}
                below, results = _first_uses(body, within, dict(zip(body.invars, given, strict=True)))
                used |= {name: count or used.get(name, 0) for name, count in below.items()}
        multiplies = equation.primitive.name == "dot_general"
        for name in filter(None, inputs):
            used[name] = used.get(name, 0) or (multiplies and next(filter(None, given), 0))
        maps |= zip(equation.outvars, results, strict=True)
        # A kernel that was cast or scaled is still that kernel.
        for operand, name in () if multiplies else zip(operands, inputs, strict=True):
            if name:
                named |= {result: name for result in equation.outvars if _shape(result) == _shape(operand)}
    return used, [maps.get(result, 0) if isinstance(result, Var) else 0 for result in program.outvars]


def _channels(equation: JaxprEqn, given: Sequence[int], shape: tuple[int, ...]) -> int:
    """Returns the channels of a result that is flattened maps `[B, H * W * channels]`; 0 for any other array.

    `_UNCLEAR` stands for maps, flattened or not, whose axes or pixels are in another order. `given` are the same of the
    operands.
    """
    kind, operand = equation.primitive.name, equation.invars[0]
    if kind == "conv_general_dilated":
        return 0 if equation.params["dimension_numbers"].out_spec[1] == len(shape) - 1 else _UNCLEAR
    if kind == "dot_general" or kind.startswith(("reduce_", "arg")):
        return 0
    rank = len(_shape(operand))
    if kind == "reshape":
        return given[0] or (_shape(operand)[-1] if rank == 4 and len(shape) < 4 else 0)
    if kind == "transpose" and rank > 2:
        return _UNCLEAR
    kept = {count for count, other in zip(given, equation.invars, strict=True) if count and _shape(other) == shape}
    return kept.pop() if len(kept) == 1 else _UNCLEAR if any(given) else 0


def _shape(operand: Any) -> tuple[int, ...]:
    return operand.aval.shape
