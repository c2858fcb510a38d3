"""Differential privacy for clients: clipped updates, and Gaussian noise on their sum."""

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.parts.part import Part, RunSetting, part, parts_with
from fedjax_bal.parts.robust import NormClipping
from fedjax_bal.parts.roles import Probe, Reduce, Report
from fedjax_bal.types import Array, PyTree, ServerContext


@part
class PrivateMean(Reduce):
    r"""Clips updates to a norm S, adds $\mathcal N(0, (z S)^2)$ to their sum, and divides it by their number.

    Updates weigh the same, whatever the client's size, so that one client moves the sum by at most S. How many deliver
    counts as public.

    Attributes:
        bound: S, over all parameters.
        noise: z, the noise multiplier.

    References:
        McMahan et al., 2018, Algorithm 1 with flat clipping. Batch statistics are averaged as ever,
        without noise: only a network without any is private.
    """

    bound: float = 1.0
    noise: float = 1.0

    def check(self, setting: RunSetting) -> None:
        """Refuses parts whose reports or probes would leave the clients without noise."""
        others: list[Part] = [*parts_with(setting.parts, Report), *parts_with(setting.parts, Probe)]
        if others:
            raise ValueError(
                f"dp: received {others[0].slot}, whose report or probe of each client would have no noise; leave it out"
            )

    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """Like params; zeros where no chain counts."""
        counts = weights > 0
        number = counts.sum()
        each = 1.0 / jnp.maximum(number, 1)
        mean = NormClipping(self.bound).reduce(deltas, counts * each, server)
        noise = optax.tree.random_like(server.key, mean, jax.random.normal)
        return optax.tree.add_scale(mean, self.noise * self.bound * jnp.where(number > 0, each, 0.0), noise)
