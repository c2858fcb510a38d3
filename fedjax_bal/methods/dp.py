"""Client-level differential privacy: clipped updates, Gaussian noise on their sum, and the resulting epsilon."""

import functools
import importlib
import logging
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from annotated_types import Lt

from fedjax_bal.methods import roles
from fedjax_bal.methods.astraea import Augmentation
from fedjax_bal.methods.combine import NonNegative, Positive, Recipe, recipe
from fedjax_bal.methods.fedcm import ClientMomentum
from fedjax_bal.methods.flcir import ParticipatingShare
from fedjax_bal.methods.robust import NormClipping
from fedjax_bal.methods.roles import Need, NeedsContext, RoundsSoFar, part, parts_with, static
from fedjax_bal.types import Array, PyTree, ServerContext
from fedjax_bal.validate import finite_number, one_of, whole_number

# Orders of the Rényi divergences. With sampling, sums for fractional orders don't converge for every sampling rate, and
# dp-accounting warns about each; without sampling, its default orders have a closed form.
_ORDERS_OF_SAMPLES = np.array([*range(2, 65), 128, 256, 512, 1024])

# Copies by the classes of all clients, and updates scaled by numbers of samples or steps.
_NOT_NOISY = (Augmentation, ClientMomentum, ParticipatingShare)


def epsilon(
    noise: float,
    rounds: int,
    clients: int,
    clients_per_round: int,
    delta: float,
    neighbours: Literal["add_or_remove", "replace"] = "add_or_remove",
) -> float:
    r"""Computes the $\epsilon$ for which a run of `recipes.dp` is $(\epsilon, \delta)$-differentially private.

    The privacy concerns a client's participation. The metric `epsilon` of a run is this number after each round. It
    needs `pip install 'fedjax_bal[privacy]'`: the package `dp-accounting` adds up Rényi divergences.

    Args:
        noise: z, the recipe's noise multiplier, at least 0.
        rounds: the number of rounds so far.
        clients: N.
        clients_per_round: the cohort's size, at most N.
        delta: in (0, 1), usually below 1 / N.
        neighbours: "add_or_remove": federations with one client more or less, as if each client were drawn
            independently with probability `clients_per_round` / N; papers usually report this number. "replace":
            federations that differ in one client, and cohorts of fixed size, as `selection.uniform` draws them; this
            epsilon is larger, because a replaced client moves the sum by twice the bound.

    Returns:
        epsilon, infinite without noise.

    Raises:
        ImportError: `dp-accounting` is not installed.
        ValueError: a value is out of range.
    """
    if finite_number("epsilon: noise", noise) == 0:
        return float("inf")
    rounds = whole_number("epsilon: rounds", rounds)
    clients = whole_number("epsilon: clients", clients)
    size = whole_number("epsilon: clients_per_round", clients_per_round)
    one_of("epsilon: neighbours", neighbours, ("add_or_remove", "replace"))
    if size > clients or not 0 < delta < 1:
        raise ValueError(
            f"epsilon: received {size} clients a round of {clients}, and delta {delta}; must be at most all clients, "
            "and a delta between 0 and 1"
        )
    try:
        accounting = importlib.import_module("dp_accounting")
        rdp = importlib.import_module("dp_accounting.rdp")
    except ImportError as error:
        raise ImportError("epsilon: needs the package dp-accounting: pip install 'fedjax_bal[privacy]'") from error
    sampled = size < clients
    if neighbours == "replace":
        relation = accounting.NeighboringRelation.REPLACE_ONE
        event = accounting.GaussianDpEvent(noise / 2)
        event = accounting.SampledWithoutReplacementDpEvent(clients, size, event) if sampled else event
    else:
        relation = accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        event = accounting.PoissonSampledDpEvent(size / clients, accounting.GaussianDpEvent(noise))
    accountant = rdp.RdpAccountant(_ORDERS_OF_SAMPLES if sampled else None, neighboring_relation=relation)
    return float(accountant.compose(event, rounds).get_epsilon(delta))


@part
class PrivateMean(roles.Reduce):
    r"""Clips updates to a norm S, adds $\mathcal N(0, (z S)^2)$ to their sum, and divides the sum by their number.

    Updates have equal weights, regardless of the client's size, so that one client moves the sum by at most S. The
    number of clients that deliver is assumed to be public.

    Attributes:
        bound: S, over all parameters.
        noise: z, the noise multiplier.
        delta: delta of the reported epsilon; None for $N^{-1.1}$ with N clients.

    References:
        McMahan et al., 2018, Algorithm 1 with flat clipping. Methods that show the server or other clients more of a
        client than the noisy mean are rejected, as are networks with batch normalisation, whose statistics would have
        no noise, and clipping to the median norm of a round.
    """

    bound: float = 1.0
    noise: float = 1.0
    delta: float | None = static(None)

    unweighted = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that nothing of a client reaches others without noise, running batch statistics included."""
        statistics = Need("a model without batch normalisation, or fedbn as well", _check_statistics)
        return Need("", self._check_alone), Need("", _check_clipping), statistics

    def _check_alone(self, context: NeedsContext) -> None:
        for other in context.parts:
            shows = isinstance(other, (roles.Report, roles.Probe, roles.Closing))
            if (shows or other.needs_deltas or other.needs_losses) and other.slot != self.slot:
                raise ValueError(
                    f"dp: received {other.slot}, by which the server sees updates, reports or losses without noise; "
                    "leave one of the two out"
                )
            everyones = getattr(other, "counts", None) == "global"
            if everyones or isinstance(other, _NOT_NOISY):
                raise ValueError(
                    f"dp: received {other.slot}{' with counts=global' if everyones else ''}, by which other clients "
                    "or the model depend on a client's rows without noise; "
                    f"{'set counts to local, or ' if everyones else ''}leave one of the two out"
                )

    def round_metrics(self, past: RoundsSoFar) -> dict[str, float]:
        """Computes epsilon, if it is defined and its package is installed.

        It is undefined if a chain has several clients, or if the selector sees more than the noisy mean.
        """
        # Without a uniform draw, sampling doesn't amplify privacy: each client counts as if it were in every round.
        drawn = past.clients_per_round if past.drawn_evenly else past.clients
        delta = max(past.clients, 2) ** -1.1 if self.delta is None else self.delta
        try:
            known = past.chain_length == 1 and not past.closed_loop
            return {"epsilon": epsilon(float(self.noise), past.rounds, past.clients, drawn, delta)} if known else {}
        except ImportError as error:
            _warn_once(str(error))
            return {}

    def reduce(self, deltas: PyTree, weights: Array, server: ServerContext) -> PyTree:
        """Returns the private mean, shaped like the parameters; zeros if all weights are 0."""
        counts = weights > 0
        number = counts.sum()
        each = 1.0 / jnp.maximum(number, 1)
        mean = NormClipping(self.bound).reduce(deltas, counts * each, server)
        noise = optax.tree.random_like(server.key, mean, jax.random.normal)
        return optax.tree.add_scale(mean, self.noise * self.bound * jnp.where(number > 0, each, 0.0), noise)


@functools.cache
def _warn_once(text: str) -> None:
    logging.getLogger("fedjax_bal").warning(text)


def _check_clipping(context: NeedsContext) -> None:
    if context.clips:
        raise ValueError(
            "dp: received execution.broken_clients: clip, whose bound is a multiple of the median norm of all updates, "
            "so one client changes the others' updates without noise: set it to raise or exclude"
        )


def _check_statistics(context: NeedsContext) -> None:
    kept = any(part.keeps_statistics for part in parts_with(context.parts, roles.Personal))
    if context.normalisation and context.normalisation.statistics and not kept:
        raise ValueError(
            f"dp: received the model {context.model}, whose batch statistics would be averaged without noise: "
            "use one without batch normalisation (some have the option norm: group), or add fedbn, which keeps "
            "these layers with each client"
        )


@recipe("robust", "mcmahan2018dp")
def dp(bound: Positive = 1.0, noise: NonNegative = 1.0, delta: Annotated[Positive, Lt(1)] | None = None) -> Recipe:
    """Client-level differential privacy: updates clipped to a norm, and Gaussian noise on their sum.

    Up to each round, a run is (epsilon, delta)-differentially private with the round's metric `epsilon`, which needs
    `pip install 'fedjax_bal[privacy]'`. Sampling improves privacy if cohorts are drawn uniformly from all clients; with
    other selectors, or if clients aren't always available, each client counts as if it were in every round. There is no
    epsilon with `power_of_choice`, which sees clients' losses without noise.

    Args:
        bound: the largest norm S of a client's update; above 0.
        noise: z, the standard deviation of the noise on the sum in units of S; at least 0; 0 gives no privacy.
        delta: in (0, 1); None for N to the power of -1.1, a little below 1 / N for N clients.

    Example:
        >>> dp(0.5).parts
        (PrivateMean(bound=0.5, noise=1.0, delta=None),)
    """
    return Recipe("dp", (PrivateMean(bound, noise, delta),))
