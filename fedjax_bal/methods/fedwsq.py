"""FedWSQ: clients send their updates in 1, 2 or 4 bits a number, on levels that fit normally distributed changes."""

import math

import jax
import jax.numpy as jnp

from fedjax_bal.methods.combine import Count, Recipe, Share, recipe
from fedjax_bal.methods.roles import CheckContext, Deliver, Report, Server, part, static
from fedjax_bal.types import Array, Key, Model, Outcome, PyTree, ServerContext, Variables

LEVELS = {
    1: (-0.7979, 0.7979),
    2: (-1.224, 0.0, 0.7646, 1.7242),
    4: (
        *(-2.6536, -1.9735, -1.508, -1.149, -0.8337, -0.5439, -0.2686, 0.0),
        *(0.2303, 0.4648, 0.7081, 0.9663, 1.2481, 1.5676, 1.9679, 2.6488),
    ),
}
"""The values of each number of bits, in standard deviations, as in the authors' code."""

_FIRST = 1e-3  # the standard deviations before any round, as in the authors' code


def quantised(changes: Array, bits: int) -> Array:
    """Replaces changes in units of their standard deviation by the nearest of `LEVELS[bits]`."""
    lowest, *higher = LEVELS[bits]
    values = jnp.full_like(changes, lowest)
    for below, level in zip(LEVELS[bits], higher, strict=False):
        values = jnp.where(changes > 0.5 * (below + level), level, values)
    return values


@part
class QuantisedUpdates(Deliver, Report, Server):
    r"""Sends the changes of large layers as levels of their standard deviation, which server and clients know.

    A change x of a layer is replaced by $\sigma q(x / \sigma)$, where q takes the nearest level. The server's
    $\sigma$ of the layer moves, after each round, towards the mean standard deviation s of the clients' changes:
    $\sigma \leftarrow (1 - m) \sigma + m s$. A client sends `bits` bits for each of these numbers, and s.

    Quantised are kernels and matrices, but neither the first layer, which reads the inputs' channels, nor the
    classifier, unless `everything` says so. Depthwise kernels look like the first layer of a network for images of one
    channel, and aren't quantised there. Biases, normalisation layers and batch statistics are sent as they are.

    Attributes:
        momentum: m.
        bits: 1, 2 or 4.
        everything: whether the first layer and the classifier are quantised, too.

    References:
        FedWSQ (Kim et al., 2025), its quantisation, with levels, start of sigma and defaults of the authors' code; its
        weight standardisation is the option `standardise` of residual networks, 0.001 there. The code's allocation of
        different numbers of bits to clients is left out. Updates are averaged by number of samples, the code averages
        uniformly; the mean of s is uniform in both.
    """

    momentum: float = 0.1
    bits: int = static(4)
    everything: bool = static(False)

    def check(self, context: CheckContext) -> None:
        """Rejects a model of which nothing would be quantised."""
        params = jax.eval_shape(context.model.init, jax.random.key(0)).params
        if not self._chosen(params, context.model):
            raise ValueError(
                f"fedwsq: received the model {context.model.name}, which has no layers but the first and the "
                "classifier: use a deeper one, or set everything to true"
            )

    def init_server(self, server: ServerContext) -> dict[str, Array]:
        """Returns the standard deviations at the start, by the path of the layer."""
        return dict.fromkeys(self._chosen(server.variables.params, server.model), jnp.asarray(_FIRST, float))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Sends the standard deviations."""
        return server.state, server.state

    def deliver(self, outcome: Outcome) -> Variables:
        """Returns the received model with the quantised change."""
        deviations = outcome.ctx.broadcast[self.slot]

        def one(path: tuple, start: Array, end: Array) -> Array:
            deviation = deviations.get(jax.tree_util.keystr(path))
            if deviation is None:
                return end
            sent = start + deviation * quantised((end - start) / deviation, self.bits)
            # What isn't finite has no nearest level; it stays, so that the update is noticed as broken. So does a
            # layer that wasn't trained, as one bit has no level for that.
            return jnp.where(jnp.isfinite(end) & (end != start).any(), sent, end)

        return outcome.end._replace(
            params=jax.tree_util.tree_map_with_path(one, outcome.start.params, outcome.end.params)
        )

    def sent_bits(self, params: PyTree, model: Model) -> PyTree:
        """Returns the number of bits of quantised layers."""
        chosen = self._chosen(params, model)
        number = lambda path, _: self.bits if jax.tree_util.keystr(path) in chosen else 0
        return jax.tree_util.tree_map_with_path(number, params)

    def report(self, outcome: Outcome) -> tuple[dict[str, Array], Array]:
        """Returns the standard deviations of the changes as they were trained, and 1, to count the reports."""
        change = jax.tree.map(jnp.subtract, (outcome.trained or outcome.end).params, outcome.start.params)
        named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(change)}
        chosen = self._chosen(change, outcome.ctx.model)
        return {name: jnp.std(named[name], ddof=min(named[name].size - 1, 1)) for name in chosen}, jnp.ones(())

    def update(self, key: Key, server: ServerContext) -> dict[str, Array]:
        """Moves the standard deviations towards the mean of the clients'."""
        sums, count = server.aggregate.reports[self.slot]
        move = lambda old, total: (1 - self.momentum) * old + self.momentum * total / jnp.maximum(count, 1.0)
        return jax.tree.map(move, server.state, sums)

    def _chosen(self, params: PyTree, model: Model) -> list[str]:
        """Returns the paths of quantised leaves."""
        inputs = {4: model.input_shape[-1], 2: math.prod(model.input_shape)}
        chosen = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            name = jax.tree_util.keystr(path)
            first = leaf.ndim >= 2 and leaf.shape[-2] == inputs.get(leaf.ndim)
            if leaf.ndim >= 2 and (self.everything or not (first or name.startswith("['head']"))):
                chosen.append(name)
        return chosen


@recipe("averaging", "kim2025fedwsq")
def fedwsq(momentum: Share = 0.1, bits: Count = 4, everything: bool = False) -> Recipe:
    """FedAvg whose clients send their updates in a few bits a number.

    Combine it with residual networks with `{norm: group, standardise: 0.001}` for the rest of the paper.

    Args:
        momentum: weight of a round in the standard deviations of the updates, in [0, 1].
        bits: bits of each number, 1, 2 or 4.
        everything: whether the first layer and the classifier are quantised, too.

    Example:
        >>> fedwsq(bits=1).parts
        (QuantisedUpdates(momentum=0.1, bits=1, everything=False),)
    """
    if bits not in LEVELS:
        raise ValueError(f"fedwsq: bits: received {bits}, must be one of {', '.join(map(str, LEVELS))}")
    return Recipe("fedwsq", (QuantisedUpdates(momentum, bits, everything),))
