"""FedGF: gradients are taken between a point uphill of the client's model and one uphill of the global model."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.methods.combine import Count, NonNegative, Recipe, recipe
from fedjax_bal.methods.fedsam import SMALLEST
from fedjax_bal.methods.roles import Report, Server, Shift, part, static
from fedjax_bal.types import Array, Context, Key, Outcome, PyTree, ServerContext


class GlobalShift(NamedTuple):
    """What the server sends.

    Attributes:
        away: from the global model to the point uphill of it, shaped like the parameters.
        share: c, the global point's share in the place of the gradient, `Float[]`.
    """

    away: PyTree
    share: Array


class ShiftHistory(NamedTuple):
    """The server's state.

    Attributes:
        sent: the shift of the next round.
        diverged: whether the clients diverged in each of the last W rounds, `Float[W]`, the latest last; 0 before the
            first round.
        rounds: the number of rounds that it counts, at most W, `Int32[]`.
    """

    sent: GlobalShift
    diverged: Array
    rounds: Array


@part
class InterpolatedAscent(Shift, Report, Server):
    r"""Takes the gradient at $c (w + \rho_g u) + (1 - c)(y + \rho g / \|g\|)$, where g is the gradient at y.

    w is the received model, and u the direction opposite to the last round's mean update, of length 1. c is the share
    of the last W rounds in which the clients' updates had a mean length above a threshold. In the first round c is 0,
    so that this is `Ascent`.

    Attributes:
        rho: length of the client's own shift.
        global_rho: $\rho_g$, length of the global shift.
        threshold: the mean length of a cohort's updates above which its clients have diverged.
        window: W.

    References:
        FedGF (Lee and Yoon, 2024), in the form of the authors' code, which adds 1e-16 to the norm of a gradient, not
        1e-7, and nothing to that of the mean update. The mean update is the one before other parts of the server change
        it. In a mediator's chain w is the model received from the predecessor. Each client sends the length of its
        update, a number that the server could compute.
    """

    rho: float = 0.1
    global_rho: float = 0.1
    threshold: float = 0.2
    window: int = static(30)

    def shift(self, params: PyTree, grads: PyTree | None, ctx: Context) -> PyTree:
        """Returns the interpolated point."""
        known: GlobalShift = ctx.broadcast[self.slot]
        c = known.share
        uphill = (1.0 - c) * self.rho / (optax.tree.norm(grads) + SMALLEST)
        steps = jax.tree.map(
            lambda w, away, y, g: c * (w + away - y) + uphill * g, ctx.start.params, known.away, params, grads
        )
        return jax.tree.map(jnp.add, params, ctx.only_trained(steps))

    def report(self, outcome: Outcome) -> Array:
        """Returns the length of the client's update, `Float[]`."""
        return optax.tree.norm(jax.tree.map(jnp.subtract, outcome.end.params, outcome.start.params))

    def init_server(self, server: ServerContext) -> ShiftHistory:
        """Returns no shift, with share 0."""
        away = jax.tree.map(jnp.zeros_like, server.variables.params)
        return ShiftHistory(GlobalShift(away, jnp.zeros(())), jnp.zeros(self.window), jnp.zeros((), jnp.int32))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[ShiftHistory, GlobalShift]:
        """Sends the global shift and its share."""
        return server.state, server.state.sent

    def update(self, key: Key, server: ServerContext) -> ShiftHistory:
        """Computes the shift of the next round."""
        mean = server.aggregate.delta
        clients = jnp.maximum((server.cohort.local_steps > 0).sum(), 1)
        far = server.aggregate.reports[self.slot] / clients > self.threshold
        rounds = jnp.minimum(server.state.rounds + 1, self.window)
        diverged = jnp.append(server.state.diverged[1:], far.astype(server.state.diverged.dtype))
        away = optax.tree.scale(-self.global_rho / (optax.tree.norm(mean) + SMALLEST), mean)
        return ShiftHistory(GlobalShift(away, diverged.sum() / rounds), diverged, rounds)


@recipe("flatness", "lee2024fedgf")
def fedgf(
    rho: NonNegative = 0.1, global_rho: NonNegative | None = None, threshold: NonNegative = 0.2, window: Count = 30
) -> Recipe:
    """FedAvg with gradients taken between a point uphill of the client's model and one uphill of the global model.

    Args:
        rho: length of the shift uphill from the client's model, at least 0. Each local step takes two passes through
            the model.
        global_rho: length of the shift uphill from the global model, at least 0; None for `rho`.
        threshold: mean length of the clients' updates, at least 0, above which a round counts towards the global point.
            If no round exceeds it, this is `fedsam`.
        window: number of rounds, up to the last one, whose share above the threshold is the weight of the global point.

    Example:
        >>> fedgf(0.05).parts
        (InterpolatedAscent(rho=0.05, global_rho=0.05, threshold=0.2, window=30),)

    References:
        Lee and Yoon, 2024. The authors' script for CIFAR tries 0.02, 0.05 and 0.1 for rho, and has a window of 30; it
        gives no threshold under the name that their program reads, but tries 0.2 and 0.3 under another one.
    """
    return Recipe("fedgf", (InterpolatedAscent(rho, rho if global_rho is None else global_rho, threshold, window),))
