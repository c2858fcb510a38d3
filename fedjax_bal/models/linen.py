"""Models of the user's own `flax.linen` modules."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.errors import FlaxError

from fedjax_bal.models import wrapping
from fedjax_bal.models.normalization import moments
from fedjax_bal.models.wrapping import HEAD, Usage
from fedjax_bal.types import Array, Key, Model, Outputs, PyTree, Variables

_RECORDED = ("classifier_input", "norm_inputs", "taps")


def from_linen(
    module: nn.Module,
    input_shape: Sequence[int],
    num_classes: int,
    head: str = HEAD,
    *,
    convolution: str = "auto",
    dtype: Any = None,
) -> Model:
    """Makes a model from a `flax.linen` module, which stays as it is.

    The module's `__call__` takes a batch `[B, ...]` and returns logits `[B, C]`. If it has batch normalisation or
    dropout, it takes `train` too (or `training`, `is_training`, `deterministic`), and passes it on. The model then does
    what the package's own do:

    - `nn.BatchNorm` sees real rows only, its statistics are the model's, averaged by the server, and the moments of its
      inputs are `Outputs.norm_inputs`. The module need only pass `use_running_average=not train`.
    - Dropout, and whatever else calls `make_rng`, draws from the client's key.
    - Two-dimensional `nn.Conv` uses the package's convolution, which is fast for many clients at a time, wherever it
      supports the arguments (no dilation, default precision).
    - The input of the classifier, the submodule called `head`, are the features. If there is none of this name, the
      classifier is the submodule whose result the module returns.
    - Feature maps that the module sows in the collection "taps" are `Outputs.taps`.

    Parameters and statistics are those of `module.init`, with the classifier's under "head", so that
    `module.apply({"params": variables.params, "batch_stats": variables.stats}, batch)` works if that is its name.
    `simulate(..., variables=...)` takes what `module.init` returns, or pretrained weights in that form, as they are.

    Args:
        module: the module, for instance `Net()`.
        input_shape: the shape of one input, for images `(H, W, K)`.
        num_classes: C.
        head: name of the classifier.
        convolution: as in `fedjax_bal.models.build`; "plain" leaves the module's convolutions as they are, with second
            derivatives.
        dtype: type that a batch is converted to, `int` for token ids; by default it stays as it is.

    Returns:
        The model; `fedjax_bal.check_model` checks it.

    Raises:
        ValueError: the module needs other arguments, returns something else than logits, has collections besides
            parameters and batch statistics, or no classifier can be found.

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
    if not isinstance(module, nn.Module):
        raise ValueError(f"module: received {module!r}, must be a flax.linen module, for instance Net()")
    network = _LinenNetwork(module, wrapping.usage_of(module, input_shape, num_classes, convolution, dtype), head)
    functions = network.init, network.forward, network.classify
    return wrapping.assemble_model(network.usage, *functions, classifier=network.found.name)


class _LinenNetwork:
    """The functions of a model that calls a module; `wanted` is the name of its classifier, if it has it."""

    def __init__(self, module: nn.Module, usage: Usage, wanted: str) -> None:
        self.module, self.usage = module, usage
        self.found = _find_classifier(self, wanted)
        wrapping.check_result(usage, self.found.logits, self.found.features)

    def draw(self, key: Key) -> dict[str, PyTree]:
        """The initial collections."""
        collections = ["params", "batch_stats"]
        with self.usage.calling():
            return dict(self.module.init(key, self.usage.example, mutable=collections, **self.usage.modes[False]))

    def init(self, key: Key) -> Variables:
        """The initial variables."""
        collections = self.draw(key)
        params = wrapping.rename_key(collections["params"], self.found.name, HEAD)
        return Variables(params, collections.get("batch_stats", {}))

    def forward(
        self, variables: Variables, images: Array, train: bool, key: Key | None, real: Array | None
    ) -> tuple[Outputs, PyTree]:
        """Outputs and running statistics."""
        params = wrapping.rename_key(variables.params, HEAD, self.found.name)
        collections = {"params": params, "batch_stats": variables.stats}
        mutable = [*_RECORDED, "batch_stats"] if train else [*_RECORDED]
        call = functools.partial(self.module.apply, collections, self.usage.cast(images), **self.usage.modes[train])
        intercepted = nn.intercept_methods(_interceptor(self.found.name, self.usage.convolve, real))
        with self.usage.calling(), intercepted:
            result: Any = call(mutable=mutable, rngs=key)
        logits, changed = result
        if self.found.name not in changed.get("classifier_input", {}):
            raise ValueError(
                f"{self.usage.name}: received a classifier {self.found.name!r} that is called within another module, "
                "such as nn.WeightNorm, must be called by the network itself: leave the wrapper out, or name another "
                "layer, head=..."
            )
        features = changed["classifier_input"][self.found.name]["inputs"][-1]
        taps = tuple(jax.tree.leaves(changed.get("taps", {})))
        outputs = Outputs(logits, features, taps, wrapping.moment_pairs(changed.get("norm_inputs", {})))
        return outputs, changed.get("batch_stats", variables.stats)

    def classify(self, params: PyTree, features: Array) -> Array:
        """The logits of features."""
        found = self.found
        return jnp.asarray(found.module.apply({"params": params[HEAD]}, features, *found.args, **found.kwargs))


class _Classifier(NamedTuple):
    """The submodule that computes the logits, by itself, and a call of it in evaluation."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    features: jax.ShapeDtypeStruct
    logits: Any


def _find_classifier(network: _LinenNetwork, wanted: str) -> _Classifier:
    """Calls a network once, in the abstract, and watches its submodules."""
    calls: dict[str, tuple[nn.Module, tuple, dict, Any]] = {}
    found: list[_Classifier] = []
    usage = network.usage

    def watch(next_fun: Callable, args: tuple, kwargs: dict[str, Any], context: nn.module.InterceptorContext) -> Any:
        result = next_fun(*args, **kwargs)
        if context.method_name == "__call__" and len(context.module.path) == 1:
            calls[context.module.path[0]] = (context.module.unbind()[0], args, kwargs, result)
        return result

    def run() -> None:
        collections = network.draw(jax.random.key(0))
        wrapping.check_variables(usage.name, collections)
        with usage.calling(), nn.intercept_methods(watch):
            logits = network.module.apply(collections, usage.example, **usage.modes[False])
        known = [name for name in calls if name in collections["params"]]
        # The outermost of several, which ends last: a wrapper returns what the layer in it returned.
        returning = next((name for name in reversed(known) if calls[name][-1] is logits), None)
        name = wrapping.choose_head(usage.name, wanted, known, returning)
        wrapping.check_classifier(usage.name, name, collections.get("batch_stats", {}))
        own, args, kwargs, _ = calls[name]
        both = _first_argument(name, args), logits
        try:
            own.apply({"params": collections["params"][name]}, *args, **kwargs)
        except (FlaxError, LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"{usage.name}: received a classifier {name!r} that needs more than its own parameters, must be one "
                "submodule that computes the logits from the features: put a wrapper, such as nn.WeightNorm, and the "
                "layer that it wraps into a module"
            ) from error
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), both)
        found.append(_Classifier(name, own, args[1:], kwargs, *shapes))

    jax.eval_shape(run)
    return found[0]


def _first_argument(name: str | None, args: tuple) -> Any:
    """The input of a submodule that is called with some arguments; refuses one that is passed by name."""
    if not args:
        raise ValueError(f"submodule {name}: received its input by name, must receive it by position: layer(inputs)")
    return args[0]


def _interceptor(head: str, convolve: Callable | None, real: Array | None) -> Callable:
    """Records features and moments, masks batch normalisation, and replaces convolutions, as modules are called."""

    def intercept(next_fun: Callable, args: tuple, kwargs: dict[str, Any], context: Any) -> Any:
        module = context.module
        if context.method_name != "__call__":
            return next_fun(*args, **kwargs)
        if module.path == (head,):
            module.sow("classifier_input", "inputs", args[0])
        if isinstance(module, nn.BatchNorm):
            inputs = _first_argument(module.name, args)
            module.sow(
                "norm_inputs", "moments", moments(wrapping.by_channel(inputs), wrapping.counted_rows(inputs, real))[:2]
            )
            kwargs = {"mask": wrapping.mask_of(inputs, real), **kwargs}
        if isinstance(module, nn.Conv) and module.conv_general_dilated is None and convolve is not None:
            # The same layer on the same variables, with another convolution; it comes by here too, and goes on.
            return module.clone(parent=module.scope, conv_general_dilated=convolve)(*args, **kwargs)
        return next_fun(*args, **kwargs)

    return intercept
