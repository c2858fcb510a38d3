"""Models from users' PyTorch modules, whose graphs run in JAX."""

import contextlib
import copy
import importlib
import io
import logging
import os
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from fedjax_bal.jax_setup import start_jax
from fedjax_bal.models import adapters, aten
from fedjax_bal.models import convolution as convolutions
from fedjax_bal.models.adapters import Usage
from fedjax_bal.models.pytorch import difference, layout_of
from fedjax_bal.models.weights import named_leaves
from fedjax_bal.types import Array, Key, Model, Outputs, PyTree, Variables
from fedjax_bal.validate import one_of, whole_number

_STATISTICS = ("norm.mean", "norm.var")
_EXAMPLES = 3  # rows of the batch with which a module is traced
_REMEDY = "write the network in flax, models.from_linen; 'fedjax-bal guide own_network' lists what is known"
_LAYER = {"weight": "kernel", "bias": "bias"}
_NORM = {"weight": "norm.scale", "bias": "norm.bias"}
_BATCH_NORM = _NORM | dict(zip(("running_mean", "running_var"), _STATISTICS, strict=True))
_KINDS: Mapping[str, Mapping[str, str]] = {
    "conv1d": _LAYER,
    "conv2d": _LAYER,
    "linear": _LAYER,
    "embedding": {"weight": "embedding"},
    "group_norm": _NORM,
    "instance_norm": _NORM,
    "layer_norm": _NORM,
    **{name.partition(".")[0]: _BATCH_NORM for name in aten.BATCH_NORMS},
}
"""The names of a layer's arrays here, by the operation that uses them and their names in PyTorch."""


def from_torch(
    module: Any,
    input_shape: Sequence[int],
    num_classes: int,
    *,
    init: Literal["module", "fresh"] = "module",
    convolution: str = "auto",
    dtype: Any = None,
) -> Model:
    """Makes a model from a PyTorch module, which isn't modified.

    The module's `forward` takes a batch and returns logits `[B, C]`. Its graph in training and in evaluation, as
    `torch.export` finds it, runs in JAX: with this package's convolutions, pooling and batch normalisation, which are
    fast for many clients at a time. PyTorch itself takes no part in training. The model then does what the package's
    own do:

    - Images are `[B, H, W, K]` here, and the module receives them with their channels first. Weights have this
      package's layouts; `weights_to_torch(model, variables, module, federation=...)` makes the state dict of them,
      together with mean and standard deviation of the inputs.
    - Batch normalisation sees only real rows, and its running statistics are the model's, averaged by the server.
    - Dropout draws from the client's key.
    - The classifier is the `torch.nn.Linear` whose result the module returns, `params["head"]`; features are its input.
      A `log_softmax` of its result is left out, because all losses here take logits.
    - Parameters with `requires_grad=False` stay as they are. Tied parameters, and those of a layer that is used under
      two names, are one array, with the first of their names.

    The module's results in evaluation on random inputs are compared with the model's.

    Args:
        module: the module, for instance `Net()`.
        input_shape: the shape of one input, for images `(H, W, K)`; other inputs have the module's own shape.
        num_classes: C.
        init: "module" starts every run from the module's own weights, which may be pretrained, whatever its seed.
            "fresh" shuffles the numbers of each array with the seed: another draw of weights that were drawn
            independently of each other, as PyTorch's layers draw them.
        convolution: as in `fedjax_bal.models.build`.
        dtype: type that a batch is converted to, `int` for token ids; by default it stays as it is.

    Returns:
        The model; `fedjax_bal.check_model` checks it.

    Raises:
        ValueError: the module isn't one, isn't initialised, fails with such inputs, has control flow that depends on
            numbers, an operation that isn't known here, or statistics of its own; or it doesn't return the result of a
            linear layer with `num_classes` outputs.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))  # doctest: +SKIP
        >>> model = from_torch(net, (2, 2, 3), 3)  # doctest: +SKIP
        >>> outputs, _ = model.apply(model.init(key), np.zeros((2, 2, 2, 3)), train=False)  # doctest: +SKIP
        >>> outputs.logits.shape, outputs.features.shape  # doctest: +SKIP
        ((2, 3), (2, 12))
    """
    start_jax()
    if not adapters.is_of(type(module), "torch") or not hasattr(module, "named_parameters"):
        raise ValueError(f"module: received {module!r}, must be a torch.nn.Module, for instance Net()")
    one_of("init", init, ("module", "fresh"))
    name = type(module).__name__
    shape = adapters.check_shape(input_shape)
    convolve = convolutions.of_name(convolution)
    usage = Usage(name, shape, whole_number("num_classes", num_classes), {True: {}, False: {}}, convolve, dtype)
    network = _TorchNetwork(_copy_of(module, name), usage, fresh=init == "fresh")
    model = adapters.assemble_model(usage, network.init, network.forward, network.classify)
    model = model._replace(torch_names=tuple((ours, theirs) for theirs, ours in network.names.items()))
    adapters.check_features(usage, jax.eval_shape(network.check, network.start))
    if problem := difference(model, network.start, module):
        raise ValueError(f"{name}: {problem}, so it isn't translated correctly: {_REMEDY}")
    return model


def _copy_of(module: Any, name: str) -> Any:
    """Returns a copy of a module on the CPU, in 32 bits; refuses one that lacks weights or shares statistics."""
    if any(getattr(layer, "has_uninitialized_params", bool)() for layer in module.modules()):
        raise ValueError(
            f"{name}: received lazy layers without weights, must have them: call the module on a batch first"
        )
    once = {buffer for buffer, _ in module.named_buffers()}
    for buffer, _ in module.named_buffers(remove_duplicate=False):
        if buffer.endswith("running_mean") and buffer not in once:
            raise ValueError(
                f"{name}: received batch normalisation under two names, the second with {buffer}, must have one: give "
                "each place a layer of its own"
            )
    return copy.deepcopy(module).float().cpu()


class _Program(NamedTuple):
    """The graph of a module in training or in evaluation.

    Attributes:
        nodes: the operations, in the order in which they run.
        sources: the names of parameters and buffers, by the name of the node that stands for them.
        constants: tensors that aren't part of the state dict, in the same way.
        classifier: the node that computes the logits.
        changed: the node with the new value of each buffer that the module changes.
    """

    nodes: tuple[Any, ...]
    sources: dict[str, str]
    constants: dict[str, np.ndarray]
    classifier: Any
    changed: dict[str, Any]


class _TorchNetwork:
    """The functions of a model that runs a module's graphs."""

    def __init__(self, module: Any, usage: Usage, fresh: bool) -> None:
        self._usage = usage
        self._fresh = fresh
        self._programs = {train: _trace(module, usage, train) for train in (False, True)}
        tensors = _tensors(module)
        state = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
        trained = {
            name for name, parameter in module.named_parameters(remove_duplicate=False) if parameter.requires_grad
        }
        # Tied tensors are one array here, with the first of their names.
        firsts = {id(tensor): name for name, tensor in reversed(tensors.items())}
        first = {name: firsts[id(tensor)] for name, tensor in tensors.items()}
        head = {first[name]: ours for name, ours in self._classifier_arrays(trained).items()}
        kinds = {first[name]: kind for program in self._programs.values() for name, kind in _kinds(program)}
        self.names = {
            name: _our_name(first[name], kinds[first[name]], head)
            for name in sorted(tensors)
            if first[name] in kinds and (name in trained or kinds[first[name]] in _STATISTICS)
        }
        self._check_buffers()
        self._layouts = {name: layout_of(ours, name, state[name].shape) for name, ours in self.names.items()}
        self._constants = {name: jnp.asarray(_small(array)) for name, array in state.items() if name not in self.names}
        self.start = _as_variables(
            {self.names[name]: each.from_torch(state[name]) for name, each in self._layouts.items()}
        )

    def init(self, key: Key) -> Variables:
        """Returns the initial variables."""
        if not self._fresh:
            return jax.tree.map(jnp.asarray, self.start)
        leaves, structure = jax.tree.flatten(self.start.params)
        keys = jax.random.split(key, len(leaves))
        shuffled = [
            jax.random.permutation(leaf_key, leaf.ravel()).reshape(leaf.shape)
            for leaf_key, leaf in zip(keys, leaves, strict=True)
        ]
        return Variables(jax.tree.unflatten(structure, shuffled), jax.tree.map(jnp.asarray, self.start.stats))

    def forward(
        self, variables: Variables, images: Array, train: bool, key: Key | None, real: Array | None
    ) -> tuple[Outputs, PyTree]:
        """Computes outputs and running statistics."""
        program = self._programs[train]
        ours = named_leaves(variables)
        arrays = self._constants | {name: each.to_torch(ours[each.name]) for name, each in self._layouts.items()}
        convolve: Any = self._usage.convolve
        forward = aten.ForwardPass(convolve, key, real)
        values: dict[Any, Any] = {}
        moments: dict[str, tuple[Array, Array]] = {}
        for node in program.nodes:
            if node.op == "placeholder":
                source = program.sources.get(node.name)
                given = program.constants.get(node.name) if source is None else arrays[source]
                values[node] = self._usage.cast(images) if given is None else aten.channels_last(given)
                continue
            arguments = _arguments(node, values)
            values[node] = _run(forward, node, arguments, self._usage.name)
            if _operation(node) in aten.BATCH_NORMS:
                moments[program.sources[node.args[3].name]] = aten.moments_of(forward, arguments)
        after = ours | {self.names[name]: values[node] for name, node in program.changed.items() if name in self.names}
        inputs, *_ = program.classifier.args
        outputs = Outputs(values[program.classifier], values[inputs], (), self._norm_inputs(moments, ours))
        return outputs, _as_variables(after).stats

    def classify(self, params: PyTree, features: Array) -> Array:
        """Computes the logits of features."""
        head = params[adapters.HEAD]
        return aten.linear(features, head["kernel"].T, head.get("bias"))

    def check(self, variables: Variables) -> Array:
        """Traces the network in both modes; returns the features."""
        images = self._usage.example
        adapters.check_logits(self._usage, self.forward(variables, images, True, jax.random.key(0), None)[0].logits)
        outputs, _ = self.forward(variables, images, False, None, None)
        adapters.check_logits(self._usage, outputs.logits)
        return outputs.features

    def _norm_inputs(self, moments: Mapping[str, Any], ours: Mapping[str, Array]) -> tuple[tuple[Array, Array], ...]:
        """Returns mean and variance of each batch normalisation's inputs; the running ones of one that didn't run."""
        means = {name: mean for name, mean in self.names.items() if mean.startswith("stats.") and mean.endswith("mean")}
        pairs = {
            mean: (moments.get(name) or (ours[mean], ours[mean.removesuffix("mean") + "var"]),)
            for name, mean in means.items()
        }
        return adapters.moment_pairs(unflatten_dict(pairs, sep="."))

    def _classifier_arrays(self, trained: set[str]) -> dict[str, str]:
        """Returns the names here of the classifier's arrays, by their names in PyTorch."""
        found = []
        for program in self._programs.values():
            arguments = zip(("kernel", "bias"), program.classifier.args[1:], strict=False)
            found.append({program.sources.get(node.name): f"params.head.{kind}" for kind, node in arguments if node})
        if found[0] != found[1] or not found[0].keys() <= trained:
            raise ValueError(
                f"{self._usage.name}: received the logits {_where(self._programs[False].classifier)}, whose weights "
                "are computed, frozen or others in training, must be those of a torch.nn.Linear with parameters"
            )
        return found[0]

    def _check_buffers(self) -> None:
        """Refuses modules that change buffers other than those of batch normalisation."""
        for program in self._programs.values():
            for node in program.nodes:
                if _operation(node) in aten.BATCH_NORMS and node.args[3].name not in program.sources:
                    raise ValueError(
                        f"{self._usage.name}: received batch normalisation that runs twice {_where(node)}, must run "
                        "once: give each place a layer of its own"
                    )
            for name in program.changed:
                if name not in self.names and not name.endswith("num_batches_tracked"):
                    raise ValueError(
                        f"{self._usage.name}: received the buffer {name}, which forward changes, must change those of "
                        f"batch normalisation only, which are averaged over clients: {_REMEDY}"
                    )


def _as_variables(arrays: Mapping[str, Any]) -> Variables:
    """Makes variables from arrays by name."""
    nested = unflatten_dict(dict(arrays), sep=".")
    return Variables(nested["params"], nested.get("stats", {}))


def _trace(module: Any, usage: Usage, train: bool) -> _Program:
    """Finds the graph of a module in training or in evaluation."""
    torch: Any = importlib.import_module("torch")
    export: Any = importlib.import_module("torch.export")
    integers = usage.dtype is not None and jnp.issubdtype(usage.dtype, jnp.integer)
    shape = usage.input_shape
    example = torch.zeros(
        _EXAMPLES, *(shape[-1:] + shape[:-1] if len(shape) == 3 else shape), dtype=torch.int64 if integers else None
    )
    kept = {
        operation: rule
        for operation, rule in export.default_decompositions().items()
        if not aten.knows(_name_of(operation))
    }
    module.train(train)
    try:
        with _quiet():
            batch = ({0: export.Dim.DYNAMIC},)
            exported = export.export(module, (example,), dynamic_shapes=batch, strict=False)
            # Without operations in place, and without composite ones that aren't known here.
            exported = exported.run_decompositions(kept)
    except Exception as error:  # anything that a user's module or the tracer raises
        raise ValueError(_not_traced(error, usage.name, list(example.shape))) from error
    signature = exported.graph_signature
    kinds = {spec.arg.name: (spec.kind.name, spec.target) for spec in signature.input_specs}
    stored = exported.state_dict | exported.constants
    return _Program(
        nodes=tuple(node for node in exported.graph.nodes if node.op != "output"),
        sources={name: target for name, (kind, target) in kinds.items() if kind in ("PARAMETER", "BUFFER")},
        constants={
            name: _small(stored[target].numpy()) for name, (kind, target) in kinds.items() if kind == "CONSTANT_TENSOR"
        },
        **_results(exported, usage.name),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps PyTorch from warning about itself, and from printing what its exceptions say as well."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _results(exported: Any, name: str) -> dict[str, Any]:
    """Finds the classifier, and the nodes with the new values of buffers."""
    (results,) = next(node for node in exported.graph.nodes if node.op == "output").args
    specs = list(zip(exported.graph_signature.output_specs, results, strict=True))
    returned = [node for spec, node in specs if spec.kind.name == "USER_OUTPUT"]
    if len(returned) != 1 or not hasattr(returned[0], "op") or not exported.call_spec.out_spec.is_leaf():
        raise ValueError(f"{name}: received a forward that returns a tuple or a dict, must return the logits alone")
    (logits,) = returned
    if _operation(logits) in ("log_softmax.int", "_log_softmax.default") and logits.args[1] in (1, -1):
        logits = logits.args[0]
    if _operation(logits) != "linear.default":
        raise ValueError(
            f"{name}: received a result of {_operation(logits)} {_where(logits)}, must be that of a torch.nn.Linear "
            "that computes the logits: leave out what follows it, as all losses take logits"
        )
    changed = {spec.target: node for spec, node in specs if spec.kind.name == "BUFFER_MUTATION"}
    return {"classifier": logits, "changed": changed}


def _not_traced(error: Exception, name: str, shape: list[int]) -> str:
    """Describes an error of a module that is traced."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    where = f" in {own[-1].filename}, line {own[-1].lineno}" if own else ""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    if "GuardOnDataDependent" in type(error).__name__:
        return (
            f"{name}: received a forward{where} that needs a batch's numbers in Python, as if and float() do, or batch "
            f"normalisation with momentum=None, must compute with tensors alone, such as by torch.where: {_REMEDY}"
        )
    if "Constraints violated" in text:
        text = "its forward takes batches of one size only, must take any, as view(len(x), -1) does"
    return (
        f"{name}: fails with inputs of shape {shape}{where}: {text} (input_shape is (height, width, channels) for "
        f"images, whose channels are first here; token ids need dtype=int; forward takes a batch of {shape[0]} alone)"
    )


def _is_library(filename: str) -> bool:
    """Tells whether a line is PyTorch's, Python's own or this package's, not the user's."""
    libraries = (*importlib.import_module("torch").__path__, os.path.dirname(os.__file__), os.path.dirname(__file__))
    return filename.startswith((*libraries, "<"))


def _tensors(module: Any) -> dict[str, Any]:
    """Returns parameters and buffers by name, those that the state dict leaves out and second names included."""
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))


def _small(array: np.ndarray) -> np.ndarray:
    """Converts numbers of 64 bits to 32."""
    return array.astype(array.dtype.name.replace("64", "32")) if array.dtype.itemsize == 8 else array


def _kinds(program: _Program) -> Iterator[tuple[str, str]]:
    """Yields the name of each array that a graph uses with that which it has within its layer here."""
    for node in program.nodes:
        if node.op == "placeholder" and node.name in program.sources and node.users:
            name = program.sources[node.name]
            user = next(iter(node.users))
            last = name.rpartition(".")[2]
            yield name, _KINDS.get(_operation(user).partition(".")[0], {}).get(last, last)


def _our_name(name: str, kind: str, head: Mapping[str, str]) -> str:
    """Returns the name of an array among the variables."""
    collection = "stats" if kind in _STATISTICS else "params"
    return head.get(name) or ".".join(filter(None, (collection, "body", name.rpartition(".")[0], kind)))


def _operation(node: Any) -> str:
    """Returns the name of a node's operation, such as "conv2d.default"; that of another node is its kind."""
    return _name_of(node.target) if node.op == "call_function" else node.op


def _name_of(operation: Any) -> str:
    return str(operation).removeprefix("aten.")


def _arguments(node: Any, values: Mapping[Any, Any]) -> list[Any]:
    """Returns the arguments of a node in the order of the operation's declaration, defaults included."""
    fx: Any = importlib.import_module("torch.fx.node")
    given, named = fx.map_arg((list(node.args), dict(node.kwargs)), values.__getitem__)
    if not hasattr(node.target, "_schema"):
        return list(given)
    declared = node.target._schema.arguments[len(given) :]
    return [*given, *(named.get(argument.name, argument.default_value) for argument in declared)]


def _run(forward: aten.ForwardPass, node: Any, arguments: list[Any], name: str) -> Any:
    """Computes a node's result."""
    if not hasattr(node.target, "_schema"):
        return node.target(*arguments)  # Python's own, on sizes and on tuples of results
    pointwise = any(tag.name == "pointwise" for tag in node.target.tags)
    try:
        return forward.run(_operation(node), arguments, pointwise)
    except aten.UnsupportedError as error:
        raise ValueError(f"{name}: received {error} {_where(node)}, which isn't known here: {_REMEDY}") from error


def _where(node: Any) -> str:
    """Describes the layer of a node, and the line in the user's code."""
    layers = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
    lines = re.findall(r'File "(.*?)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [f"in {file}, line {line}" for file, line in lines if not _is_library(file)]
    return ", ".join([f"of the layer {layer}" for layer in layers[-1:]] + own[-1:])
