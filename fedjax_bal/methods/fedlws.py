"""FedLWS: the server shrinks each layer of the new model, the more the clients' updates of the layer disagree."""

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.methods.combine import NonNegative, Recipe, recipe
from fedjax_bal.methods.roles import Step, part
from fedjax_bal.types import Array, PyTree, ServerContext


@part
class LayerShrinking(Step):
    r"""Multiplies each layer of the new model by $\gamma = \|w\| / (\|w\| + \tau \|d\|)$.

    w is the layer before the round and d its aggregated update. $\tau$ is $\beta$ times the mean distance of the
    clients' updates of the layer from their mean, limited to a range. The arrays of a module, such as kernel and bias,
    are a layer.

    Attributes:
        beta: weight of the clients' disagreement.
        low: least tau.
        high: largest tau.

    References:
        FedLWS (Shi et al., 2025), with the defaults of the authors' code. There a layer reaches from one bias to the
        next, so that a convolution without bias belongs to the normalisation that follows it, and batch statistics are
        shrunk, too. A layer of zeros, which the code would keep at 0 for ever, isn't shrunk here.
    """

    beta: float = 0.03
    low: float = 0.01
    high: float = 0.2

    needs_deltas = True

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Returns the update to the shrunk model, shaped like the parameters."""
        counted = server.aggregate.weights > 0
        layers = layers_of(delta)
        of_layers = lambda tree: [[jax.tree.leaves(tree)[place] for place in layer] for layer in layers]
        before = of_layers(server.variables.params)
        updates = of_layers(delta)
        each = of_layers(server.aggregate.deltas)
        changed = jax.tree.leaves(delta)
        for layer, w, d, deltas in zip(layers, before, updates, each, strict=True):
            tau = jnp.clip(self.beta * disagreement(deltas, counted), self.low, self.high)
            length = optax.tree.norm(w)
            gamma = jnp.where(length > 0, length / (length + tau * optax.tree.norm(d) + 1e-30), 1.0)
            for place, leaf, change in zip(layer, w, d, strict=True):
                changed[place] = gamma * (leaf + change) - leaf
        return jax.tree.unflatten(jax.tree.structure(delta), changed), server.state


def layers_of(tree: PyTree) -> list[list[int]]:
    """Groups the leaves of a model by module, as places among them; a leaf outside of a module is a layer.

    Example:
        >>> layers_of({"body": {"bias": 0.0, "kernel": 1.0}, "scale": 2.0})
        [[0, 1], [2]]
    """
    layers: dict[str, list[int]] = {}
    for place, (path, _) in enumerate(jax.tree_util.tree_leaves_with_path(tree)):
        layers.setdefault(jax.tree_util.keystr(path[:-1] or path), []).append(place)
    return list(layers.values())


def disagreement(deltas: list[Array], counted: Array) -> Array:
    """Returns the mean distance of the counted chains' updates, leaves `[G, ...]`, from their mean, `Float[]`."""
    count = jnp.maximum(counted.sum(), 1)
    # Excluded updates may contain anything, even nan.
    kept = jax.vmap(lambda on, delta: jax.tree.map(lambda leaf: jnp.where(on, leaf, 0.0), delta))(counted, deltas)
    mean = jax.tree.map(lambda leaf: leaf.sum(0) / count, kept)
    distances = jax.vmap(lambda delta: optax.tree.norm(jax.tree.map(jnp.subtract, delta, mean)))(kept)
    return jnp.where(counted, distances, 0.0).sum() / count


@recipe("averaging", "shi2025fedlws")
def fedlws(beta: NonNegative = 0.03, low: NonNegative = 0.01, high: NonNegative = 0.2) -> Recipe:
    """FedAvg whose server shrinks each layer of the new model, the more the clients' updates of it disagree.

    Args:
        beta: weight of the clients' disagreement, at least 0.
        low: least strength, at least 0; with beta 0 as well this is FedAvg.
        high: largest strength, at least 0.

    Example:
        >>> fedlws().parts
        (LayerShrinking(beta=0.03, low=0.01, high=0.2),)
    """
    if low > high:
        raise ValueError(f"fedlws: low: received {low:g}, must be at most high={high:g}")
    return Recipe("fedlws", (LayerShrinking(beta, low, high),))
