"""The classifier of a network: finding it, adding further classifiers on the same features, training it alone."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.methods.roles import CheckContext, Closing, Personal, Refine, Separate, parts_with
from fedjax_bal.types import Array, Batch, Key, Model, Outputs, PyTree, Variables


def classifier(params: PyTree) -> PyTree:
    """Returns the classifier's parameters, `params["head"]`; raises `ValueError` for a model without that entry."""
    names = sorted(params) if isinstance(params, dict) else []
    if "head" not in names:
        raise ValueError(f"model: received parameters {names}, must have the classifier's under 'head': name them so")
    return params["head"]


def classifier_shapes(model: Model) -> PyTree:
    """Returns the shapes of a network's classifier; raises `ValueError` for a network without one of that name."""
    return classifier(jax.eval_shape(model.init, jax.random.key(0)).params)


@functools.lru_cache(maxsize=64)  # equal models must be one object: another object would be compiled again
def with_extra_heads(method: str, model: Model, *names: str) -> Model:
    """Returns the network with further sets of its classifier's parameters, by name, which start as zeros.

    Raises:
        ValueError: the classifier isn't linear in its parameters, so that two of them can't be added.
    """
    check_linear(method, model)
    return model._replace(
        init=functools.partial(_init, model, names), apply=functools.partial(apply_without, model, frozenset(names))
    )


def batch_loss(logits: Array, batch: Batch) -> Array:
    """Returns the mean cross-entropy of the real rows, `Float[]`."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    return jnp.where(batch.real, losses, 0.0).sum() / jnp.maximum(batch.real.sum(), 1)


def check_exclusive_head(method: str, own: Personal, context: CheckContext) -> None:
    """Rejects parts with which a personal classifier would be used on another model than it was trained for."""
    params = jax.eval_shape(context.model.init, jax.random.key(0)).params
    shapes = lambda name: jax.tree.map(lambda leaf: leaf.shape, params[name])
    if any(mine and shapes(name) != shapes("head") for name, mine in own.personal(params).items()):
        raise ValueError(
            f"{method}: received a method after it that changes the classifier, so the clients' own ones no "
            f"longer fit; combine it before {method}"
        )
    for other in context.parts:
        if other.slot == own.slot:
            continue
        if isinstance(other, Personal):
            head = jax.tree.broadcast(other.personal(params), params)["head"]
            if any(jax.tree.leaves(head)) or type(other).own_model is not Personal.own_model:
                raise ValueError(
                    f"{method}: received {other.slot}, by which each client has another classifier or model of its "
                    "own; leave one of the two out"
                )
        if isinstance(other, Closing) or (isinstance(other, Refine) and other.evaluation_only):
            raise ValueError(
                f"{method}: received {other.slot}, which puts another classifier in for evaluation, so those of "
                "the clients would no longer fit; leave one of the two out"
            )


UNUSED_FEATURES = "whose layers stay with the clients, so the classifier would be made for features that none uses"
"""Why methods that make a classifier of the global model's features need `check_kept(..., classifier=False)`."""


def check_kept(method: str, context: CheckContext, because: str, *, classifier: bool) -> None:
    """Rejects parts by which each client keeps its own classifier, or with `classifier=False` any layer below it."""
    params = jax.eval_shape(context.model.init, jax.random.key(0)).params
    for other in parts_with(context.parts, Personal):
        if not isinstance(other, Separate):
            kept = jax.tree.broadcast(other.personal(params), params)
            if any(jax.tree.leaves([leaves for name, leaves in kept.items() if (name == "head") == classifier])):
                raise ValueError(f"{method}: received {other.slot}, {because}; leave one of the two out")


def _init(model: Model, names: tuple[str, ...], key: Key) -> Variables:
    variables = model.init(key)
    zeros = jax.tree.map(jnp.zeros_like, classifier(variables.params))
    return variables._replace(params={**variables.params, **dict.fromkeys(names, zeros)})


def apply_without(
    model: Model, names: frozenset[str], variables: Variables, images: Array, **settings: Any
) -> tuple[Outputs, Variables]:
    """Applies a network that doesn't know the entries `names` of the parameters, which stay as they are."""
    shared = {name: leaf for name, leaf in variables.params.items() if name not in names}
    outputs, after = model.apply(variables._replace(params=shared), images, **settings)
    return outputs, after._replace(params=variables.params)


def check_linear(method: str, model: Model) -> None:
    """Rejects a network whose classifier isn't linear in its parameters."""
    head = classifier_shapes(model)
    image = jax.ShapeDtypeStruct((1, *model.input_shape), jnp.dtype(model.input_dtype))
    variables = jax.eval_shape(model.init, jax.random.key(0))
    width = jax.eval_shape(lambda v, x: model.apply(v, x, train=False)[0].features, variables, image).shape[-1]
    features = jnp.ones((1, width), jax.tree.leaves(head)[0].dtype)

    def logits(scale: float) -> Array:
        filled: PyTree = jax.tree.map(lambda leaf: jnp.full(leaf.shape, scale, leaf.dtype), head)
        return model.head({**variables.params, "head": filled}, features)

    if not jnp.allclose(logits(3.0), 3.0 * logits(1.0), rtol=1e-3):
        raise ValueError(
            f"{method}: received the model {model.name}, whose classifier isn't linear in its parameters, so two "
            "of them don't add up to one: use a model that ends in a dense layer"
        )


def check_dense(method: str, context: CheckContext) -> None:
    """Rejects a network that doesn't end in a dense layer, whose class vectors are the columns of a matrix.

    And one of which layers below it stay with the clients.
    """
    check_linear(method, context.model)
    check_kept(method, context, UNUSED_FEATURES, classifier=False)
    shapes = [leaf.shape for leaf in jax.tree.leaves(classifier_shapes(context.model))]
    matrices = [shape for shape in shapes if len(shape) != 1]
    if len(matrices) != 1 or len(matrices[0]) != 2 or matrices[0][1] != context.model.num_classes:
        raise ValueError(
            f"{method}: received the model {context.model.name} with a classifier of shapes {shapes}, must end in a "
            f"dense layer, whose shape is (features, {context.model.num_classes})"
        )


def with_dense_head(variables: Variables, vectors: Array, bias: Array) -> Variables:
    """Puts class vectors, `Float[F, C]`, and their bias, if it has one, into a model that ends in a dense layer."""
    filled = lambda leaf: (vectors if leaf.ndim == 2 else bias).astype(leaf.dtype)
    head = jax.tree.map(filled, classifier(variables.params))
    return variables._replace(params={**variables.params, "head": head})


def retrain_classifier(
    model: Model,
    params: PyTree,
    features: Array,
    labels: Array,
    key: Key,
    weights: Array | None = None,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: Array | float,
    momentum: Array | float = 0.0,
) -> PyTree:
    """Trains the classifier of `params` with SGD on features and returns it.

    Args:
        model: the network.
        params: its parameters, of which only the classifier's are trained.
        features: `Float[R, F]`.
        labels: `Int[R]`.
        key: key of the order of rows.
        weights: `Float[R]`, weight of each row in a step's mean; None for equal weights.
        epochs: passes over the rows.
        batch_size: rows per step; the last step of a pass takes the remaining rows.
        learning_rate: SGD's learning rate.
        momentum: SGD's momentum.
    """
    count = len(labels)
    size = min(batch_size, count)
    weights = jnp.ones(len(labels)) if weights is None else weights
    optimizer = optax.sgd(learning_rate, momentum)

    def step(carry: tuple[PyTree, PyTree], places: Array) -> tuple[tuple[PyTree, PyTree], None]:
        head, state = carry
        # Padding has the index R, which is out of range: clipped reads give the last row, whose weight is set to 0.
        counts = jnp.where(places < len(labels), weights.at[places].get(mode="clip"), 0.0)

        def loss(head: PyTree) -> Array:
            logits = model.head({**params, "head": head}, features.at[places].get(mode="clip"))
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels.at[places].get(mode="clip"))
            return (counts * losses).sum() / jnp.maximum(counts.sum(), 1e-12)

        updates, state = optimizer.update(jax.grad(loss)(head), state)
        return (jax.tree.map(jnp.add, head, updates), state), None

    # Each epoch has every row once, and is padded with the number of rows.
    order = jax.vmap(lambda epoch: jax.random.permutation(jax.random.fold_in(key, epoch), count))(jnp.arange(epochs))
    order = jnp.pad(order, ((0, 0), (0, -count % size)), constant_values=count).reshape(-1, size)
    head = classifier(params)
    return lax.scan(step, (head, optimizer.init(head)), order)[0][0]
