"""Weights of PyTorch's networks in this package's layouts, and back; for state dicts PyTorch itself isn't needed.

PyTorch has channels first, so that kernels of convolutions are `[O, I, h, w]` in place of `[h, w, I, O]`, and flattened
feature maps have all pixels of the first channel before those of the second. Its dense kernels are `[O, I]`.
"""

import copy
import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import unflatten_dict
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from fedjax_bal.jax_setup import package_settings, start_jax
from fedjax_bal.models.derivatives import differentiable
from fedjax_bal.models.weights import named_leaves, with_weights
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
_TRANSPOSED = -2
_ORDER = "give the layers in the order in which they compute"
_UNCHECKED = "its state_dict() is converted without this check"
_ROWS = 4
_TOLERANCE = 1e-4
"""The largest difference of results due to rounding, relative to the largest result."""


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

    @property
    def kind(self) -> str:
        """Its name within the layer, such as "kernel"."""
        return self.name.rpartition(".")[2]

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


def layout_of(name: str, torch_name: str, torch_shape: tuple[int, ...]) -> _Leaf:
    """Describes an array of a model from a PyTorch module, from its names here and there."""
    if name.endswith(".kernel") and torch_name.endswith("weight"):
        outputs, inputs, *window = torch_shape
        return _leaf(name, (*window, inputs, outputs), 0)
    return _Leaf(name, torch_shape, torch_shape, tuple(range(len(torch_shape))), torch_shape)


class _Layer(NamedTuple):
    """A layer: its name, and its arrays by their names in PyTorch."""

    name: str
    leaves: dict[str, _Leaf]


class _Layers(NamedTuple):
    """What is known of a model's layers: those with arrays in the order in which they compute, and epsilons.

    `epsilons` are the numbers that normalisation layers add to variances, in the order in which they compute.
    """

    layers: tuple[_Layer, ...]
    epsilons: tuple[float, ...]


@package_settings()
def weights_from_torch(model: Model, state: Any) -> Variables:
    """Converts the weights of a PyTorch network to those of a model with the same layers.

    For a model from `from_torch`, arrays are matched by name. Otherwise for networks whose layers follow one another:
    dense layers, convolutions, embeddings, and batch, group and layer normalisation, with anything between them that
    has no weights. The first layer of one is the first layer of the other, and so on; names don't matter.

    Given the network itself, its results in evaluation on random inputs are compared with the model's, and so are the
    epsilons of normalisation layers, because a state dict shows none of this: another activation, padding, pooling,
    kind of normalisation or epsilon (1e-5 in PyTorch, 1e-6 in Flax's layer and group normalisation). The rate at which
    running statistics move matters in training only and isn't compared: PyTorch's `momentum=0.1` is 0.9 in Flax, whose
    default is 0.99.

    Args:
        model: the model, from `build`, `from_linen`, `from_nnx` or `from_torch`.
        state: the network, a `torch.nn.Module`; or its `state_dict()`: its tensors, or NumPy arrays, in the order in
            which its layers compute. A file of safetensors has them in the alphabet's order, so that layer 10 comes
            before layer 2. Without the last layer's, the classifier is left out of the result, so that `with_weights`
            has it drawn. Numbers of fewer bits become float32.

    Returns:
        The variables, for `with_weights` or `simulate(..., variables=...)`; flattened feature maps count as flattened
        with their channels first, as PyTorch does.

    Raises:
        ValueError: the layers aren't those of the model, in number, kind or shape; the model has a transposed
            convolution; an array is sparse, quantised, without numbers or not finite; or the network gives other
            results than the model.

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
    arrays = _state_of(model, state, "state")
    leaves = {
        leaf.name: leaf.from_torch(_numbers(arrays[name], f"state: received {name}"))
        for name, leaf in _matched(model, arrays, "state")
    }
    nested = unflatten_dict({name: np.array(array, np.float32) for name, array in leaves.items()}, sep=".")
    variables = Variables(nested["params"], nested.get("stats", {}))
    if arrays is not state:
        _check_results(model, variables, state, "state")
    return variables


@package_settings()
def weights_to_torch(model: Model, variables: Variables, like: Any, *, federation: Any) -> dict[str, np.ndarray]:
    """Converts a model's weights to those of a PyTorch network with the same layers; undoes `weights_from_torch`.

    The model was trained on normalised inputs, and so the result also has `mean` and `std` of the inputs as they were
    before: bytes from 0 to 255 if the federation has bytes. They aren't weights of the network, and `load_state_dict`
    refuses them until they are taken out; the network's input is `(inputs - mean) / std`.

    Args:
        model: the model.
        variables: its weights.
        like: the network, a `torch.nn.Module`, whose results with these weights are compared with the model's, as in
            `weights_from_torch`; or its `state_dict()`, which only has names and shapes.
        federation: the federation that the model was trained on, or `load_run(...).trained().inputs`; None for weights
            that come without the normalisation of their inputs.

    Returns:
        Arrays by name, for `load_state_dict` once they are tensors; what isn't a weight is that of `like`. `mean` and
        `std` have the shape `[K, 1, 1]` for images, whose channels PyTorch has first, otherwise `[K]`; token ids have
        none.

    Raises:
        ValueError: the layers aren't those of the model, in number, kind or shape; or the network gives other results
            than the model, as with other values in layers that weren't trained.

    Example:
        >>> from fedjax_bal import data
        >>> from fedjax_bal.models import build
        >>> model = build("mlp", 2, (4,), hidden=[3])
        >>> state = {"0.weight": np.ones((3, 4)), "0.bias": np.zeros(3), "2.weight": np.ones((2, 3)), "2.bias": [0, 1]}
        >>> rows = np.zeros((2, 4), np.float32)
        >>> federation = data.federate(rows, np.array([0, 1]), [[0, 1]], num_classes=2, mean=5.0, std=2.0)
        >>> back = weights_to_torch(model, weights_from_torch(model, state), state, federation=federation)
        >>> back["2.weight"].shape, back["mean"], back["std"]
        ((2, 3), array([5., 5., 5., 5.], dtype=float32), array([2., 2., 2., 2.], dtype=float32))
    """
    arrays = _state_of(model, like, "like")
    ours = named_leaves(variables)
    leaves = dict(_matched(model, arrays, "like"))
    converted = {name: leaf.to_torch(np.asarray(ours[leaf.name])) for name, leaf in leaves.items()}
    given = {name: converted[name] if name in converted else _on_host(value) for name, value in arrays.items()}
    state = {name: np.array(array, order="C") for name, array in given.items()}
    if arrays is not like:
        torch = importlib.import_module("torch")
        network = copy.deepcopy(like)
        network.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        with_head = any(leaf.name.startswith("params.head.") for leaf in leaves.values())
        known = named_leaves(jax.eval_shape(model.init, jax.random.key(0)))
        names = [name for name in known if with_head or not name.startswith("params.head.")]
        nested = unflatten_dict({name: ours[name] for name in names}, sep=".")
        _check_results(model, Variables(nested["params"], nested.get("stats", {})), network, "like")
    return state | _normalisation(model, federation)


def _normalisation(model: Model, federation: Any) -> dict[str, np.ndarray]:
    """Returns mean and deviation of inputs that aren't normalised, in PyTorch's layout."""
    if federation is None or np.dtype(model.input_dtype).kind == "i":
        return {}
    stored = federation.images.dtype if hasattr(federation, "images") else federation.dtype
    scale = 255 if np.dtype(stored) == np.uint8 else 1
    shape = (-1, 1, 1) if len(model.input_shape) == 3 else (-1,)
    constants = {"mean": federation.mean, "std": federation.std}
    return {name: np.float32(scale) * np.asarray(each, np.float32).reshape(shape) for name, each in constants.items()}


def _state_of(model: Model, network: Any, argument: str) -> Mapping[str, Any]:
    """Returns the arrays of a network, or those given; refuses a network with other epsilons than the model's."""
    if isinstance(network, Mapping):
        return network
    if not (hasattr(network, "state_dict") and hasattr(network, "named_modules")):
        raise ValueError(
            f"{argument}: received {type(network).__name__}, must be a torch.nn.Module or its state_dict(), a mapping "
            "of names to tensors or arrays"
        )
    if model.torch_names:
        return network.state_dict()
    layers, wanted = _layers(model)
    norms = [layer for layer in layers if not {"kernel", "embedding"} & {leaf.kind for leaf in layer.leaves.values()}]
    names = [layer.name for layer in norms] if len(norms) == len(wanted) else [model.name] * len(wanted)
    received = {
        f"{name} ({type(module).__name__})": module.eps
        for name, module in network.named_modules()
        if hasattr(module, "eps") and "Norm" in type(module).__name__
    }
    if len(received) != len(wanted):
        raise ValueError(
            f"{argument}: received {len(received)} normalisation layers ({', '.join(received) or 'none'}), must be the "
            f"{len(wanted)} of the model {model.name} ({', '.join(names) or 'none'}); {_UNCHECKED}"
        )
    for (theirs, given), ours, epsilon in zip(received.items(), names, wanted, strict=True):
        added = np.finfo(np.float32).eps if given is None else given  # None is RMSNorm's default
        if not np.isclose(added, epsilon, rtol=1e-3, atol=0):
            raise ValueError(
                f"{argument}: received eps={added:g} of {theirs}, must be {epsilon:g}, as {ours} of the model "
                f"{model.name} has: give the layers of both the same epsilon"
            )
    return network.state_dict()


def _on_host(value: Any) -> Any:
    """Moves a tensor of PyTorch to the host, as an array; others stay."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _numbers(value: Any, received: str) -> np.ndarray:
    """Returns a tensor or array as finite float32; `received` begins the message for others."""
    kind = f"a tensor of {value.dtype}, {value.layout}" if hasattr(value, "layout") else f"{type(value).__name__}"
    try:
        if getattr(value, "is_quantized", False) or "complex" in str(getattr(value, "dtype", "")):
            raise TypeError("its numbers are quantised or complex")
        # In PyTorch, as NumPy lacks some of its types of fewer bits.
        array = np.asarray(_on_host(value.float() if hasattr(value, "detach") else value), np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{received}, {kind}, must be dense numbers: convert it in PyTorch, such as by to_dense() or dequantize() "
            f"({str(error).splitlines()[0]})"
        ) from error
    if not np.isfinite(array).all():
        raise ValueError(f"{received} with numbers that aren't finite, must be finite: give weights from before that")
    return array


def _check_results(model: Model, variables: Variables, network: Any, argument: str) -> None:
    """Refuses a network whose results on random inputs aren't the model's."""
    if problem := difference(model, variables, network):
        raise ValueError(
            f"{argument}: received a network that has the weights of the model {model.name} but {problem}; must give "
            "the model's results: compare activations, padding, pooling, kinds of normalisation and weights that "
            f"aren't trained; {_UNCHECKED}"
        )


def difference(model: Model, variables: Variables, network: Any) -> str:
    """Describes how a network's results on random inputs differ from the model's; empty if they don't."""
    rng = np.random.default_rng(0)
    shape = (_ROWS, *model.input_shape)
    if np.dtype(model.input_dtype).kind == "i":
        inputs = rng.integers(1, model.vocabulary or 2, shape)
    else:
        inputs = rng.standard_normal(shape, np.float32)
    start = with_weights(model, variables).init(jax.random.key(0))
    with jax.default_matmul_precision("highest"):
        outputs = jax.jit(lambda *given: model.apply(*given, train=False)[0])(start, inputs)
    wanted = np.asarray(outputs.logits if "head" in variables.params else outputs.features)
    # Images have their channels first in PyTorch; other inputs of several axes may, too.
    layouts = [np.moveaxis(inputs, -1, 1), inputs] if inputs.ndim > 2 else [inputs]
    if model.torch_names:
        layouts = layouts[:1] if inputs.ndim == 4 else layouts[-1:]
    problems = []
    for layout in layouts:
        try:
            results = _run(network, layout)
        except Exception as error:  # anything that a user's network raises
            problems.append(f"fails with inputs of shape {list(layout.shape)}: {str(error).splitlines()[0]}")
            continue
        if results.shape != wanted.shape:
            problems.append(f"returns results of shape {list(results.shape)}, the model {list(wanted.shape)}")
            continue
        if model.torch_names:  # without the network's log_softmax, if it ends in one
            results, wanted = (np.asarray(jax.nn.log_softmax(logits)) for logits in (results, wanted))
        gap, largest = np.abs(results - wanted).max(), np.abs(wanted).max()
        if gap <= _TOLERANCE * largest:
            return ""
        problems.append(f"gives results on random inputs that differ by {gap:.2g} of {largest:.2g}")
    return problems[0]


def _run(network: Any, inputs: np.ndarray) -> np.ndarray:
    """Returns the results of a PyTorch network in evaluation, in float32 on the CPU; the network stays as it is."""
    torch = importlib.import_module("torch")
    with torch.no_grad():
        # A copy in C's order, without the strides that moved axes have: a network with `view` may refuse those.
        result = copy.deepcopy(network).float().cpu().eval()(torch.from_numpy(inputs.copy()))
    return result.numpy()


def _matched(model: Model, state: Mapping[str, Any], argument: str) -> Iterator[tuple[str, _Leaf]]:
    """Yields the names of a PyTorch network's arrays, each with the model's array; refuses what doesn't fit."""
    if model.torch_names:
        yield from _matched_by_name(model, state, argument)
        return
    layers, _ = _layers(model)
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


def _matched_by_name(model: Model, state: Mapping[str, Any], argument: str) -> Iterator[tuple[str, _Leaf]]:
    """Yields the same for a model from a PyTorch module, whose arrays have its names."""
    ours = named_leaves(jax.eval_shape(model.init, jax.random.key(0)))
    for name, torch_name in model.torch_names:
        if name not in ours:
            continue
        shape = np.shape(state[torch_name]) if torch_name in state else None
        leaf = None if shape is None else layout_of(name, torch_name, shape)
        if leaf is None or leaf.shape != ours[name].shape:
            received = "nothing" if shape is None else list(shape)
            raise ValueError(
                f"{argument}: received {received} for {torch_name}, where {name} of the model {model.name} has "
                f"{list(ours[name].shape)}: give the module that the model was made of, or one with the same layers"
            )
        yield torch_name, leaf


@functools.lru_cache(maxsize=64)
def _layers(model: Model) -> _Layers:
    """Finds the layers of a model."""
    start_jax()
    variables = jax.eval_shape(model.init, jax.random.key(0))
    images = jax.ShapeDtypeStruct((1, *model.input_shape), model.input_dtype)
    # With JAX's own derivatives no layer hides its arrays in a function with a derivative of its own; and jax forgets
    # from where a jitted function that it inlines calls a primitive, which `_is_transposed` asks.
    plain = differentiable(model._replace(apply=inspect.unwrap(model.apply)))
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
        if channels == _TRANSPOSED:
            raise ValueError(
                f"model {model.name}: received the transposed convolution {layer}, must have none: its kernel in "
                "PyTorch has another order, which shapes don't show: convert the weights by hand"
            )
        if kind == "kernel" and channels == _UNCLEAR:
            raise ValueError(
                f"model {model.name}: received inputs of {layer} that are flattened maps, but transposed or in several "
                "pieces, so their order in PyTorch isn't clear: convert the weights by hand"
            )
        layers.setdefault(layer, {})[_NAMES[kind]] = _leaf(name, shapes[name], channels)
    return _Layers(
        tuple(_Layer(layer, leaves) for layer, leaves in layers.items()), tuple(_epsilons(program.jaxpr, {}))
    )


def _epsilons(program: Jaxpr, sums: dict[Var, float]) -> Iterator[float]:
    """Yields the small numbers that are added before a root is taken; `sums` collects the sums."""
    for equation in program.eqns:
        kind = equation.primitive.name
        for operand in equation.invars:
            if kind == "add" and isinstance(operand, Literal) and 0 < operand.val < 1:
                sums[equation.outvars[0]] = float(operand.val)
            if kind in ("sqrt", "rsqrt") and isinstance(operand, Var) and operand in sums:
                yield sums[operand]
        for value in equation.params.values():
            body = value.jaxpr if isinstance(value, ClosedJaxpr) else value
            if isinstance(body, Jaxpr):
                yield from _epsilons(body, sums)


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
        kind = equation.primitive.name
        multiplies = kind == "dot_general"
        for name in filter(None, inputs):
            # The pixels of a flipped kernel are in another order, too.
            if kind == "rev" or (kind == "conv_general_dilated" and _is_transposed(equation)):
                used[name] = _TRANSPOSED
            used[name] = used.get(name, 0) or (multiplies and next(filter(None, given), 0))
        maps |= zip(equation.outvars, results, strict=True)
        # A kernel that was cast, scaled or flipped is still that kernel, and so is a transposed one of a convolution.
        for operand, name in () if multiplies else zip(operands, inputs, strict=True):
            if name:
                turned = kind == "transpose" and len(_shape(operand)) > 2
                named |= {result: name for result in equation.outvars if turned or _shape(result) == _shape(operand)}
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


def _is_transposed(equation: JaxprEqn) -> bool:
    """Tells whether a convolution is a transposed one: with stride 1 only its origin in jax shows it."""
    frames = equation.source_info.traceback.frames if equation.source_info.traceback else ()
    dilated = any(step > 1 for step in equation.params["lhs_dilation"])
    return dilated or any(frame.function_name == jax.lax.conv_transpose.__name__ for frame in frames)


def _shape(operand: Any) -> tuple[int, ...]:
    return operand.aval.shape
