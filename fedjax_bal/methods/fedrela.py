"""FedReLa: late in training, rows that the global model takes for a locally rarer class are relabelled, once."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Le
from jax import lax

from fedjax_bal.balance import class_prototypes
from fedjax_bal.data import stack_rows
from fedjax_bal.methods.combine import CountOrZero, NonNegative, Recipe, recipe
from fedjax_bal.methods.fedcm import ClientMomentum
from fedjax_bal.methods.needs import shared_model, without_other
from fedjax_bal.methods.roles import (
    Batches,
    Draw,
    Need,
    Prepare,
    Server,
    Update,
    part,
    static,
)
from fedjax_bal.methods.scaffold import Controls
from fedjax_bal.types import Array, Batch, Context, Key, PyTree, ServerContext, Variables

_SMALLEST = 1e-6  # lower bound of a standard deviation


class Relabeller(NamedTuple):
    """The model and the seed from which every client computes its new labels: the server's state, and what it sends.

    Attributes:
        variables: the global model at the beginning of the relabelling round; of the current round until then.
        seed: seed of the draws by which rows are relabelled, `UInt32[]`.
    """

    variables: Variables
    seed: Array


class Labelled(NamedTuple):
    """A client's rows with labels.

    Attributes:
        rows: row numbers into the federation's images, `Int32[L]`; -1 for padding.
        labels: `Int32[L]`.
    """

    rows: Array
    labels: Array


def relabelled(probabilities: Array, labels: Array, real: Array, draws: Array, percent: Array | float) -> Array:
    """Returns the new labels of a client's rows, `Int32[L]`; see `Relabelling`.

    Args:
        probabilities: the global model's, `Float[L, C]`.
        labels: `Int32[L]`.
        real: `Bool[L]`; False for padding, whose label stays.
        draws: uniform in [0, 1), `Float[L, C]`.
        percent: percentage of the client's rows whose score for a class exceeds the threshold.

    The authors' code computes the number of these rows as int(percent / 100 * rows), which rounding can make one less
    than the percentage: 28 of 100 rows at 29 percent. Here it is 29.
    """
    classes = probabilities.shape[-1]
    means, counts = class_prototypes(probabilities, labels, real, classes)
    centred = jnp.where(real[:, None], probabilities - means[labels], 0.0)
    variances, _ = class_prototypes(centred**2, labels, real, classes)
    scores = centred / jnp.maximum(jnp.sqrt(variances), _SMALLEST)[labels]

    descending = -jnp.sort(jnp.where(real[:, None], -scores, jnp.inf), axis=0)
    thresholds = descending[_rows_above(percent, real.sum())]

    spread = counts.max() - counts.min()
    rarity = jnp.where(spread > 0, 1.0 - (counts - counts.min()) / jnp.where(spread > 0, spread, 1.0), 1.0)
    chances = jnp.tanh(scores - thresholds) * jnp.maximum(rarity - rarity[labels][:, None], 0.0)
    moves = (chances > draws) & real[:, None]
    return jnp.where(moves.any(-1), jnp.where(moves, chances, 0.0).argmax(-1), labels).astype(labels.dtype)


def _rows_above(percent: Array | float, size: Array) -> Array:
    """Returns how many of a client's scores for a class, over rows of all labels, exceed its threshold, `Int32[]`."""
    return jnp.clip(jnp.floor(percent * size / 100).astype(int), 0, jnp.maximum(size - 1, 0))


@part
class Relabelling(Server, Prepare, Batches):
    r"""Trains on new labels from a round on, which follow from the global model at the beginning of that round.

    With the global model's probability $q_{ic}$ of class c on row i of a client, the score $z_{ic}$ is
    $(q_{ic} - \mu_c) / \sigma_c$ for the mean and the standard deviation over the client's rows with i's label y. The
    threshold $t_c$ is exceeded by the given percentage of all its rows. With the client's class counts n, the rarity of
    a class is $r_c = 1 - (n_c - \min n) / (\max n - \min n)$. Row i may move to class c with probability
    $\tanh(z_{ic} - t_c) \max(r_c - r_y, 0)$, hence only to a class that is rarer on the client or that it lacks. Each
    class is drawn independently; of several, the one with the largest probability is the new label.

    In local steps other parts see the new labels and their class counts, for priors and weights. The draws depend on
    the row, not on the round, so that a row has the same new label in each round. Rows with the same image share it:
    augmented copies have their original's label.

    Attributes:
        start: the round, from 0, that relabels.
        percent: percentage of a client's rows above the threshold.

    References:
        FedReLa (Hu et al., 2026), in the form and with the constants of the authors' code for its one-shot relabelling,
        util/FedReLa.py. That averages probabilities over five epochs of augmented images, in batches of 8 whose own
        statistics normalise the layers; here images are plain, with the model's batch statistics. All clients take part
        there; here a client that first trains later uses the model of that round, too, and traffic omits this model.
    """

    start: int = static(450)
    percent: float = 5.0

    travels = False

    @property
    def first_round(self) -> int:
        """The round that relabels."""
        return self.start

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that the global model alone can classify a client's rows, which are drawn alike."""
        why = "which weighs rows by the labels that they had before"
        alone = shared_model("fedrela", "the global model alone can't relabel their rows")
        return alone, without_other("fedrela", self, Draw, because=why)

    def init_server(self, server: ServerContext) -> Relabeller:
        """Returns the initial model, and draws the seed."""
        return Relabeller(server.variables, jax.random.bits(server.key, dtype=jnp.uint32))

    def broadcast(self, key: Key, server: ServerContext) -> tuple[Relabeller, Relabeller]:
        """Sends the model of the relabelling round; the current one until then."""
        current = server.round <= self.start
        kept = jax.tree.map(lambda new, old: jnp.where(current, new, old), server.variables, server.state.variables)
        state = server.state._replace(variables=kept)
        return state, state

    def update(self, key: Key, server: ServerContext) -> Relabeller:
        """Keeps the model and the seed."""
        return server.state

    def prepare(self, key: Key, variables: Variables, ctx: Context) -> Labelled:
        """Computes the new labels of the client's rows; zeros before the relabelling round."""
        nothing = jnp.zeros(ctx.row_length, jnp.int32)
        # The round has no client axis, so that this stays a branch and earlier rounds don't go through the rows.
        return lax.cond(ctx.round >= self.start, lambda: self._relabel(ctx), lambda: Labelled(nothing, nothing))

    def batch(self, key: Key, batch: Batch, ctx: Context) -> Batch:
        """Returns the batch with new labels; rows that another part has added keep theirs."""
        known: Labelled = ctx.prepared[self.slot]
        same = batch.rows[:, None] == known.rows
        labels = jnp.where(same.any(-1), known.labels[same.argmax(-1)], batch.labels)
        return batch._replace(labels=labels)

    def labelled(self, class_counts: Array, ctx: Context) -> Array:
        """Counts the new labels of the client's rows."""
        known: Labelled = ctx.prepared[self.slot]
        return jnp.zeros_like(class_counts).at[known.labels].add((known.rows >= 0).astype(class_counts.dtype))

    def _relabel(self, ctx: Context) -> Labelled:
        received: Relabeller = ctx.broadcast[self.slot]
        classes = ctx.federation.num_classes

        def classify(batch: Batch) -> tuple[Array, Array, Array]:
            outputs, _ = ctx.model.apply(received.variables, batch.images, train=False)
            return jax.nn.softmax(outputs.logits), batch.rows, batch.labels

        probabilities, rows, labels = stack_rows(classify, ctx)
        real = jnp.arange(ctx.row_length) < ctx.size
        seed = jax.random.key(received.seed)
        draws = jax.vmap(lambda row: jax.random.uniform(jax.random.fold_in(seed, row), (classes,)))(rows)
        return Labelled(jnp.where(real, rows, -1), relabelled(probabilities, labels, real, draws, self.percent))


@part
class LowerRate(Update):
    """Multiplies the local optimizer's updates by a factor from a round on, like a lower learning rate.

    Attributes:
        start: the round, from 0.
        factor: the factor.

    References:
        FedReLa (Hu et al., 2026), the authors' code.
    """

    start: int = static(450)
    factor: float = 0.1

    @property
    def first_round(self) -> int:
        """The first round with lower updates."""
        return self.start

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires that no other part divides updates by the learning rate."""
        why = "which divides updates by the full learning rate (factor=1 keeps that)"
        return (without_other("fedrela", self, Controls, ClientMomentum, because=why),)

    def updates(self, updates: PyTree, params: PyTree, ctx: Context) -> PyTree:
        """Returns the updates times the factor."""
        return jax.tree.map(lambda leaf: self.factor * leaf, updates)


@recipe("long_tail", "hu2026fedrela")
def fedrela(
    start: CountOrZero = 450, percent: Annotated[NonNegative, Le(100)] = 5.0, factor: NonNegative = 0.1
) -> Recipe:
    """From a late round on, clients train on labels that the global model moves towards locally rarer classes.

    The method goes on top of another one: `combine(fedetf(), fedrela())`, `combine(fedloge(), fedrela())`.

    Args:
        start: the round, from 0, whose model relabels, and from which new labels apply. The authors take four fifths
            or nine tenths of training: 400 or 450 of 500 rounds.
        percent: percentage of a client's rows whose score for a class exceeds the threshold, in [0, 100].
        factor: factor on the local learning rate from that round on, at least 0; 1 leaves it as it is.

    Example:
        >>> fedrela(400).parts
        (Relabelling(start=400, percent=5.0), LowerRate(start=400, factor=0.1))
        >>> fedrela(400, factor=1.0).parts
        (Relabelling(start=400, percent=5.0),)
    """
    relabelling = Relabelling(start, percent)
    return Recipe("fedrela", (relabelling,) if factor == 1 else (relabelling, LowerRate(start, factor)))
