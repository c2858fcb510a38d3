"""A projection of a network's features, for losses that compare representations."""

import functools
import zlib
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_bal.models.layers import uniform_within
from fedjax_bal.models.sums import dense_product
from fedjax_bal.types import Array, Key, Model, Outputs, PyTree, Variables
from fedjax_bal.validate import one_of, whole_number

FORMS = ("head", "side", "none")
"""Positions of a projection: below the classifier, beside it, or none."""

_PURPOSE = zlib.crc32(b"projection")


def with_projection(model: Model, form: str, width: int) -> Model:
    """Adds two dense layers to a network, on its features.

    The layers map F features to F, ReLU, and then to `width`; their parameters are `params["projection"]`, and their
    result is `Outputs.projection`. The weights that both networks have start the same.

    Args:
        model: a network with its parameters in a dict; for "head" the classifier's are `params["head"]`, one dense
            layer.
        form: "head" puts the classifier on the projection, which becomes `Outputs.features`, and initializes it in its
            new shape; "side" leaves the classifier on the features; "none" adds nothing, so that the projection is the
            features themselves.
        width: of the projection, at least 1; ignored for "none".

    Returns:
        The extended network.

    Raises:
        ValueError: an unknown form, a wrong width, or a network that can't be extended.

    Example:
        >>> from fedjax_bal.models import build
        >>> model = with_projection(build("mlp", 10, (28, 28, 1)), "head", 32)
        >>> variables = model.init(jax.random.key(0))
        >>> outputs, _ = model.apply(variables, jnp.zeros((2, 28, 28, 1)), train=False)
        >>> outputs.projection.shape, outputs.logits.shape
        ((2, 32), (2, 10))

    References:
        MOON (Li et al., 2021), section 4.1, for "head"; for "side" the comparison in ReBaFL (Xu et al., 2023), whose
        code has a side branch of different sizes for each of its networks.
    """
    one_of("projection", form, FORMS)
    return _extend(model, form, whole_number("width", width))


@functools.lru_cache(maxsize=64)  # equal models are one object, so that their runs share a program
def _extend(model: Model, form: str, width: int) -> Model:
    if form == "none":
        return model._replace(apply=functools.partial(_apply_bare, model))
    start = jax.eval_shape(model.init, jax.random.key(0)).params
    _check(model, start, form)
    features = num_features(model)
    on_top = form == "head"
    init = functools.partial(_init, model, features, width, on_top)
    apply = functools.partial(_apply, model, start["head"] if on_top else None)
    return model._replace(init=init, apply=apply)


def _check(model: Model, params: PyTree, form: str) -> None:
    if not isinstance(params, dict) or "projection" in params:
        found = sorted(params) if isinstance(params, dict) else type(params).__name__
        raise ValueError(
            f"projection: received the model {model.name} with parameters {found}, must be a dict without "
            "'projection': add one projection only, to a model with named parameters"
        )
    if form == "head" and "head" not in params:
        raise ValueError(
            f"projection: received 'head' for the model {model.name} with parameters {sorted(params)}, which have no "
            "'head'; name its classifier so, or ask for 'side' or 'none'"
        )


def num_features(model: Model) -> int:
    """F, the length of a network's features."""

    def features() -> Array:
        images = jnp.zeros((1, *model.input_shape), model.input_dtype)
        return model.apply(model.init(jax.random.key(0)), images, train=False)[0].features

    return jax.eval_shape(features).shape[-1]


def _init(model: Model, features: int, width: int, on_top: bool, key: Key) -> Variables:
    variables = model.init(key)
    hidden, output, classifier = jax.random.split(jax.random.fold_in(key, _PURPOSE), 3)
    layers = {"hidden": draw_dense(hidden, features, features), "output": draw_dense(output, features, width)}
    added = {"projection": layers}
    if on_top:
        added["head"] = _resize(classifier, variables.params["head"], width)
    return variables._replace(params={**variables.params, **added})


def draw_dense(key: Key, inputs: int, outputs: int) -> dict[str, Array]:
    """Draws a dense layer's kernel and bias as PyTorch initializes them, uniform within 1 / sqrt(fan in)."""
    kernel, bias = jax.random.split(key)
    draw = uniform_within(inputs)
    return {"kernel": draw(kernel, (inputs, outputs), float), "bias": draw(bias, (outputs,), float)}


def _resize(key: Key, head: PyTree, width: int) -> PyTree:
    """Draws a classifier like another one with `width` inputs; its kernel is the leaf with two axes."""
    leaves, structure = jax.tree.flatten(head)
    draw, keys = uniform_within(width), jax.random.split(key, len(leaves))
    shapes = [(width, *leaf.shape[1:]) if leaf.ndim == 2 else leaf.shape for leaf in leaves]
    return jax.tree.unflatten(structure, [draw(own, shape, float) for own, shape in zip(keys, shapes, strict=True)])


def _apply_bare(model: Model, variables: Variables, images: Array, **settings: Any) -> tuple[Outputs, Variables]:
    outputs, after = model.apply(variables, images, **settings)
    return outputs._replace(projection=outputs.features), after


def _apply(
    model: Model, head: PyTree | None, variables: Variables, images: Array, **settings: Any
) -> tuple[Outputs, Variables]:
    params = dict(variables.params)
    layers = params.pop("projection")
    if head is not None:
        # The network below needs its classifier in the old shape; the logits of these zeros are discarded.
        params["head"] = jax.tree.map(jnp.zeros_like, head)
    outputs, after = model.apply(variables._replace(params=params), images, **settings)
    projection = _project(layers, outputs.features)
    after = after._replace(params=variables.params)
    if head is None:
        return outputs._replace(projection=projection), after
    logits = model.head(variables.params, projection)
    return outputs._replace(logits=logits, features=projection, projection=projection), after


def _project(layers: PyTree, features: Array) -> Array:
    """Dense, ReLU, dense: `Float[B, F]` to `Float[B, width]`."""
    product = lambda layer, inputs: dense_product(inputs, layer["kernel"]) + layer["bias"]
    return product(layers["output"], jax.nn.relu(product(layers["hidden"], features)))
