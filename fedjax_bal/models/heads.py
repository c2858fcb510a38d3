"""Additional layers on a network's features, for losses that compare representations, and cosine classifiers."""

import functools
import zlib
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_bal.models.layers import dense_product, uniform_within
from fedjax_bal.types import Key, Model, Outputs, PyTree, Variables
from fedjax_bal.validate import one_of, whole_number

FORMS = ("head", "side", "none")
"""Positions of a projection: before the classifier, parallel to it, or none."""

CosineForm = Literal["trained", "orthogonal", "simplex"]


@functools.lru_cache(maxsize=64)  # equal models are one object, so that their runs share a program
def with_projection(model: Model, form: str, width: int) -> Model:
    """Adds two dense layers to a network, on its features.

    The layers map F features to F, ReLU, and then to `width`; their parameters are `params["projection"]`, and their
    result is `Outputs.projection`. Weights that the networks with and without them have in common start the same.

    Args:
        model: a network with its parameters in a dict; for "head" the classifier's are `params["head"]`, one dense
            layer.
        form: "head" puts the classifier on the projection, which becomes `Outputs.features`, and initializes it in its
            new shape; "side" leaves the classifier on the features; "none" adds nothing, so that the projection is the
            features themselves.
        width: length of the projection, at least 1; ignored for "none".

    Returns:
        The extended network.

    Raises:
        ValueError: the form is unknown, the width is wrong, or the network can't be extended; "head" is given for a
            classifier of cosines or of normalised features.

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
    whole_number("width", width)
    if form == "none":
        return model._replace(apply=functools.partial(_apply_bare, model))
    params = jax.eval_shape(model.init, jax.random.key(0)).params
    if not isinstance(params, dict) or "projection" in params:
        names = sorted(params) if isinstance(params, dict) else type(params).__name__
        raise ValueError(
            f"projection: received the model {model.name} with parameters {names}, must be a dict without "
            "'projection': add one projection only, to a model with named parameters"
        )
    if form == "head" and "head" not in params:
        raise ValueError(
            f"projection: received 'head' for the model {model.name} with parameters {sorted(params)}, which have no "
            "'head'; name its classifier so, or ask for 'side' or 'none'"
        )
    on_top = form == "head"
    if on_top and getattr(model.apply, "func", None) in (_apply_cosine, _apply_normalised):
        raise ValueError(
            f"projection: received 'head' for the model {model.name}, whose classifier compares directions or sees "
            "normalised features, which would be lost: name the method with the projection (moon) before the one that "
            "does so (feature_normalisation, fedetf, fednh, ldam), or ask for 'side' or 'none'"
        )
    init = functools.partial(_init_projection, model, num_features(model), width, on_top)
    apply = functools.partial(_apply_projection, model, params["head"] if on_top else None)
    return model._replace(init=init, apply=apply)


def num_features(model: Model) -> int:
    """Returns F, the length of a network's features."""

    def features() -> Array:
        images = jnp.zeros((1, *model.input_shape), model.input_dtype)
        return model.apply(model.init(jax.random.key(0)), images, train=False)[0].features

    return jax.eval_shape(features).shape[-1]


def _init_projection(model: Model, features: int, width: int, on_top: bool, key: Key) -> Variables:
    # The network's own draws use the key itself, so that they are those of the network without the projection.
    variables = model.init(key)
    hidden, output, classifier = jax.random.split(jax.random.fold_in(key, zlib.crc32(b"projection")), 3)
    layers = {"hidden": draw_dense(hidden, features, features), "output": draw_dense(output, features, width)}
    added = {"projection": layers}
    if on_top:
        # A classifier like the network's, but with `width` inputs; its kernel is the leaf with two axes.
        leaves, structure = jax.tree.flatten(variables.params["head"])
        draw = uniform_within(width)
        head = []
        for leaf_key, leaf in zip(jax.random.split(classifier, len(leaves)), leaves, strict=True):
            head.append(draw(leaf_key, (width, *leaf.shape[1:]) if leaf.ndim == 2 else leaf.shape, float))
        added["head"] = jax.tree.unflatten(structure, head)
    return variables._replace(params={**variables.params, **added})


def draw_dense(key: Key, inputs: int, outputs: int) -> dict[str, Array]:
    """Draws a dense layer's kernel and bias as PyTorch initializes them, uniform within 1 / sqrt(fan in)."""
    kernel, bias = jax.random.split(key)
    draw = uniform_within(inputs)
    return {"kernel": draw(kernel, (inputs, outputs), float), "bias": draw(bias, (outputs,), float)}


def _apply_bare(model: Model, variables: Variables, images: Array, **settings: Any) -> tuple[Outputs, Variables]:
    outputs, after = model.apply(variables, images, **settings)
    return outputs._replace(projection=outputs.features), after


def _apply_projection(
    model: Model, head: PyTree | None, variables: Variables, images: Array, **settings: Any
) -> tuple[Outputs, Variables]:
    params = dict(variables.params)
    layers = params.pop("projection")
    if head is not None:
        # The network below needs its classifier in the old shape; the logits of these zeros are discarded.
        params["head"] = jax.tree.map(jnp.zeros_like, head)
    outputs, after = model.apply(variables._replace(params=params), images, **settings)
    hidden = jax.nn.relu(dense_product(outputs.features, layers["hidden"]["kernel"]) + layers["hidden"]["bias"])
    projection = dense_product(hidden, layers["output"]["kernel"]) + layers["output"]["bias"]
    after = after._replace(params=variables.params)
    if head is None:
        return outputs._replace(projection=projection), after
    logits = model.head(variables.params, projection)
    return outputs._replace(logits=logits, features=projection, projection=projection), after


def unit(rows: Float[Array, "... F"]) -> Float[Array, "... F"]:
    """Scales rows to length 1; a row of zeros stays as it is, without a gradient."""
    # Two selections: if only the result were selected, the gradient at a row of zeros would be nan.
    squares = (rows * rows).sum(-1, keepdims=True)
    return jnp.where(squares > 0, rows / jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)


def simplex(classes: int) -> Float[Array, "C C"]:
    r"""Computes the vectors of a simplex equiangular tight frame, the columns of $\sqrt{C / (C - 1)} (I - 1 1^T / C)$.

    Example:
        >>> vectors = simplex(3)
        >>> [round(float(cosine), 4) for cosine in (vectors.T @ vectors)[0]]
        [1.0, -0.5, -0.5]
    """
    return (classes / (classes - 1)) ** 0.5 * (jnp.eye(classes) - 1 / classes)


@functools.lru_cache(maxsize=64)  # equal models are one object, so that their runs share a program
def with_cosine_head(model: Model, form: CosineForm, scale: float) -> Model:
    r"""Replaces a network's classifier with one of cosines, `params["head"]`, without bias.

    Args:
        model: a network with its classifier's parameters under `params["head"]`.
        form: "trained": class vectors in `kernel`, a fixed scale; "orthogonal": class vectors in `kernel` that start
            orthogonal, a trained scale; "simplex": fixed class vectors as in `simplex`, after a dense layer from F to
            C, `kernel` and `bias`, and a trained scale. The parameter of a trained scale is called `scale`.
        scale: the scale, or its start.

    Returns:
        The network with the new classifier; its other weights start the same.

    Raises:
        ValueError: a network without such a classifier, with one of cosines already, or with a single class.

    Example:
        >>> from fedjax_bal.models import build
        >>> model = with_cosine_head(build("mlp", 10, (28, 28, 1)), "trained", 30.0)
        >>> {name: leaf.shape for name, leaf in model.init(jax.random.key(0)).params["head"].items()}
        {'kernel': (64, 10)}
    """
    if model.num_classes < 2:
        raise ValueError(f"model: received {model.num_classes} class, must have at least 2 to compare directions")
    if getattr(model.apply, "func", None) is _apply_cosine:
        raise ValueError(
            f"model: received {model.name} with a classifier of cosines already; of methods that replace a "
            "classifier (fedetf, fednh, ldam) take one"
        )
    start = jax.eval_shape(model.init, jax.random.key(0)).params
    if not isinstance(start, dict) or "head" not in start:
        names = sorted(start) if isinstance(start, dict) else type(start).__name__
        raise ValueError(
            f"model: received {model.name} with parameters {names}, must have the classifier's under 'head' for it to "
            "be replaced: name them so"
        )
    classify = functools.partial(_cosines, form, scale)
    return model._replace(
        init=functools.partial(_init_cosine, model, num_features(model), form, scale),
        apply=functools.partial(_apply_cosine, model, start["head"], classify),
        head=lambda params, features: classify(params["head"], features),
    )


def _init_cosine(model: Model, inputs: int, form: CosineForm, scale: float, key: Key) -> Variables:
    variables = model.init(key)
    head_key = jax.random.fold_in(key, zlib.crc32(b"cosine"))
    shape = (inputs, model.num_classes)
    if form == "simplex":
        head = draw_dense(head_key, *shape)
    elif form == "orthogonal":
        head = {"kernel": jax.nn.initializers.orthogonal()(head_key, shape, float)}
    else:
        head = {"kernel": unit(jax.random.normal(head_key, shape[::-1])).T}
    if form != "trained":
        head["scale"] = jnp.array(scale, float)
    # In the precision of the model below, regardless of what the caller has enabled in jax.
    dtype = jax.tree.leaves(variables.params["head"])[0].dtype
    head = jax.tree.map(lambda leaf: leaf.astype(dtype), head)
    return variables._replace(params={**variables.params, "head": head})


def _cosines(form: CosineForm, scale: float, head: PyTree, features: Array) -> Array:
    """Computes the logits, `Float[B, C]`."""
    # A fixed scale is no parameter, so that neither the optimizer nor the server changes it.
    scale = head.get("scale", scale)
    kernel = unit(head["kernel"].T).T
    if form == "simplex":
        features = dense_product(features, head["kernel"]) + head["bias"]
        kernel = simplex(features.shape[-1]).astype(features.dtype)
    return scale * dense_product(unit(features), kernel)


def _apply_cosine(
    model: Model, old: PyTree, classify: Callable[..., Array], variables: Variables, images: Array, **settings: object
) -> tuple[Outputs, Variables]:
    # The network below needs its classifier in the old shape; the logits of these zeros are discarded.
    below = variables._replace(params={**variables.params, "head": jax.tree.map(jnp.zeros_like, old)})
    outputs, after = model.apply(below, images, **settings)
    logits = classify(variables.params["head"], outputs.features)
    return outputs._replace(logits=logits), after._replace(params=variables.params)


@functools.lru_cache(maxsize=64)  # equal models are one object, so that their runs share a program
def with_normalised_features(model: Model) -> Model:
    r"""Scales each row's features f to norm $\sqrt F$, $\sqrt F f / \|f\|$, before the classifier sees them.

    Example:
        >>> from fedjax_bal.models import build
        >>> model = with_normalised_features(build("mlp", 10, (2, 2, 1), hidden=(4,)))
        >>> outputs, _ = model.apply(model.init(jax.random.key(0)), jnp.ones((1, 2, 2, 1)), train=False)
        >>> round(float((outputs.features**2).mean()), 4)
        1.0
    """
    return model._replace(apply=functools.partial(_apply_normalised, model))


def _apply_normalised(
    model: Model, variables: Variables, images: Array, **settings: object
) -> tuple[Outputs, Variables]:
    outputs, after = model.apply(variables, images, **settings)
    features = outputs.features.shape[-1] ** 0.5 * unit(outputs.features)
    return outputs._replace(logits=model.head(variables.params, features), features=features), after
