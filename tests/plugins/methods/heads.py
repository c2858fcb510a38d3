"""The classifier on its own: finding it, and training it on features."""

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.types import Array, Key, Model, PyTree


def head_of(params: PyTree) -> PyTree:
    """The classifier's parameters; raises `ValueError` for a model without that branch."""
    if not isinstance(params, dict) or "head" not in params:
        found = sorted(params) if isinstance(params, dict) else type(params).__name__
        raise ValueError(f"model: received parameters {found}, must have the classifier's under 'head': name them so")
    return params["head"]


def retrained(
    model: Model,
    params: PyTree,
    features: Array,
    weights: Array,
    key: Key,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: Array | float,
) -> PyTree:
    """The classifier of `params` after some epochs of SGD on features by class.

    Args:
        model: the model.
        params: its parameters, of which only the classifier's are trained.
        features: `Float[C, M, F]`, M of each class.
        weights: `Float[C]`, how much each class counts in the loss; 0 leaves it out.
        key: of the order.
        epochs: passes over the features.
        batch_size: features a step; the last step of a pass takes what is left.
        learning_rate: of SGD, without momentum.
    """
    rows = features.reshape(-1, features.shape[-1])
    labels = jnp.repeat(jnp.arange(len(features)), features.shape[1])
    size = min(batch_size, len(rows))
    steps = -(-len(rows) // size)

    def step(head: PyTree, places: Array) -> tuple[PyTree, None]:
        own = labels.at[places].get(mode="clip")
        counts = jnp.where(places < len(rows), weights[own], 0.0)

        def loss(head: PyTree) -> Array:
            logits = model.head({**params, "head": head}, rows.at[places].get(mode="clip"))
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, own)
            return (counts * losses).sum() / jnp.maximum(counts.sum(), 1e-12)

        return jax.tree.map(lambda leaf, grad: leaf - learning_rate * grad, head, jax.grad(loss)(head)), None

    def epoch(head: PyTree, number: Array) -> tuple[PyTree, None]:
        order = jax.random.permutation(jax.random.fold_in(key, number), len(rows))
        order = jnp.pad(order, (0, steps * size - len(rows)), constant_values=len(rows))
        return lax.scan(step, head, order.reshape(steps, size))

    return lax.scan(epoch, head_of(params), jnp.arange(epochs))[0]
