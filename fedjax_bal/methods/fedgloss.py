"""FedGloSS: clients start from a model that the server has shifted uphill, so that it moves to flat places."""

import jax
import jax.numpy as jnp
import optax

from fedjax_bal.methods.combine import NonNegative, Positive, Recipe, recipe
from fedjax_bal.methods.feddyn import DynamicRegularisation
from fedjax_bal.methods.fedsam import SMALLEST, Ascent
from fedjax_bal.methods.needs import Unshifted
from fedjax_bal.methods.roles import Server, Step, part
from fedjax_bal.optim import optimizer
from fedjax_bal.types import Key, PyTree, ServerContext, Variables


@part
class ServerAscent(Step, Server, Unshifted):
    r"""Sends $w - \rho d / \|d\|$, where d is the last aggregated update, and evaluates w.

    The clients' mean update, taken at the shifted model, is applied at w: sharpness-aware minimisation by the server,
    with the last pseudo-gradient in place of one more round of communication. In the first round the model isn't
    shifted; a round without updates keeps the shift.

    Attributes:
        rho: length of the shift.

    References:
        FedGloSS (Caldarola et al., 2025), Algorithm 1. d is the mean before other parts of the server change it.
    """

    rho: float = 0.15

    travels = False

    method = "fedgloss"

    def init_server(self, server: ServerContext) -> PyTree:
        """Returns the shift: zeros, shaped like the parameters."""
        return jax.tree.map(jnp.zeros_like, server.variables.params)

    def broadcast(self, key: Key, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Sends nothing: the model is shifted already."""
        return server.state, ()

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, PyTree]:
        """Returns the update between two shifted models, and the new shift."""
        mean = server.aggregate.delta
        shift = optax.tree.scale(-self.rho / (optax.tree.norm(mean) + SMALLEST), mean)
        return jax.tree.map(lambda d, old, new: d - old + new, delta, server.state, shift), shift

    def update(self, key: Key, server: ServerContext) -> PyTree:
        """Keeps the shift that `step` has computed."""
        return server.state

    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """Returns the model without the shift, to be evaluated."""
        return variables._replace(params=jax.tree.map(jnp.subtract, variables.params, server.state))


@recipe("flatness", "caldarola2025fedgloss")
def fedgloss(rho: NonNegative = 0.15, local_rho: NonNegative = 0.15, beta: Positive = 10.0) -> Recipe:
    """Dynamic regularisation in which the server, too, takes updates at models shifted uphill.

    Args:
        rho: length of the server's shift, at least 0.
        local_rho: length of the shift in local steps, at least 0, each of which takes two passes through the model.
        beta: inverse weight of the penalty on a client's accumulated drift, above 0; with both lengths 0 this is
            `feddyn` without its adaptive weight.

    Example:
        >>> [part.slot for part in fedgloss().parts]
        ['ServerAscent', 'Ascent', 'DynamicRegularisation']

    References:
        Caldarola et al., 2025; the defaults are those of the authors' commands for CIFAR-10. Their code raises both
        lengths from 0.001 to these values over the first fifth of the rounds, averages updates by number of samples,
        adds 1e-16 to norms, not 1e-7, and divides the server's accumulated drift by the size of the cohort once more
        than FedDyn does.
    """
    parts = (ServerAscent(rho), Ascent(local_rho), DynamicRegularisation(1.0 / beta, False, None, in_loss=False))
    return Recipe("fedgloss", parts, server_optimizer=optimizer("sgd", 1.0))
