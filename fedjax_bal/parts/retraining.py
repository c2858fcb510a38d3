"""Training of the classifier alone, on features that don't change."""

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.parts.fedbabu import classifier
from fedjax_bal.types import Array, Key, Model, PyTree


def retrained(
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
    """The classifier of `params` after some epochs of SGD on features.

    Args:
        model: the network.
        params: its parameters, of which only the classifier's are trained.
        features: `Float[R, F]`.
        labels: `Int[R]`.
        key: of the order.
        weights: `Float[R]`, how much each row counts in a step's mean; None for the same.
        epochs: passes over the rows.
        batch_size: rows a step; the last step of a pass takes what is left.
        learning_rate: of SGD.
        momentum: of SGD.
    """
    size = min(batch_size, len(labels))
    weights = jnp.ones(len(labels)) if weights is None else weights
    optimizer = optax.sgd(learning_rate, momentum)

    def step(carry: tuple[PyTree, PyTree], places: Array) -> tuple[tuple[PyTree, PyTree], None]:
        head, state = carry
        counts = jnp.where(places < len(labels), weights.at[places].get(mode="clip"), 0.0)

        def loss(head: PyTree) -> Array:
            logits = model.head({**params, "head": head}, features.at[places].get(mode="clip"))
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels.at[places].get(mode="clip"))
            return (counts * losses).sum() / jnp.maximum(counts.sum(), 1e-12)

        updates, state = optimizer.update(jax.grad(loss)(head), state)
        return (jax.tree.map(jnp.add, head, updates), state), None

    head = classifier(params)
    return lax.scan(step, (head, optimizer.init(head)), _order(key, epochs, len(labels), size))[0][0]


def _order(key: Key, epochs: int, rows: int, size: int) -> Array:
    """Places among the rows, `Int[steps, size]`; each epoch has each one once, and padding at its end."""
    own = jax.vmap(lambda epoch: jax.random.permutation(jax.random.fold_in(key, epoch), rows))(jnp.arange(epochs))
    return jnp.pad(own, ((0, 0), (0, -rows % size)), constant_values=rows).reshape(-1, size)
