"""FedAvg in plain loops, written to be read: `device/` computes the same in one compiled program.

Clients train one after another, without padding, lanes, chains or devices. The random draws are the engine's, by round,
client and epoch, so that both give the same results up to rounding.

References:
    McMahan et al., 2017, Algorithm 1.
"""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_bal.data import normalised
from fedjax_bal.engine.device import purpose_key, shuffled, training_key
from fedjax_bal.types import Array, Federation, Key, Model, PyTree, Variables


def fedavg_round(
    model: Model,
    optimizer: optax.GradientTransformation,
    federation: Federation,
    variables: Variables,
    clients: Sequence[int],
    *,
    key: Key,
    number: int,
    epochs: int,
    batch_size: int,
) -> Variables:
    """Returns the model after round `number` (from 0), in which `clients` train and deliver; `key` is the run's."""
    trained = []
    for client in clients:
        # Every client starts from the global model with a fresh optimizer.
        params, stats = variables
        state = optimizer.init(params)
        for rows, step_key in batches(federation, client, key=key, number=number, epochs=epochs, batch_size=batch_size):
            images = normalised(federation.images[rows], federation.mean, federation.std)
            labels = federation.labels[rows]

            def loss(params: PyTree, stats: PyTree, images: Array, labels: Array, key: Key) -> tuple[Array, PyTree]:
                outputs, after = model.apply(Variables(params, stats), images, train=True, key=key)
                return optax.softmax_cross_entropy_with_integer_labels(outputs.logits, labels).mean(), after.stats

            grads, stats = jax.grad(loss, has_aux=True)(params, stats, images, labels, step_key)
            updates, state = optimizer.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        trained.append(Variables(params, stats))
    # The new global model is the mean of the clients' models, weighted by their numbers of rows.
    sizes = federation.sizes[list(clients)]
    shares = sizes / sizes.sum()
    return jax.tree.map(lambda *leaves: sum(w * leaf for w, leaf in zip(shares, leaves, strict=True)), *trained)


def batches(
    federation: Federation, client: int, *, key: Key, number: int, epochs: int, batch_size: int, turn: int = 0
) -> Iterator[tuple[np.ndarray, Key]]:
    """Yields the row numbers of a client's batches, with the key of each local step; `turn` is the pass of its chain.

    Every epoch goes through all rows once, in a new order. Its last batch may be short.
    """
    first = federation.offsets[client]
    last = federation.offsets[client + 1]
    key = training_key(key, jnp.int32(number), jnp.int32(client), jnp.int32(turn))
    for epoch in range(epochs):
        of_epoch = jax.random.fold_in(key, epoch)
        order = np.asarray(shuffled(purpose_key(of_epoch, "draw"), last - first, int(last - first)))
        for step, start in enumerate(range(0, last - first, batch_size)):
            rows = federation.rows[first + order[start : start + batch_size]]
            yield rows, jax.random.fold_in(purpose_key(of_epoch, "model"), step)
