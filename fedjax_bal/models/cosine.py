"""Classifiers that compare directions: logits are cosines of features and class vectors, times a scale."""

import functools
import zlib
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_bal.models.projection import draw_dense, num_features
from fedjax_bal.models.sums import dense_product
from fedjax_bal.types import Key, Model, Outputs, PyTree, Variables

_PURPOSE = zlib.crc32(b"cosine")

CosineForm = Literal["trained", "orthogonal", "simplex"]


def unit(rows: Float[Array, "... F"]) -> Float[Array, "... F"]:
    """Rows of length 1; a row of zeros stays as it is, without a gradient."""
    squares = (rows * rows).sum(-1, keepdims=True)
    return jnp.where(squares > 0, rows / jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)


def simplex(classes: int) -> Float[Array, "C C"]:
    r"""The class vectors of a simplex equiangular tight frame, as columns: $\sqrt{C / (C - 1)} (I - 1 1^T / C)$.

    Example:
        >>> vectors = simplex(3)
        >>> [round(float(cosine), 4) for cosine in (vectors.T @ vectors)[0]]
        [1.0, -0.5, -0.5]
    """
    return (classes / (classes - 1)) ** 0.5 * (jnp.eye(classes) - 1 / classes)


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
    if getattr(model.apply, "func", None) is _apply:
        raise ValueError(
            f"model: received {model.name} with a classifier of cosines already; of methods that replace a "
            "classifier (fedetf, fednh, ldam) take one"
        )
    return _replace(model, form, float(scale))


@functools.lru_cache(maxsize=64)  # equal models are one object, so that their runs share a program
def _replace(model: Model, form: CosineForm, scale: float) -> Model:
    start = jax.eval_shape(model.init, jax.random.key(0)).params
    if not isinstance(start, dict) or "head" not in start:
        found = sorted(start) if isinstance(start, dict) else type(start).__name__
        raise ValueError(
            f"model: received {model.name} with parameters {found}, must have the classifier's under 'head' for it to "
            "be replaced: name them so"
        )
    classify = functools.partial(_classify, form, scale)
    return model._replace(
        init=functools.partial(_init, model, num_features(model), form, scale),
        apply=functools.partial(_apply, model, start["head"], classify),
        head=lambda params, features: classify(params["head"], features),
    )


def _init(model: Model, inputs: int, form: CosineForm, scale: float, key: Key) -> Variables:
    variables = model.init(key)
    own, shape = jax.random.fold_in(key, _PURPOSE), (inputs, model.num_classes)
    if form == "simplex":
        head = draw_dense(own, *shape)
    elif form == "orthogonal":
        head = {"kernel": jax.nn.initializers.orthogonal()(own, shape, float)}
    else:
        head = {"kernel": unit(jax.random.normal(own, shape[::-1])).T}
    if form != "trained":
        head["scale"] = jnp.array(scale, float)
    # In the precision of the model below, whatever the caller has enabled in jax.
    dtype = jax.tree.leaves(variables.params["head"])[0].dtype
    head = jax.tree.map(lambda leaf: leaf.astype(dtype), head)
    return variables._replace(params={**variables.params, "head": head})


def _classify(form: CosineForm, scale: float, head: PyTree, features: Array) -> Array:
    """Logits, `Float[B, C]`."""
    kernel, scale = unit(head["kernel"].T).T, head.get("scale", scale)
    if form == "simplex":
        features = dense_product(features, head["kernel"]) + head["bias"]
        kernel = simplex(features.shape[-1]).astype(features.dtype)
    return scale * dense_product(unit(features), kernel)


def _apply(
    model: Model, old: PyTree, classify: Callable[..., Array], variables: Variables, images: Array, **settings: object
) -> tuple[Outputs, Variables]:
    # The network below needs its classifier in the old shape; the logits of these zeros are discarded.
    below = variables._replace(params={**variables.params, "head": jax.tree.map(jnp.zeros_like, old)})
    outputs, after = model.apply(below, images, **settings)
    logits = classify(variables.params["head"], outputs.features)
    return outputs._replace(logits=logits), after._replace(params=variables.params)
