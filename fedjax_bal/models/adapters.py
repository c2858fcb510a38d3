"""Models from users' networks: `from_linen`, and the checks and the assembly that it shares with `from_nnx`."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.errors import FlaxError, InvalidRngError

from fedjax_bal.jax_setup import in_package_settings, start_jax
from fedjax_bal.models import convolution as convolutions
from fedjax_bal.models.normalization import moments
from fedjax_bal.models.switches import SwitchError, linen_interceptor, read_switches
from fedjax_bal.models.weights import with_weights
from fedjax_bal.types import Array, Key, Model, Outputs, PyTree, Variables
from fedjax_bal.validate import suggestion, whole_number

HEAD = "head"
NO_KEY = "This model drops features in training: give apply a key, as in key=jax.random.key(0)."
NOISE = "draws random numbers in evaluation, must draw where a switch such as train is True only"
_NO_NAMES = (
    "none with a name: write a class for the network, whose classifier is an attribute (not an item of a list); a "
    "single layer goes into nn.Sequential([layer])"
)
_WRAPPERS = {"flax.linen": "from_linen", "flax.nnx": "from_nnx"}
_OF_PYTORCH = (
    "a module of PyTorch, which models.from_torch(module, input_shape, num_classes) makes a model of; "
    "'fedjax-bal guide own_network' shows how"
)
_RECORDED = ("classifier_input", "norm_inputs", "taps")

Forward = Callable[[Variables, Array, bool, Key | None, Array | None], tuple[Outputs, PyTree]]
"""From variables, inputs, `train`, `key` and `real` to outputs and running statistics."""


def check_is_model(model: Any) -> None:
    """Refuses a value that isn't a `Model`; for a module of Flax the message names the function that wraps it.

    Example:
        >>> import flax.linen as nn
        >>> check_is_model(nn.Dense(10))  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        ValueError: model: received Dense, a module of flax.linen, must be a fedjax_bal model: wrap it,
        models.from_linen(module, input_shape, num_classes)
    """
    if isinstance(model, Model):
        return
    refuse_torch("model", model)
    kind = model if isinstance(model, type) else type(model)
    library = next((name for name in _WRAPPERS if is_of(kind, name)), None)
    if library is None:
        raise ValueError(
            f"model: received {model!r}, must be a fedjax_bal model: models.build(name, num_classes, input_shape), or "
            "models.from_linen or models.from_nnx for your own network"
        )
    raise ValueError(
        f"model: received {kind.__name__}, a module of {library}, must be a fedjax_bal model: wrap it, "
        f"models.{_WRAPPERS[library]}(module, input_shape, num_classes)"
    )


def is_of(kind: type, library: str) -> bool:
    """Tells whether a class is one of a library, or derives from one."""
    return any(f"{base.__module__}.".startswith(f"{library}.") for base in kind.__mro__)


def refuse_torch(argument: str, network: Any) -> None:
    """Refuses a network of PyTorch, or its class."""
    kind = network if isinstance(network, type) else type(network)
    if is_of(kind, "torch"):
        raise ValueError(f"{argument}: received {kind.__name__}, {_OF_PYTORCH}")


def _jitted(init: Callable, apply: Callable) -> tuple[Any, Any]:
    """Jits a model's functions: called by themselves, each is one program; a larger program inlines them."""
    # Inlined, so that a call adds no function to a larger program.
    jitted_apply = jax.jit(in_package_settings(apply), inline=True, static_argnames="train")
    return jax.jit(in_package_settings(init), inline=True), jitted_apply


class Usage(NamedTuple):
    """The settings with which a user's network is called.

    Attributes:
        name: the name of its class.
        input_shape: the shape of one input.
        num_classes: C.
        modes: the additional arguments of a call in training (key True) and in evaluation (False).
        convolve: the convolution that replaces the network's; None keeps those.
        dtype: type that a batch is converted to; None keeps its type.
    """

    name: str
    input_shape: tuple[int, ...]
    num_classes: int
    modes: Mapping[bool, dict[str, Any]]
    convolve: Callable | None
    dtype: Any

    def cast(self, batch: Array) -> Array:
        """Converts a batch to the network's input type."""
        return batch if self.dtype is None else batch.astype(self.dtype)

    @property
    def example(self) -> Array:
        """A batch of one input."""
        return self.cast(jnp.zeros((1, *self.input_shape)))

    @contextlib.contextmanager
    def calling(self, train: bool) -> Iterator[None]:
        """Turns an error of the user's network into a `ValueError` that describes its inputs."""
        try:
            yield
        except SwitchError:
            raise
        except InvalidRngError as error:
            raise ValueError(NO_KEY if train else f"{self.name}: {NOISE}: {error}") from error
        except (FlaxError, NameError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self.name}: fails with inputs of shape {self.example.shape} and type {self.example.dtype}: {error} "
                "(the shape is input_shape's; token ids need dtype=int; a layer with an axis_name has to go without)"
            ) from error


def check_shape(input_shape: Any) -> tuple[int, ...]:
    """Returns the shape of one input as a tuple."""
    if not isinstance(input_shape, Iterable):
        raise ValueError(
            f"input_shape: received {input_shape!r}, must be a tuple: (height, width, channels) for images, or (F,)"
        )
    return tuple(whole_number("input_shape", side) for side in input_shape)


def usage_of(network: Callable, input_shape: Sequence[int], num_classes: int, convolution: str, dtype: Any) -> Usage:
    """Checks the arguments of `from_linen` or `from_nnx`, and returns the settings with which the module is called."""
    name = type(network).__name__
    classes = whole_number("num_classes", num_classes)
    shape = check_shape(input_shape)
    _, *others = inspect.signature(network.__call__).parameters.values()
    modes = read_switches(name, others)
    convolve = None if convolution == "plain" else convolutions.of_name(convolution)
    return Usage(name, shape, classes, modes, convolve, dtype)


def choose_head(name: str, wanted: str, submodules: Iterable[str], returning: str | None) -> str:
    """Chooses the classifier's name: the requested one or, by default, that of the submodule that returns logits."""
    names = sorted(submodules)
    chosen = None
    if wanted in names:
        chosen = wanted
    elif wanted == HEAD:
        chosen = returning
    if chosen is None and wanted == HEAD and names:
        raise ValueError(
            f"{name}: received logits that no submodule returns, as the network changes them after its last layer "
            "(by softmax or scaling, for instance), must return the last layer's result: leave that out; if only their "
            f"type or shape changes, name the layer, head=...; submodules: {', '.join(names)}"
        )
    if chosen is None or (chosen != HEAD and HEAD in names):
        near = suggestion(wanted, names)
        hint = f"; {near}" if near and chosen is None else ""
        raise ValueError(
            f"{name}: received head={wanted!r}, must be the name of the submodule that computes the logits from the "
            f"features, the last layer of the network; submodules: {', '.join(names) or _NO_NAMES}{hint}"
        )
    return chosen


def check_classifier(name: str, head: str, stats: Mapping[str, PyTree]) -> None:
    """Refuses a classifier with running statistics, because `Model.head` takes only parameters."""
    if head in stats:
        raise ValueError(
            f"{name}: received a classifier {head!r} with batch normalisation, must be without: name the layer after "
            "that, head=..."
        )


def check_logits(usage: Usage, logits: Any) -> None:
    """Refuses a result of the network that isn't one row of logits for one input."""
    shape = 1, usage.num_classes
    if not hasattr(logits, "shape") or logits.shape != shape:
        received = f"an array of shape {logits.shape}" if hasattr(logits, "shape") else f"a {type(logits).__name__}"
        raise ValueError(
            f"{usage.name}: received {received} for one input, must return logits of shape {shape} alone, one for each "
            "of num_classes; features are taken from the classifier's input"
        )


def check_features(usage: Usage, features: Any) -> None:
    """Refuses features that aren't one row for one input."""
    if len(features.shape) != 2:
        raise ValueError(
            f"{usage.name}: received features of shape {features.shape} for one input, must be (1, F): flatten or "
            "average them before the classifier, or name the submodule after that, head=...; a classifier inside "
            "another submodule must be called by the network itself"
        )


def check_variables(name: str, variables: PyTree) -> None:
    """Refuses parameters and statistics that aren't float32, the type in which the engine adds up updates."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(variables):
        if leaf.dtype != jnp.float32:
            leaf_name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(
                f"{name}: received {leaf_name} of type {leaf.dtype}, must be float32 (param_dtype); "
                "Execution(precision='bfloat16') computes with fewer bits"
            )


def rename_key(tree: Mapping[str, PyTree], old: str, new: str) -> dict[str, PyTree]:
    """Copies a dict, with one key renamed."""
    return {new if key == old else key: value for key, value in tree.items()}


def moment_pairs(recorded: PyTree) -> tuple[tuple[Array, Array], ...]:
    """Returns mean and variance of each layer, in the order of the tree; flax records each pair in a tuple of one."""
    return sum(jax.tree.leaves(recorded, is_leaf=lambda node: isinstance(node, tuple)), ())


def _counted_rows(inputs: Array, real: Array | None) -> Array | None:
    """Marks the real rows of a layer's input, which may have several rows for each row of the batch."""
    return None if real is None else jnp.repeat(real, inputs.shape[0] // real.shape[0])


def mask_of(inputs: Array, real: Array | None) -> Array | None:
    """Makes the mask for Flax's batch normalisation; it has all rows if none is real, as their mean would be NaN."""
    rows = _counted_rows(inputs, real)
    return None if rows is None else (rows | ~rows.any()).reshape(-1, *[1] * (inputs.ndim - 1))


def input_moments(inputs: Array, real: Array | None) -> tuple[Array, Array]:
    """Computes mean and variance of a normalisation's inputs `[B, ..., K]` over the real rows."""
    by_channel = inputs.reshape(inputs.shape[0], -1, 1, inputs.shape[-1])
    mean, var, _ = moments(by_channel, _counted_rows(inputs, real))
    return mean, var


def assemble_model(
    usage: Usage,
    init: Callable[[Key], Variables],
    forward: Forward,
    head: Callable[[PyTree, Array], Array],
    classifier: str = HEAD,
) -> Model:
    """Makes a model from the functions of a network."""

    def apply(
        variables: Variables, images: Array, *, train: bool, key: Key | None = None, real: Array | None = None
    ) -> tuple[Outputs, Variables]:
        outputs, stats = forward(variables, images, train, key, real)
        if not train:
            return outputs, variables
        if real is not None:
            # A batch without real rows was normalised with padding (see `mask_of`), so its statistics are dropped.
            stats = jax.tree.map(lambda new, old: jnp.where(real.any(), new, old), stats, variables.stats)
        return outputs, variables._replace(stats=stats)

    tokens = usage.dtype is not None and jnp.issubdtype(usage.dtype, jnp.integer)
    return Model(
        *_jitted(init, apply),
        in_package_settings(head),
        usage.name,
        usage.num_classes,
        usage.input_shape,
        input_dtype="int32" if tokens else "float32",
        classifier=classifier,
    )


def from_linen(
    module: nn.Module,
    input_shape: Sequence[int],
    num_classes: int,
    head: str = HEAD,
    *,
    convolution: str = "auto",
    dtype: Any = None,
    variables: Any = None,
) -> Model:
    """Makes a model from a `flax.linen` module, which isn't modified.

    The module's `__call__` takes a batch `[B, ...]` and returns logits `[B, C]`. If it has batch normalisation or
    dropout, it takes a switch such as `train`, `is_training`, `deterministic`, `eval` or `use_running_average` too, and
    passes it on. Every layer must then be in training where the model is, and in evaluation otherwise: a switch that is
    fixed, unknown or not passed on is refused. (`backbone.apply(weights, images)`, a part of the network that has its
    weights already, may stay in evaluation.) The model then does what the package's own do:

    - `nn.BatchNorm` sees only real rows, its statistics are the model's, averaged by the server, and the moments of its
      inputs are `Outputs.norm_inputs`. The module need only pass `use_running_average=not train`.
    - Dropout, and any other layer that calls `make_rng`, draws from the client's key.
    - Two-dimensional `nn.Conv` uses the package's convolution, which is fast for many clients at a time, wherever it
      supports the arguments (no dilation, default precision).
    - The features are the input of the classifier, the submodule with the name `head`. If no submodule has this name,
      the classifier is the submodule whose result the module returns.
    - Feature maps that the module sows in the collection "taps" are `Outputs.taps`.

    Parameters and statistics are those of `module.init`, with the classifier's under "head", so that
    `module.apply({"params": variables.params, "batch_stats": variables.stats}, batch)` works if that is its name.

    Args:
        module: the module, for instance `Net()`.
        input_shape: the shape of one input, for images `(H, W, K)`.
        num_classes: C.
        head: name of the classifier.
        convolution: as in `fedjax_bal.models.build`; "plain" leaves the module's convolutions as they are, with second
            derivatives.
        dtype: type that a batch is converted to, `int` for token ids; by default it stays as it is.
        variables: pretrained weights, under the module's own names, in the form that `module.init` returns; without the
            classifier's, that is drawn. By default all are drawn. See `fedjax_bal.models.with_weights`.

    Returns:
        The model; `fedjax_bal.check_model` checks it.

    Raises:
        ValueError: the module needs other arguments, has a training switch that can't be set, doesn't return logits,
            has collections other than parameters and batch statistics, or has no recognisable classifier; or the
            weights aren't the module's.

    Example:
        >>> class Net(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, images, train=False):
        ...         maps = nn.Conv(8, (3, 3))(images)
        ...         maps = nn.relu(nn.BatchNorm(use_running_average=not train)(maps))
        ...         features = nn.Dropout(0.1, deterministic=not train)(maps.mean((1, 2)))
        ...         return nn.Dense(10)(features)
        >>> model = from_linen(Net(), (8, 8, 3), 10)
        >>> variables = model.init(jax.random.key(0))
        >>> outputs, _ = model.apply(variables, jnp.zeros((2, 8, 8, 3)), train=False)
        >>> outputs.logits.shape, outputs.features.shape, sorted(variables.params)
        ((2, 10), (2, 8), ['BatchNorm_0', 'Conv_0', 'head'])
    """
    start_jax()
    refuse_torch("module", module)
    if not isinstance(module, nn.Module):
        raise ValueError(f"module: received {module!r}, must be a flax.linen module, for instance Net()")
    network = _LinenNetwork(module, usage_of(module, input_shape, num_classes, convolution, dtype), head)
    model = assemble_model(network.usage, network.init, network.forward, network.classify, network.classifier.name)
    return model if variables is None else with_weights(model, variables)


class _LinenNetwork:
    """The functions of a model that calls a module; `wanted` is the requested name of the classifier."""

    def __init__(self, module: nn.Module, usage: Usage, wanted: str) -> None:
        self.module = module
        self.usage = usage
        self.classifier = _find_classifier(self, wanted)
        check_features(usage, self.classifier.features)
        self._check_training()

    def _check_training(self) -> None:
        """Refuses layers that training leaves in evaluation, such as dropout to which the network passes no switch."""
        key = jax.random.key(0)
        drawn = jax.eval_shape(self.init, key)
        with nn.intercept_methods(linen_interceptor(self.usage.name, True, self.module)):
            jax.eval_shape(lambda drawn: self.forward(drawn, self.usage.example, True, key, None), drawn)

    def draw(self, key: Key) -> dict[str, PyTree]:
        """Draws the initial collections."""
        settings = self.usage.modes[False]
        with self.usage.calling(False):
            return dict(self.module.init(key, self.usage.example, mutable=["params", "batch_stats"], **settings))

    def init(self, key: Key) -> Variables:
        """Draws the initial variables."""
        collections = self.draw(key)
        params = rename_key(collections["params"], self.classifier.name, HEAD)
        return Variables(params, collections.get("batch_stats", {}))

    def forward(
        self, variables: Variables, images: Array, train: bool, key: Key | None, real: Array | None
    ) -> tuple[Outputs, PyTree]:
        """Computes outputs and running statistics."""
        params = rename_key(variables.params, HEAD, self.classifier.name)
        collections = {"params": params, "batch_stats": variables.stats}
        mutable = [*_RECORDED, "batch_stats"] if train else [*_RECORDED]
        call = functools.partial(self.module.apply, collections, self.usage.cast(images), **self.usage.modes[train])
        intercepted = nn.intercept_methods(_interceptor(self.classifier.name, self.usage.convolve, real))
        with self.usage.calling(train), intercepted:
            result: Any = call(mutable=mutable, rngs=_streams(key))
        logits, changed = result
        if self.classifier.name not in changed.get("classifier_input", {}):
            raise ValueError(
                f"{self.usage.name}: received a classifier {self.classifier.name!r} that is called within another "
                "module, such as nn.WeightNorm, must be called by the network itself: leave the wrapper out, or name "
                "another layer, head=..."
            )
        # Of several calls of the classifier, the last one.
        features = changed["classifier_input"][self.classifier.name]["inputs"][-1]
        taps = tuple(jax.tree.leaves(changed.get("taps", {})))
        outputs = Outputs(logits, features, taps, moment_pairs(changed.get("norm_inputs", {})))
        return outputs, changed.get("batch_stats", variables.stats)

    def classify(self, params: PyTree, features: Array) -> Array:
        """Computes the logits of features."""
        _, module, args, kwargs, *_ = self.classifier
        return jnp.asarray(module.apply({"params": params[HEAD]}, features, *args, **kwargs))


def _streams(key: Key | None) -> dict[str, Key] | None:
    """Makes the random streams of a network in training, with dropout's by its name, as `has_rng` asks for that."""
    # Two keys, as one would give a module's noise and its dropout the same numbers.
    return None if key is None else {"dropout": key, "params": jax.random.fold_in(key, 1)}


class _Classifier(NamedTuple):
    """The submodule that computes the logits, unbound, and its arguments in evaluation."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    features: jax.ShapeDtypeStruct


def _find_classifier(network: _LinenNetwork, wanted: str) -> _Classifier:
    """Finds the classifier by tracing a call of the network and watching its submodules."""
    calls: dict[str, tuple[nn.Module, tuple, dict, Any]] = {}
    # A list, because `jax.eval_shape` returns nothing but shapes.
    classifiers: list[_Classifier] = []
    usage = network.usage

    def watch(next_fun: Callable, args: tuple, kwargs: dict[str, Any], context: nn.module.InterceptorContext) -> Any:
        result = next_fun(*args, **kwargs)
        if context.method_name == "__call__" and len(context.module.path) == 1:
            calls[context.module.path[0]] = (context.module.unbind()[0], args, kwargs, result)
        return result

    def run() -> None:
        collections = network.draw(jax.random.key(0))
        check_variables(usage.name, collections)
        switches = linen_interceptor(usage.name, False, network.module)
        with usage.calling(False), nn.intercept_methods(switches), nn.intercept_methods(watch):
            logits = network.module.apply(collections, usage.example, **usage.modes[False])
        check_logits(usage, logits)
        submodules = [name for name in calls if name in collections["params"]]
        # The outermost of several such submodules ends last: a wrapper returns the result of the layer in it.
        returning = next((name for name in reversed(submodules) if calls[name][-1] is logits), None)
        name = choose_head(usage.name, wanted, submodules, returning)
        check_classifier(usage.name, name, collections.get("batch_stats", {}))
        classifier, args, kwargs, _ = calls[name]
        features = _first_argument(name, args)
        try:
            classifier.apply({"params": collections["params"][name]}, *args, **kwargs)
        except (FlaxError, LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"{usage.name}: received a classifier {name!r} that needs more than its own parameters, must be one "
                "submodule that computes the logits from the features: put a wrapper, such as nn.WeightNorm, and the "
                "layer that it wraps into a module"
            ) from error
        shape = jax.ShapeDtypeStruct(features.shape, features.dtype)
        classifiers.append(_Classifier(name, classifier, args[1:], kwargs, shape))

    jax.eval_shape(run)
    return classifiers[0]


def _first_argument(name: str | None, args: tuple) -> Any:
    """Returns the first positional argument of a submodule, its input; refuses an input that is passed by name."""
    if not args:
        raise ValueError(f"submodule {name}: received its input by name, must receive it by position: layer(inputs)")
    return args[0]


def _interceptor(head: str, convolve: Callable | None, real: Array | None) -> Callable:
    """Records features and moments, masks batch normalisation, and replaces convolutions, as modules are called."""

    # Flax calls this for every method of every module, so that users' networks need no change.
    def intercept(next_fun: Callable, args: tuple, kwargs: dict[str, Any], context: Any) -> Any:
        module = context.module
        if context.method_name != "__call__":
            return next_fun(*args, **kwargs)
        if module.path == (head,):
            module.sow("classifier_input", "inputs", args[0])
        if isinstance(module, nn.BatchNorm):
            inputs = _first_argument(module.name, args)
            module.sow("norm_inputs", "moments", input_moments(inputs, real))
            kwargs = {"mask": mask_of(inputs, real), **kwargs}
        if isinstance(module, nn.Conv) and module.conv_general_dilated is None and convolve is not None:
            # The same layer on the same variables with another convolution. The clone comes through here, too, but has
            # its own convolution and so continues.
            return module.clone(parent=module.scope, conv_general_dilated=convolve)(*args, **kwargs)
        return next_fun(*args, **kwargs)

    return intercept
