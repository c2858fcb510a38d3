"""Differential privacy for clients: clipped updates, and Gaussian noise on their sum."""

import functools
import logging

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.parts.accountant import epsilon
from fedjax_bal.parts.part import Need, RoundsSoFar, RunFacts, part, parts_with, static
from fedjax_bal.parts.robust import NormClipping
from fedjax_bal.parts.roles import Closing, Personal, Probe, Reduce, Report
from fedjax_bal.types import Array, PyTree, ServerContext


@part
class PrivateMean(Reduce):
    r"""Clips updates to a norm S, adds $\mathcal N(0, (z S)^2)$ to their sum, and divides it by their number.

    Updates weigh the same, whatever the client's size, so that one client moves the sum by at most S. How many deliver
    counts as public.

    Attributes:
        bound: S, over all parameters.
        noise: z, the noise multiplier.
        delta: that of the epsilon reported; None for $N^{-1.1}$, N clients.

    References:
        McMahan et al., 2018, Algorithm 1 with flat clipping.
    """

    bound: float = 1.0
    noise: float = 1.0
    delta: float | None = static(None)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Nothing of a client that the server would see without noise, running batch statistics included."""
        statistics = Need("a model without batch normalisation, or fedbn beside it", _check_statistics)
        return Need("", self._check_alone), statistics

    def _check_alone(self, facts: RunFacts) -> None:
        for other in facts.parts:
            shows = other.needs_deltas or other.needs_losses or isinstance(other, (Report, Probe, Closing))
            if shows and other.slot != self.slot:
                raise ValueError(
                    f"dp: received {other.slot}, by which the server sees updates, reports or losses without noise; "
                    "leave one of the two out"
                )

    def round_metrics(self, past: RoundsSoFar) -> dict[str, float]:
        """Epsilon, where it holds and its package is there.

        It doesn't hold with several clients behind one update, or where the selector sees more than the noisy mean.
        """
        drawn = past.clients_per_round if past.drawn_evenly else past.clients  # all: being left out hides nothing
        delta = max(past.clients, 2) ** -1.1 if self.delta is None else self.delta
        try:
            known = past.chain_length == 1 and not past.closed_loop
            return {"epsilon": epsilon(float(self.noise), past.rounds, past.clients, drawn, delta)} if known else {}
        except ImportError as error:
            _warn_once(str(error))
            return {}

    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """Like params; zeros where no chain counts."""
        counts = weights > 0
        number = counts.sum()
        each = 1.0 / jnp.maximum(number, 1)
        mean = NormClipping(self.bound).reduce(deltas, counts * each, server)
        noise = optax.tree.random_like(server.key, mean, jax.random.normal)
        return optax.tree.add_scale(mean, self.noise * self.bound * jnp.where(number > 0, each, 0.0), noise)


@functools.cache
def _warn_once(text: str) -> None:
    logging.getLogger("fedjax_bal").warning(text)


def _check_statistics(facts: RunFacts) -> None:
    kept = any(part.keeps_statistics for part in parts_with(facts.parts, Personal))
    if facts.normalisation and facts.normalisation.statistics and not kept:
        raise ValueError(
            f"dp: received the model {facts.model}, whose batch statistics would be averaged without noise: "
            "take one without batch normalisation (some have the option norm: group), or add fedbn, which keeps "
            "these layers with each client"
        )
