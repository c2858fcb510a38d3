"""FedAMP: each client is drawn to a mixture of all clients' models, in which similar ones count more."""

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.methods.combine import NonNegative, Positive, Recipe, Share, recipe
from fedjax_bal.methods.own_models import LatestModels, no_models, own_start, with_delivered
from fedjax_bal.methods.roles import Adapt, Loss, Memory, Need, Prepare, Server, Start, Step, part, static
from fedjax_bal.methods.twins import no_statistics
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, Outputs, PyTree, ServerContext, Variables


@part
class MessagePassing(Server, Step, Prepare, Start, Loss, Memory, Adapt):
    r"""Sends client k, in place of the global model, $u_k = \sum_j \xi_{kj} w_j$, a mixture of all clients' models.

    $w_j$ is the model that client j last delivered; clients that never have don't count, except for client k itself.
    With attention "distance" $\xi_{kj} = \frac{\alpha}{\sigma} e^{-\|w_k - w_j\|^2 / \sigma}$ for the others, and
    $\xi_{kk}$ is what is missing to 1. With "cosine" $\xi_{kk}$ is given, and the rest is divided among the others by a
    softmax of $\sigma \cos(w_k, w_j)$. The client trains on $F_k(w) + \frac{\lambda}{2 \alpha} \|w - u_k\|^2$ and keeps
    the result $w_k$, which classifies its own test rows; all clients' first one is the initial model. The global model
    is the mean of the $w_k$ of a round, and no client uses it.

    Each client keeps a model, and the server N more on each device. N distances take a client about as long as a pass
    over N models, and the memory of one, as they are computed one after another. Chains of several clients are
    refused: each would start from its own mixture.

    Attributes:
        alpha: $\alpha$.
        attraction: $\lambda$.
        sigma: $\sigma$.
        own_weight: $\xi_{kk}$ of "cosine"; None for 1 by the number of models.
        attention: "cosine" or "distance".
        begin: whether training begins at $u_k$, "cloud", or at $w_k$, "own".

    References:
        FedAMP (Huang et al., 2021), Algorithm 1 ("distance"), and its heuristic form, HeurFedAMP ("cosine"), where each
        client's objective is minimised. Defaults are those of FLGo's code, in which $\alpha$ falls tenfold every 30
        rounds; here it is constant. The code of PFLlib begins at $w_k$, mixes only models of the last round, and has a
        penalty of the plain distance without a gradient, so that its clients train alone. That of fluke begins at
        $w_k$, too, and divides the penalty by the learning rate instead of $\alpha$.
    """

    alpha: float = 1e4
    attraction: float = 1.0
    sigma: float = 25.0
    own_weight: float | None = None
    attention: str = static("cosine")
    begin: str = static("cloud")

    needs_deltas = True
    needs_same_start = True
    forbids_chains = True
    travels = False

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires a model without batch statistics, and that clients have no other model of their own."""
        return no_statistics("fedamp"), *own_start("fedamp", self)

    def init_server(self, server: ServerContext) -> LatestModels:
        """Returns no models."""
        return no_models(server)

    def broadcast(self, key: Key, server: ServerContext) -> tuple[LatestModels, LatestModels]:
        """Hands out the models, of which a client receives its mixture, in place of the global model."""
        return server.state, server.state

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, LatestModels]:
        """Adds the delivered models; the update stays as it is."""
        return delta, with_delivered(server.state, server)

    def update(self, key: Key, server: ServerContext) -> LatestModels:
        """Keeps the models."""
        return server.state

    def init_memory(self, variables: Variables) -> PyTree:
        """Returns the initial parameters."""
        return variables.params

    def remember(self, memory: PyTree, outcome: Outcome) -> PyTree:
        """Returns the trained parameters."""
        return (outcome.trained or outcome.end).params

    def adapt(self, variables: Variables, ctx: Context) -> Variables:
        """Returns the client's own model."""
        return variables._replace(params=ctx.memory[self.slot])

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> PyTree:
        """Returns $u_k$."""
        latest: LatestModels = ctx.broadcast[self.slot]
        own = ctx.memory[self.slot]
        others = latest.known & (jnp.arange(len(latest.known)) != ctx.client)
        mine, theirs = self._shares(own, latest.params, others)
        return jax.tree.map(lambda w, all_: mine * w + jnp.tensordot(theirs, all_, 1), own, latest.params)

    def start(self, variables: Variables, ctx: Context) -> Variables:
        """Replaces the received model."""
        params = ctx.prepared[self.slot] if self.begin == "cloud" else ctx.memory[self.slot]
        return variables._replace(params=params)

    def loss(self, outputs: Outputs, batch: Batch, params: PyTree, ctx: Context) -> Array:
        """Returns the penalty, `Float[]`."""
        distance = optax.tree.norm(jax.tree.map(jnp.subtract, params, ctx.prepared[self.slot]), squared=True)
        return 0.5 * self.attraction / self.alpha * distance

    def _shares(self, own: PyTree, models: PyTree, others: Array) -> tuple[Array, Array]:
        """Returns the client's own share, and those of all clients' models, `Float[N]`, 0 except for the others."""
        # One model after another: all differences of several clients at once would take N times the memory of a model.
        if self.attention == "distance":
            square = lambda other: optax.tree.norm(jax.tree.map(jnp.subtract, other, own), squared=True)
            distances = lax.map(square, models)
            theirs = jnp.where(others, self.alpha / self.sigma * jnp.exp(-distances / self.sigma), 0.0)
            return 1.0 - theirs.sum(), theirs

        def cosine(other: PyTree) -> Array:
            lengths = optax.tree.norm(other) * optax.tree.norm(own)
            return jnp.where(lengths > 0, optax.tree.vdot(other, own) / jnp.where(lengths > 0, lengths, 1.0), 0.0)

        cosines = lax.map(cosine, models)
        mine = 1.0 / (1.0 + others.sum()) if self.own_weight is None else jnp.asarray(self.own_weight)
        mine = jnp.where(others.any(), mine, 1.0)
        # A softmax over nothing would be nan.
        return mine, (1.0 - mine) * jax.nn.softmax(self.sigma * cosines, where=others | ~others.any())


@recipe("personal", "huang2021fedamp")
def fedamp(
    attention: Literal["cosine", "distance"] = "cosine",
    sigma: Positive = 25.0,
    own_weight: Share | None = None,
    alpha: Positive = 10000.0,
    attraction: NonNegative = 1.0,
    begin: Literal["cloud", "own"] = "cloud",
) -> Recipe:
    """Every client has its own model, drawn towards a mixture of all models in which similar ones count more.

    Each client keeps a model, and the server one more for each client. Meant for tens or hundreds of clients.

    Args:
        attention: "cosine", the form for deep networks, whose mixture is a weighted mean; or "distance", whose mixture
            is guaranteed to be one if `sigma` is at least `alpha` times the number of clients.
        sigma: for "cosine" the factor of cosines, for "distance" the scale of squared distances; above 0.
        own_weight: for "cosine" the weight of a client's own model in its mixture, in [0, 1]; None for 1 by the number
            of models.
        alpha: step size of the message passing, above 0.
        attraction: lambda; half of it, divided by `alpha`, is the weight of the squared distance to the mixture.
        begin: whether local training begins at the mixture ("cloud") or at the client's own model ("own").

    Example:
        >>> fedamp("distance", sigma=1e6).parts[0].slot
        'MessagePassing'
    """
    return Recipe("fedamp", (MessagePassing(alpha, attraction, sigma, own_weight, attention, begin),))
