"""FedFomo: each client tries other clients' models on rows of its own, and combines those that help."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.data import over_rows
from fedjax_bal.methods.combine import BelowOne, Count, NonNegative, Recipe, Share, recipe
from fedjax_bal.methods.own_models import LatestModels, no_models, own_start, with_delivered
from fedjax_bal.methods.roles import Adapt, Batches, Memory, Need, Prepare, Report, Server, Start, Step, part, static
from fedjax_bal.methods.twins import no_statistics
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, PyTree, ServerContext, Variables


class Offers(NamedTuple):
    """The server's state.

    Attributes:
        latest: the clients' models.
        affinity: P, the sum of the weights that each client has given to each other one, `Float[N, N]`.
    """

    latest: LatestModels
    affinity: Array


class Trained(NamedTuple):
    """A client's parameters before and after its last local training; the initial ones if there was none."""

    before: PyTree
    after: PyTree


class Weights(NamedTuple):
    """The weights that a client gives to other clients' models.

    Attributes:
        others: ids of the clients whose models it has tried, `Int32[M - 1]`; N for none.
        values: the weights, before they are divided, `Float[M - 1]`.
    """

    others: Array
    values: Array


class Combination(NamedTuple):
    """What a client computes before local training.

    Attributes:
        params: the combined parameters.
        weights: those of other clients' models.
        bound: the client's rows whose draw is below are held out, `UInt32[]`.
    """

    params: PyTree
    weights: Weights
    bound: Array


@part
class FirstOrderCombination(Server, Step, Prepare, Start, Batches, Memory, Report, Adapt):
    r"""Starts a client from $\theta_k + \sum_n w_n (\theta_n - \theta_k)$, where models that help it have weights.

    A client holds out a share of its rows. It tries M models: its own last one and those that M - 1 other clients last
    delivered. With $\theta_k$ its model before its last local training and L the mean loss on the rows held out, model
    n has the weight $w_n = \max(0, (L(\theta_k) - L(\theta_n)) / \|\theta_n - \theta_k\|)$, divided by the sum of these
    weights. If none helps, the client goes back to $\theta_k$, or without held-out rows keeps its own last model.

    The other models are chosen one after another, each with a probability of $\max(0, \epsilon - t d)$ in round t (from
    0) at random, otherwise as that of the client with the largest $p_{kn}$: the sum of all weights that client k has
    given to n, before they are divided, and without the maximum. Ties are broken at random.

    The client's last model classifies its own test rows; all clients' first one is the initial model. The global model
    is the mean of a round's trained models, and no client uses it. Each client keeps two models, and the server N more
    and $N^2$ numbers on each device. Before training, a client makes M + 1 passes over its rows, of which only those
    held out count. Chains of several clients are refused: each would start from its own combination.

    Attributes:
        held_out: the share of rows held out, rounded down, but at least one row if the client has two; 0 holds out
            none, and all rows are used for both.
        exploration: $\epsilon$.
        decay: d.
        models: M.
        norm: "l2" or "l1".

    References:
        FedFomo (Zhang et al., 2021), and the authors' code, with the settings of its published command except for the
        norm, which is "l1" there. That code offers the models of the last round's clients only, adds normalised weights
        to $p_{kn}$, has all clients train before the first round, and takes the mean of the losses of mini-batches. Its
        hierarchical extension, which also offers means of groups of models, isn't included. Rows that are held out keep
        their places in mini-batches, where they don't count, so that local steps are as many as without them. As
        traffic, the M - 1 models that a client receives count as one, and the weights that it sends don't count.
    """

    held_out: float = 0.2
    exploration: float = 0.3
    decay: float = 0.05
    models: int = static(5)
    norm: str = static("l2")

    needs_deltas = True
    needs_same_start = True
    forbids_chains = True
    travels = False
    by_client = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires a model without batch statistics, and that clients have no other model of their own."""
        return no_statistics("fedfomo"), *own_start("fedfomo", self)

    def init_server(self, server: ServerContext) -> Offers:
        """Returns no models, and affinities of 0."""
        count = server.federation.num_clients
        return Offers(no_models(server), jnp.zeros((count, count)))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[Offers, Offers]:
        """Hands out the models and affinities, of which a client receives M - 1 models."""
        return server.state, server.state

    def step(self, delta: PyTree, server: ServerContext) -> tuple[PyTree, Offers]:
        """Adds the delivered models; the update stays as it is."""
        return delta, server.state._replace(latest=with_delivered(server.state.latest, server))

    def update(self, key: Key, server: ServerContext) -> Offers:
        """Adds the reported weights."""
        given: Weights = server.aggregate.reports[self.slot]
        clients = jnp.asarray(server.cohort.clients)[..., None]
        affinity = server.state.affinity.at[clients, given.others].add(given.values, mode="drop")
        return server.state._replace(affinity=affinity)

    def report(self, outcome: Outcome) -> Weights:
        """Returns the weights of other clients' models."""
        return outcome.ctx.prepared[self.slot].weights

    def init_memory(self, variables: Variables) -> Trained:
        """Returns the initial parameters."""
        return Trained(variables.params, variables.params)

    def remember(self, memory: Trained, outcome: Outcome) -> Trained:
        """Returns the parameters before and after training."""
        return Trained(outcome.ctx.prepared[self.slot].params, (outcome.trained or outcome.end).params)

    def adapt(self, variables: Variables, ctx: Context) -> Variables:
        """Returns the client's own model."""
        return variables._replace(params=ctx.memory[self.slot].after)

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Combination:
        """Tries the models and combines them."""
        latest, affinity = ctx.broadcast[self.slot]
        before, after = ctx.memory[self.slot]
        bound = self._bound(ctx)
        loss = lambda params: self._loss(variables._replace(params=params), bound, ctx)
        reference, rows = loss(before)
        clients = len(latest.known)
        candidates = latest.known & (jnp.arange(clients) != ctx.client)
        others = self._chosen(key, affinity[ctx.client], candidates, ctx.round)

        def weight(params: PyTree) -> Array:
            distance = self._norm(jax.tree.map(jnp.subtract, params, before))
            return jnp.where(distance > 0, (reference - loss(params)[0]) / jnp.where(distance > 0, distance, 1.0), 0.0)

        def of_other(client: Array) -> Array:
            model = jax.tree.map(lambda all_: all_.at[client].get(mode="clip"), latest.params)
            return jnp.where(client < clients, weight(model), 0.0)

        own = jnp.maximum(weight(after), 0.0)
        weights = lax.map(of_other, others)  # one after another, each a model
        helpful = jnp.zeros(clients).at[others].add(jnp.maximum(weights, 0.0), mode="drop")
        total = own + helpful.sum()
        scale = 1.0 / jnp.where(total > 0, total, 1.0)

        def combined(before: Array, after: Array, all_: Array) -> Array:
            together = own * scale * after + jnp.tensordot(helpful * scale, all_, 1)
            return jnp.where(total > 0, together, jnp.where(rows > 0, before, after))

        return Combination(jax.tree.map(combined, before, after, latest.params), Weights(others, weights), bound)

    def start(self, variables: Variables, ctx: Context) -> Variables:
        """Replaces the received model by the combination."""
        return variables._replace(params=ctx.prepared[self.slot].params)

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """Leaves out the rows that are held out."""
        return batch._replace(real=batch.real & (_draws(batch.rows) >= ctx.prepared[self.slot].bound))

    def _bound(self, ctx: Context) -> Array:
        """Returns the bound below which as many of the client's rows have their draw as are held out."""
        places = jnp.arange(ctx.row_length)
        first = ctx.federation.offsets[ctx.client]
        draws = _draws(ctx.federation.rows.at[first + places].get(mode="clip"))
        ascending = jnp.sort(jnp.where(places < ctx.size, draws, jnp.uint32(2**32 - 1)))
        # A share of 0.29 of 100 rows is 28.99... in binary but means 29.
        count = jnp.maximum(jnp.floor(self.held_out * ctx.size + 1e-4).astype(jnp.int32), 1)
        count = jnp.where(self.held_out > 0, jnp.clip(count, 0, jnp.maximum(ctx.size - 1, 0)), 0)
        return ascending[count]

    def _loss(self, model: Variables, bound: Array, ctx: Context) -> tuple[Array, Array]:
        """Returns a model's mean loss on the rows held out, and the number of these rows."""

        def add(carry: tuple[Array, Array], batch: Batch) -> tuple[Array, Array]:
            tried = batch.real & ((_draws(batch.rows) < bound) | (self.held_out <= 0))
            outputs, _ = ctx.model.apply(model, batch.images, train=False)
            losses = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch.labels)
            return carry[0] + jnp.where(tried, losses, 0.0).sum(), carry[1] + tried.sum()

        total, count = over_rows(add, (jnp.zeros(()), jnp.zeros((), int)), ctx)
        return total / jnp.maximum(count, 1), count

    def _chosen(self, key: Key, affinity: Array, candidates: Array, round: Array) -> Array:
        """Chooses M - 1 of the candidates, or N where there are no more."""
        explored = jnp.maximum(self.exploration - self.decay * round, 0.0)

        def choose(left: Array, key: Key) -> tuple[Array, Array]:
            coin, order = jax.random.split(key)
            best = affinity >= jnp.where(left, affinity, -jnp.inf).max()
            among = left & (best | (jax.random.uniform(coin) < explored))
            client = jnp.argmax(jnp.where(among, jax.random.uniform(order, left.shape), -1.0))
            client = jnp.where(left.any(), client, len(left)).astype(jnp.int32)
            return left.at[client].set(False, mode="drop"), client

        return lax.scan(choose, candidates, jax.random.split(key, self.models - 1))[1]

    def _norm(self, tree: PyTree) -> Array:
        if self.norm == "l1":
            return sum((jnp.abs(leaf).sum() for leaf in jax.tree.leaves(tree)), jnp.zeros(()))
        return optax.tree.norm(tree)


def _draws(rows: Array) -> Array:
    """Returns a random number for each row of the data set, `UInt32`, the same in every run."""
    return jax.vmap(lambda row: jax.random.bits(jax.random.fold_in(jax.random.key(0), row), dtype=jnp.uint32))(rows)


@recipe("personal", "zhang2021fedfomo")
def fedfomo(
    models: Count = 5,
    held_out: BelowOne = 0.2,
    exploration: Share = 0.3,
    decay: NonNegative = 0.05,
    norm: Literal["l2", "l1"] = "l2",
) -> Recipe:
    """Clients start from a combination of their own and others' models, weighted by gains on held-out rows.

    Each client keeps two models, and the server one more for each client. Meant for tens or hundreds of clients.

    Args:
        models: number of models that a client tries in a round, its own included; each costs a pass over its rows.
        held_out: share of a client's rows that it holds out of training, below 1; with 0 models are tried on all rows.
        exploration: probability that a model to try is chosen at random instead of by earlier weights, in the first
            round.
        decay: amount by which this probability falls in each round.
        norm: the norm of the difference of models by which gains are divided.

    Example:
        >>> fedfomo(models=3).parts[0].models
        3
    """
    return Recipe("fedfomo", (FirstOrderCombination(held_out, exploration, decay, models, norm),))
