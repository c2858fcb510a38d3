"""Shared by `from_linen` and `from_nnx`: checks of a user's network, and the assembly of its model."""

import contextlib
import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.errors import FlaxError, InvalidRngError

from fedjax_bal.jax_setup import in_package_settings, is_users
from fedjax_bal.models import convolution as convolutions
from fedjax_bal.types import Array, Key, Model, Outputs, PyTree, Variables
from fedjax_bal.validate import whole_number

HEAD = "head"
NO_KEY = "This model drops features in training: give apply a key, as in key=jax.random.key(0)."
_IN_TRAINING = {"train": True, "training": True, "is_training": True, "deterministic": False, "is_eval": False}
_NO_NAMES = "none with a name: write a class for the network, whose classifier is an attribute (not an item of a list)"
_WRAPPERS = {"flax.linen": "from_linen", "flax.nnx": "from_nnx"}

Forward = Callable[[Variables, Array, bool, Key | None, Array | None], tuple[Outputs, PyTree]]
"""From variables, inputs, `train`, `key` and `real` to outputs and running statistics."""


def check_is_model(model: Any) -> None:
    """Refuses what isn't a `Model`; for a module of Flax the message names the function that wraps it.

    Example:
        >>> import flax.linen as nn
        >>> check_is_model(nn.Dense(10))  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        ValueError: model: received Dense, a module of flax.linen, must be a fedjax_bal model: wrap it,
        models.from_linen(module, input_shape, num_classes)
    """
    if isinstance(model, Model):
        return
    kind = model if isinstance(model, type) else type(model)
    bases = [base.__module__ for base in kind.__mro__]
    library = next((name for name in _WRAPPERS if any(base.startswith(name) for base in bases)), None)
    if library is None:
        raise ValueError(
            f"model: received {model!r}, must be a fedjax_bal model: models.build(name, num_classes, input_shape), or "
            "models.from_linen or models.from_nnx for a network of your own"
        )
    raise ValueError(
        f"model: received {kind.__name__}, a module of {library}, must be a fedjax_bal model: wrap it, "
        f"models.{_WRAPPERS[library]}(module, input_shape, num_classes)"
    )


def is_users_model(model: Model) -> bool:
    """Tells whether a model's functions call code of the user's: a network of their own, or functions made by hand."""
    return model.apply.__module__ == __name__ or is_users(model.apply.__module__)


def renewed(model: Model) -> Model:
    """The model with new functions, so that neither jax nor the engine finds what was traced with the old ones."""
    new, functions = in_package_settings, [model.init, model.apply]
    if model.apply.__module__ == __name__:  # jitted by `assemble_model`, so that they keep traces of their own
        init, apply = _jitted(*(inspect.unwrap(function) for function in functions))
    else:
        init, apply = map(new, functions)
    return model._replace(init=init, apply=apply, head=new(model.head))


def _jitted(init: Callable, apply: Callable) -> tuple[Any, Any]:
    """A model's functions as one program each when called by themselves, and as none within a larger one."""
    init, apply = in_package_settings(init), in_package_settings(apply)
    return jax.jit(init, inline=True), jax.jit(apply, inline=True, static_argnames="train")


class Usage(NamedTuple):
    """The settings with which a user's network is called.

    Attributes:
        name: the name of its class.
        input_shape: the shape of one input.
        num_classes: C.
        modes: the further arguments of a call in training, and in evaluation.
        convolve: the convolution in place of its own; None leaves these.
        dtype: type that a batch is converted to; None leaves it.
    """

    name: str
    input_shape: tuple[int, ...]
    num_classes: int
    modes: Mapping[bool, dict[str, Any]]
    convolve: Callable | None
    dtype: Any

    def cast(self, batch: Array) -> Array:
        """The batch as the network takes it."""
        return batch if self.dtype is None else batch.astype(self.dtype)

    @property
    def example(self) -> Array:
        """A batch of one input."""
        return self.cast(jnp.zeros((1, *self.input_shape)))

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Turns an error of the user's network into a `ValueError` that says with what it was called."""
        try:
            yield
        except InvalidRngError as error:
            raise ValueError(NO_KEY) from error
        except (FlaxError, NameError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self.name}: fails with inputs of shape {self.example.shape} and type {self.example.dtype}: {error} "
                "(the shape is input_shape's; token ids need dtype=int; a layer with an axis_name has to go without)"
            ) from error


def usage_of(network: Callable, input_shape: Sequence[int], num_classes: int, convolution: str, dtype: Any) -> Usage:
    """Checks the arguments of `from_linen` or `from_nnx`, and returns the settings with which the module is called."""
    name, classes = type(network).__name__, whole_number("num_classes", num_classes)
    shape = tuple(whole_number("input_shape", side) for side in input_shape)
    modes = {train: _mode_arguments(name, network.__call__, train) for train in (True, False)}
    convolve = None if convolution == "plain" else convolutions.where_supported(convolution)
    return Usage(name, shape, classes, modes, convolve, dtype)


def _mode_arguments(name: str, call: Callable, train: bool) -> dict[str, Any]:
    """The arguments by which a network's `__call__` is told whether it trains; refuses others that it needs."""
    _, *others = inspect.signature(call).parameters.values()
    unknown = [
        other.name
        for other in others
        if other.name not in _IN_TRAINING
        and other.default is other.empty
        and other.kind not in (other.VAR_POSITIONAL, other.VAR_KEYWORD)
    ]
    if unknown:
        raise ValueError(
            f"{name}: __call__ needs {', '.join(unknown)}, must need the batch alone, and at most one of "
            f"{', '.join(_IN_TRAINING)} beside it: give the others defaults, or make them fields of the module"
        )
    return {other.name: train == _IN_TRAINING[other.name] for other in others if other.name in _IN_TRAINING}


def choose_head(name: str, wanted: str, known: Iterable[str], found: str | None) -> str:
    """The classifier's name: the one asked for, or, where none is, that of the submodule that returned the logits."""
    names = sorted(known)
    chosen = wanted if wanted in names else found if wanted == HEAD else None
    if chosen is None or (chosen != HEAD and HEAD in names):
        near = difflib.get_close_matches(wanted, names, 1)
        hint = f"; did you mean {near[0]!r}?" if near and chosen is None else ""
        raise ValueError(
            f"{name}: received head={wanted!r}, must be the name of the submodule that computes the logits from the "
            f"features, the last layer of the network; submodules: {', '.join(names) or _NO_NAMES}{hint}"
        )
    return chosen


def check_classifier(name: str, head: str, stats: Mapping[str, PyTree]) -> None:
    """Refuses a classifier with running statistics: `Model.head` takes parameters alone."""
    if head in stats:
        raise ValueError(
            f"{name}: received a classifier {head!r} with batch normalisation, must be without: name the layer after "
            "that, head=..."
        )


def check_result(usage: Usage, logits: Any, features: Any) -> None:
    """Refuses logits and features that don't have one row for one input."""
    name, num_classes = usage.name, usage.num_classes
    if not hasattr(logits, "shape") or logits.shape != (1, num_classes):
        received = f"an array of shape {logits.shape}" if hasattr(logits, "shape") else type(logits).__name__
        raise ValueError(
            f"{name}: received {received} for one input, must return logits of shape (1, {num_classes}), one for each "
            "of num_classes"
        )
    if len(features.shape) != 2:
        raise ValueError(
            f"{name}: received features of shape {features.shape} for one input, must be (1, F): flatten or average "
            "them before the classifier, or name the submodule after that, head=...; a classifier inside another "
            "submodule must be called by the network itself"
        )


def check_variables(name: str, variables: PyTree) -> None:
    """Refuses parameters and statistics that aren't of 32 bits: the engine carries and adds updates as such."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(variables):
        if leaf.dtype != jnp.float32:
            place = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(
                f"{name}: received {place} of type {leaf.dtype}, must be float32 (param_dtype); "
                "Execution(precision='bfloat16') computes with fewer bits"
            )


def rename_key(tree: Mapping[str, PyTree], old: str, new: str) -> dict[str, PyTree]:
    """Copies a dict, with one key renamed."""
    return {new if key == old else key: value for key, value in tree.items()}


def moment_pairs(recorded: PyTree) -> tuple[tuple[Array, Array], ...]:
    """Mean and variance of each layer, in the order of the tree; flax records each pair in a tuple of one."""
    return sum(jax.tree.leaves(recorded, is_leaf=lambda node: isinstance(node, tuple)), ())


def counted_rows(inputs: Array, real: Array | None) -> Array | None:
    """Marks the rows of a layer's input that count; a layer may see several rows for each of the batch."""
    return None if real is None else jnp.repeat(real, inputs.shape[0] // real.shape[0])


def mask_of(inputs: Array, real: Array | None) -> Array | None:
    """The mask of Flax's batch normalisation; if no row is real, it takes all, since the mean of none would be NaN."""
    rows = counted_rows(inputs, real)
    return None if rows is None else (rows | ~rows.any()).reshape(-1, *[1] * (inputs.ndim - 1))


def by_channel(inputs: Array) -> Array:
    """Reshapes `[B, ..., K]` to `[B, H, 1, K]`, as `moments` takes it."""
    return inputs.reshape(inputs.shape[0], -1, 1, inputs.shape[-1])


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
            stats = jax.tree.map(lambda new, old: jnp.where(real.any(), new, old), stats, variables.stats)
        return outputs, variables._replace(stats=stats)

    init, apply = _jitted(init, apply)
    tokens = usage.dtype is not None and jnp.issubdtype(usage.dtype, jnp.integer)
    kind = "int32" if tokens else "float32"
    head, shape = in_package_settings(head), usage.input_shape
    return Model(init, apply, head, usage.name, usage.num_classes, shape, input_dtype=kind, classifier=classifier)
