"""FedAWA: the server learns how much each client's update counts, from the updates themselves."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.methods.combine import Count, NonNegative, Recipe, recipe
from fedjax_bal.methods.roles import Reduce, Server, Step, part, static
from fedjax_bal.types import Array, Key, PyTree, ServerContext

_TINY = 1e-30


@part
class AlignedWeights(Reduce, Step, Server):
    r"""Weights updates by a softmax of numbers that the server learns, one for each client.

    With the updates $d_k$ of a round and weights p, the server takes steps on the numbers along the gradient of
    $\sum_k p_k (\| d_k - \sum_j p_j d_j \| + D(w, w + d_k))$, where w is the model at the start of the round, and then
    moves by $\sum_k p_k d_k$. D is the cosine distance, or the mean squared difference. Numbers start at the clients'
    shares of all samples, so that the first weights are nearly equal, and are kept between rounds. A chain of several
    clients has the mean of their numbers.

    Attributes:
        rate: learning rate of the numbers.
        steps: steps in a round.
        optimizer: "adam", with decays of 0.5 and 0.999, or "sgd", with a momentum of 0.9 and a weight decay of 0.0005;
            both start afresh in each round.
        distance: "cosine" or "euclidean".
        lagged: whether the weights are those before the last step.

    References:
        FedAWA (Shi et al., 2025), with the defaults of the authors' code, which has `lagged=True`, and keeps numbers by
        place in the cohort, not by client. The variant with weights by layer (FedAWA-L) isn't included.
    """

    rate: float = 0.001
    steps: int = static(1)
    optimizer: str = static("adam")
    distance: str = static("cosine")
    lagged: bool = static(False)

    unweighted = True
    needs_same_start = True

    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """Returns the mean update with the learned weights."""
        shares, _ = self._learned(deltas, weights, server)
        return jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, 1), _counted(deltas, weights))

    def init_server(self, server: ServerContext) -> Array:
        """Returns the clients' shares of all samples, `Float[N]`."""
        sizes = server.federation.sizes.astype(float)
        return sizes / jnp.maximum(sizes.sum(), 1.0)

    def broadcast(self, key: Key, server: ServerContext) -> tuple[Array, tuple[()]]:
        """Sends nothing: clients only need the model."""
        return server.state, ()

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, Array]:
        """Returns the update unchanged, and the numbers after this round's steps."""
        aggregate = server.aggregate
        _, moves = self._learned(aggregate.deltas, aggregate.weights, server)
        clients = server.cohort.clients
        return delta, server.state.at[clients].add(jnp.broadcast_to(moves[:, None], clients.shape), mode="drop")

    def update(self, key: Key, server: ServerContext) -> Array:
        """Keeps the numbers that `step` has computed."""
        return server.state

    def _learned(self, deltas: PyTree, weights: Array, server: ServerContext) -> tuple[Array, Array]:
        """Returns the chains' shares in the update, and the moves of their numbers, each `Float[G]`."""
        on = (weights > 0) | ~(weights > 0).any()  # a softmax over nothing would be nan
        each = _counted(deltas, weights)
        clients = server.cohort.clients
        places = jnp.maximum((clients < len(server.state)).sum(1), 1)
        start = server.state.at[clients].get(mode="fill", fill_value=0.0).sum(1) / places
        distances = self._distances(server.variables.params, each)
        shares = lambda numbers: jax.nn.softmax(numbers, where=on)

        def loss(numbers: Array) -> Array:
            p = shares(numbers)
            apart = jax.tree.map(lambda leaf: leaf - jnp.tensordot(p, leaf, 1), each)
            return (p * (jnp.sqrt(jnp.maximum(_products(apart, apart), _TINY)) + distances)).sum()

        if self.optimizer == "adam":
            rule = optax.adam(self.rate, b1=0.5, b2=0.999)
        else:
            rule = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(self.rate, momentum=0.9))

        def one_step(index: int, carry: tuple[Array, Array, PyTree]) -> tuple[Array, Array, PyTree]:
            _, numbers, state = carry
            moves, state = rule.update(jax.grad(loss)(numbers), state, numbers)
            moved: Any = optax.apply_updates(numbers, moves)
            return numbers, jnp.where(on, moved, numbers), state

        before, after, _ = lax.fori_loop(0, self.steps, one_step, (start, start, rule.init(start)))
        return shares(before if self.lagged else after), jnp.where(on, after - start, 0.0)

    def _distances(self, params: PyTree, each: PyTree) -> Array:
        """Returns D of every chain's model from the one before the round, `Float[G]`."""
        if self.distance == "euclidean":
            return _products(each, each) / sum(leaf.size for leaf in jax.tree.leaves(params))
        models = jax.tree.map(jnp.add, params, each)
        before = jax.tree.map(lambda leaf, model: jnp.broadcast_to(leaf, model.shape), params, models)
        squares = _products(models, models) * _products(before, before)
        return 1.0 - _products(before, models) / jnp.maximum(jnp.sqrt(squares), 1e-8)


def _counted(deltas: PyTree, weights: Array) -> PyTree:
    """Replaces the updates of excluded chains, which may contain anything, even nan, by zeros."""
    on = lambda leaf: (weights > 0).reshape(-1, *[1] * (leaf.ndim - 1))
    return jax.tree.map(lambda leaf: jnp.where(on(leaf), leaf, 0.0), deltas)


def _products(first: PyTree, second: PyTree) -> Array:
    """Returns the inner product of each chain's trees, leaves `[G, ...]`, `Float[G]`."""
    one = lambda a, b: (a * b).reshape(len(a), -1).sum(1)
    return sum(jax.tree.leaves(jax.tree.map(one, first, second)), jnp.zeros(()))


@recipe("averaging", "shi2025fedawa")
def fedawa(
    learning_rate: NonNegative = 0.001,
    steps: Count = 1,
    optimizer: Literal["adam", "sgd"] = "adam",
    distance: Literal["cosine", "euclidean"] = "cosine",
    lagged: bool = False,
) -> Recipe:
    """FedAvg whose server learns how much each client's update counts, from the updates of the cohort.

    Args:
        learning_rate: learning rate of the numbers whose softmax are the weights, at least 0.
        steps: steps on them in a round, at least 1.
        optimizer: "adam" or "sgd".
        distance: distance between a client's model and the one that it received: "cosine" or "euclidean".
        lagged: aggregate with the weights before the round's last step.

    Example:
        >>> fedawa().parts[0].slot
        'AlignedWeights'
    """
    return Recipe("fedawa", (AlignedWeights(learning_rate, steps, optimizer, distance, lagged),))
