"""Models from users' `flax.nnx` modules."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from jax import lax

from fedjax_bal.jax_setup import start_jax
from fedjax_bal.models import adapters
from fedjax_bal.models.adapters import HEAD, Usage
from fedjax_bal.models.switches import arguments_of, check_switches
from fedjax_bal.types import Array, Key, Model, Outputs, PyTree, Variables

_PASSED = 2**31  # beyond the numbers of a network's own streams


def from_nnx(
    module: nnx.Module | Callable[..., nnx.Module],
    input_shape: Sequence[int],
    num_classes: int,
    head: str = HEAD,
    *,
    convolution: str = "auto",
    dtype: Any = None,
) -> Model:
    """Makes a model from a `flax.nnx` module, which isn't modified.

    The module's `__call__` takes a batch `[B, ...]` and returns logits `[B, C]`. It trains and evaluates as after
    `module.train()` and `module.eval()`; an argument such as `train`, `is_training` or `deterministic` is also set, and
    an argument `rngs` gets random streams in training.
    Every layer must then be in training where the model is, as in `from_linen`. Batch normalisation (`nnx.BatchNorm`
    itself, not its subclasses), dropout, convolutions, features and head are handled as in `from_linen`. Variables of
    other kinds than `nnx.Param` and `nnx.BatchStat` are constants.

    Args:
        module: a class, or a function, that makes the module from `rngs=`, so that initial weights depend on a run's
            seed. An existing module starts every run with its own weights, which may be pretrained.
        input_shape: the shape of one input, for images `(H, W, K)`.
        num_classes: C.
        head: the attribute that holds the classifier.
        convolution: as in `fedjax_bal.models.build`; "plain" leaves the module's convolutions as they are, with second
            derivatives.
        dtype: type that a batch is converted to, `int` for token ids; by default it stays as it is.

    Returns:
        The model; `fedjax_bal.check_model` checks it.

    Raises:
        ValueError: the module needs other arguments, has a training switch that can't be set, doesn't return logits, or
            has no recognisable classifier.

    Example:
        >>> import jax.numpy as jnp
        >>> class Net(nnx.Module):
        ...     def __init__(self, rngs):
        ...         self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        ...         self.norm = nnx.BatchNorm(8, rngs=rngs)
        ...         self.classifier = nnx.Linear(8, 10, rngs=rngs)
        ...
        ...     def __call__(self, images):
        ...         return self.classifier(nnx.relu(self.norm(self.conv(images))).mean((1, 2)))
        >>> model = from_nnx(Net, (8, 8, 3), 10)
        >>> variables = model.init(jax.random.key(0))
        >>> outputs, _ = model.apply(variables, jnp.zeros((2, 8, 8, 3)), train=False)
        >>> outputs.logits.shape, outputs.features.shape, sorted(variables.params)
        ((2, 10), (2, 8), ['conv', 'head', 'norm'])
    """
    start_jax()
    adapters.refuse_torch("module", module)
    fixed = isinstance(module, nnx.Module)
    if not fixed and not callable(module):
        raise ValueError(f"module: received {module!r}, must be a class or function that makes a flax.nnx module")
    net = nnx.clone(module) if fixed else module(rngs=nnx.Rngs(0))
    if not isinstance(net, nnx.Module):
        raise ValueError(f"module: received {module!r}, must be a class or function that makes a flax.nnx module")
    if type(type(net).__call__).__module__.startswith("flax.nnx.transforms"):
        raise ValueError(
            f"{type(net).__name__}: received a __call__ that is compiled by itself, whose features can't be seen: "
            "leave nnx.jit out there, as a round is compiled as a whole"
        )
    usage = adapters.usage_of(net, input_shape, num_classes, convolution, dtype)
    network = _NnxNetwork(net, None if fixed else module, usage, head)
    return adapters.assemble_model(usage, network.init, network.forward, network.classify)


class _NnxNetwork:
    """The functions of a model that calls a network; `make` draws its initial weights, None keeps the existing ones."""

    def __init__(self, net: nnx.Module, make: Callable[..., nnx.Module] | None, usage: Usage, wanted: str) -> None:
        self._make = make
        self._usage = usage
        self._takes_rngs = "rngs" in inspect.signature(net.__call__).parameters
        for _, layer in nnx.iter_modules(net):
            # In place, so that the layer keeps its variables and its path in the network.
            if type(layer) is nnx.BatchNorm:
                layer.__class__ = _MaskedBatchNorm
            # A convolution with the user's own function keeps it.
            if isinstance(layer, nnx.Conv) and layer.conv_general_dilated is lax.conv_general_dilated:
                layer.conv_general_dilated = usage.convolve or lax.conv_general_dilated
        # Only parameters and batch statistics are carried by the engine; keys and other variables are constants.
        self._structure, *self._drawn, self._keys, self._others = nnx.split(
            net, nnx.Param, nnx.BatchStat, nnx.RngKey, ...
        )
        adapters.check_variables(usage.name, [nnx.to_pure_dict(state) for state in self._drawn])
        self._head = self._find_classifier(wanted)
        adapters.check_classifier(usage.name, self._head, nnx.to_pure_dict(self._drawn[1]))
        self._classifier, _, self._rest = nnx.split(getattr(net, self._head), nnx.Param, ...)

    def init(self, key: Key) -> Variables:
        """Draws the initial variables."""
        drawn: Sequence[Any] = self._drawn
        if self._make is not None:
            _, *drawn, _ = nnx.split(self._make(rngs=nnx.Rngs(key)), nnx.Param, nnx.BatchStat, ...)
        params, stats = (nnx.to_pure_dict(state) for state in drawn)
        return Variables(adapters.rename_key(params, self._head, HEAD), stats)

    def forward(
        self, variables: Variables, images: Array, train: bool, key: Key | None, real: Array | None
    ) -> tuple[Outputs, PyTree]:
        """Computes outputs and running statistics."""
        if train and key is None and (self._takes_rngs or jax.tree.leaves(self._keys)):
            raise ValueError(adapters.NO_KEY)
        net = self._rebuild(adapters.rename_key(variables.params, HEAD, self._head), variables.stats, key)
        net.train() if train else net.eval()
        norms = {path: layer for path, layer in nnx.iter_modules(net) if isinstance(layer, _MaskedBatchNorm)}
        # The mask can't be an argument, as the user's network calls these layers. It is set past nnx's bookkeeping of
        # attributes, and removed by `take_moments`.
        for layer in norms.values():
            vars(layer)["real"] = real
        with self._usage.calling(train):
            logits, seen = _watch(net, [self._head], self._usage.cast(images), self._mode(train, key))
        moments = tuple(norms[path].take_moments() for path in sorted(norms))
        outputs = Outputs(logits, seen[self._head][0], (), moments)
        return outputs, nnx.to_pure_dict(nnx.state(net, nnx.BatchStat))

    def classify(self, params: PyTree, features: Array) -> Array:
        """Computes the logits of features."""
        # A copy, because calls change a module in place, and tracers must not remain in it.
        classifier: Any = nnx.merge(self._classifier, params[HEAD], self._rest, copy=True)
        classifier.eval()
        return classifier(features)

    def _mode(self, train: bool, key: Key | None) -> dict[str, Any]:
        """Returns the arguments of a call besides the batch; `rngs`, if the network takes it, in training only."""
        mode = self._usage.modes[train]
        if not train or key is None or not self._takes_rngs:
            return mode
        # Another key than those of the network's own streams, so that the draws differ from theirs.
        return mode | {"rngs": nnx.Rngs(jax.random.fold_in(key, _PASSED))}

    def _rebuild(self, params: PyTree, stats: PyTree, key: Key | None) -> nnx.Module:
        keys = self._keys
        if key is not None:
            # The module's own keys would give every local step the same draws.
            leaves, tree = jax.tree.flatten(keys)
            drawn = [jax.random.fold_in(key, number) for number in range(len(leaves))]
            # Blocks in a scan have their keys in one array.
            drawn = [
                jax.random.split(new, old.shape) if old.shape else new for new, old in zip(drawn, leaves, strict=True)
            ]
            keys = jax.tree.unflatten(tree, drawn)
        return nnx.merge(self._structure, params, stats, keys, self._others, copy=True)

    def _find_classifier(self, wanted: str) -> str:
        """Finds the attribute with the classifier by tracing a call."""
        chosen: list[str] = []

        def run(train: bool) -> Any:
            net = self._rebuild(self._drawn[0], self._drawn[1], None)
            net.train() if train else net.eval()
            children = nnx.iter_children(net)
            layers = [str(key) for key, layer in children if isinstance(layer, nnx.Module) and callable(layer)]
            for path, layer in nnx.iter_modules(net):
                _check_calls(layer, self._usage.name, "/".join(map(str, path)), train)
            asked = [wanted] if wanted in layers else layers
            with self._usage.calling(train):
                logits, seen = _watch(net, asked, self._usage.example, self._mode(train, jax.random.key(0)))
            adapters.check_logits(self._usage, logits)
            if not train:
                returning = next((key for key, (_, result) in seen.items() if result is logits), None)
                chosen.append(adapters.choose_head(self._usage.name, wanted, layers, returning))
                adapters.check_features(self._usage, seen[chosen[0]][0])

        for train in (False, True):
            jax.eval_shape(functools.partial(run, train))
        return chosen[0]


def _check_calls(layer: nnx.Module, network: str, path: str, train: bool) -> None:
    """Makes a layer, in place, refuse switches with the wrong value whenever it is called."""
    if not callable(layer):
        return
    kind = type(layer).__name__.removeprefix("_Masked")
    name = f"{path} ({kind})" if path else "the network itself"

    def check(method: functools.partial, args: tuple, kwargs: dict[str, Any]) -> Any:
        called = method.args[0]  # the layer, or a view of it with other attributes
        check_switches(network, name, vars(called), arguments_of(method, args, kwargs), train)
        return method(*args, **kwargs)

    _intercept(layer, "check", check)


def _intercept(layer: nnx.Module, name: str, hook: Callable) -> None:
    """Makes calls of a layer, in place, go through `hook(method, args, kwargs)`, kept in the attribute `name`."""
    layer.__class__ = _intercepted(type(layer), name)
    # Set past nnx's bookkeeping of attributes, as no user's code sees this copy of the network.
    vars(layer)[name] = hook


@functools.cache
def _intercepted(kind: type[nnx.Module], name: str) -> type[nnx.Module]:
    """Makes a subclass whose calls go through a function in an attribute of the object."""
    method: Any = kind.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return vars(self)[name](functools.partial(method, self), args, kwargs)

    return type(kind.__name__, (kind,), {"__call__": call})


class _MaskedBatchNorm(nnx.BatchNorm):
    """Batch normalisation over the rows that `real` marks; it records the moments of its input."""

    def __call__(self, x: Array, use_running_average: bool | None = None, *, mask: Array | None = None) -> Array:
        real = vars(self).get("real")
        # Variables, which nnx carries out of the functions that it transforms, such as `nnx.remat`.
        self.moments = nnx.data([nnx.Intermediate(moment) for moment in adapters.input_moments(x, real)])
        return super().__call__(x, use_running_average, mask=adapters.mask_of(x, real) if mask is None else mask)

    def take_moments(self) -> tuple[Array, Array]:
        """Removes and returns the moments that `__call__` recorded; the running ones of a layer that wasn't called."""
        del vars(self)["real"]
        mean, var = vars(self).pop("moments", (self.mean, self.var))
        return mean[...], var[...]


def _watch(
    net: Any, names: Sequence[str], batch: Array, mode: dict[str, Any]
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
    """Calls a network, a copy; returns its result, and input and result of the named submodules."""
    seen: dict[str, tuple[Array, Array]] = {}

    def recorder(name: str) -> Callable:
        def record(method: Callable, args: tuple, kwargs: dict[str, Any]) -> Array:
            result = method(*args, **kwargs)
            seen[name] = (*args, *kwargs.values())[0], result
            return result

        return record

    for name in names:
        _intercept(getattr(net, name), f"record {name}", recorder(name))
    return net(batch, **mode), seen
