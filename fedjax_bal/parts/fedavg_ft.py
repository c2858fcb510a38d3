"""Fine-tuning the classifier on balanced rows that the server holds."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.data import normalised
from fedjax_bal.parts.auxiliary import balanced_rows
from fedjax_bal.parts.fedbabu import checked_head
from fedjax_bal.parts.part import RunSetting, part, static
from fedjax_bal.parts.roles import Refine
from fedjax_bal.types import Array, Federation, Key, Model, PyTree, ServerContext, Variables


class HeadSchedule(NamedTuple):
    """How a classifier is fine-tuned.

    Attributes:
        epochs: passes over the rows.
        batch_size: rows a step; the last step of a pass takes what is left.
        learning_rate: of SGD.
        momentum: of SGD, fresh each time.
    """

    epochs: int
    batch_size: int
    learning_rate: Array | float
    momentum: Array | float


def fine_tuned(
    key: Key, variables: Variables, model: Model, federation: Federation, schedule: HeadSchedule
) -> Variables:
    """Trains the classifier alone on the server's own rows.

    All else stays as it is, batch statistics included, so that the features are computed once, in evaluation mode.

    Args:
        key: decides the order of the rows, which is another one in each epoch.
        variables: the model to start from.
        model: the network; the classifier's parameters are `params["head"]`.
        federation: its auxiliary set "balanced" says which rows.
        schedule: how.

    Returns:
        The variables with another classifier.

    Raises:
        ValueError: there are no such rows, or no such classifier.
    """
    rows = jnp.asarray(balanced_rows(federation))
    size = min(schedule.batch_size, len(rows))
    steps = -(-len(rows) // size)
    features = _features(variables, model, federation, rows, steps, size)
    labels = federation.labels[rows]
    optimizer = optax.sgd(schedule.learning_rate, schedule.momentum)

    def one(carry: tuple[PyTree, PyTree], places: Array) -> tuple[tuple[PyTree, PyTree], None]:
        head, state = carry

        def loss(head: PyTree) -> Array:
            logits = model.head({**variables.params, "head": head}, features.at[places].get(mode="clip"))
            return _mean_cross_entropy(logits, labels.at[places].get(mode="clip"), places < len(rows))

        updates, state = optimizer.update(jax.grad(loss)(head), state)
        return (jax.tree.map(jnp.add, head, updates), state), None

    head = checked_head(variables.params)
    order = _order(key, schedule.epochs, len(rows), steps, size)
    (head, _), _ = lax.scan(one, (head, optimizer.init(head)), order)
    return variables._replace(params={**variables.params, "head": head})


@part
class RefinedHead(Refine):
    """Fine-tunes the classifier of the global model after each round, and goes on from there.

    Attributes:
        epochs: passes over the rows.
        batch_size: rows a step.
        learning_rate: of SGD.
        momentum: of SGD.
        evaluation_only: whether only the test set sees the fine-tuned classifier, and the next round goes on without.

    References:
        ReBaFL (Xu et al., 2023), Figure 1, where the rows are 30 test images of each class. Here they come from
        wherever the federation's auxiliary set "balanced" does. The size of a batch is not stated. For evaluation only,
        FedBABU (Oh et al., 2022), Algorithm 1, where each client fine-tunes on its own rows and is evaluated on its own
        distribution; here it is the one global model, on rows of all classes.
    """

    epochs: int = static(5)
    batch_size: int = static(50)
    learning_rate: float = 0.01
    momentum: float = 0.5
    evaluation_only: bool = static(False)

    @property
    def slot(self) -> str:
        """One for each use, so that both go together."""
        return "ShownHead" if self.evaluation_only else "RefinedHead"

    def check(self, setting: RunSetting) -> None:
        """Refuses a federation whose server has no rows to fine-tune on."""
        balanced_rows(setting.federation)

    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """The global model with a fine-tuned classifier."""
        schedule = HeadSchedule(self.epochs, self.batch_size, self.learning_rate, self.momentum)
        return fine_tuned(key, variables, server.model, server.federation, schedule)


def _features(variables: Variables, model: Model, federation: Federation, rows: Array, steps: int, size: int) -> Array:
    """`Float[steps * size, F]`; those behind the last row repeat it."""
    padded = jnp.pad(rows, (0, steps * size - len(rows)), mode="edge").reshape(steps, size)

    def one(rows: Array) -> Array:
        images = normalised(federation.images[rows], federation.mean, federation.std)
        return model.apply(variables, images, train=False)[0].features

    features = lax.map(one, padded)
    return features.reshape(steps * size, -1)


def _order(key: Key, epochs: int, rows: int, steps: int, size: int) -> Array:
    """Places among the rows, `Int[epochs * steps, size]`; each epoch has each one once, and padding at its end."""
    own = jax.vmap(lambda epoch: jax.random.permutation(jax.random.fold_in(key, epoch), rows))(jnp.arange(epochs))
    padding = ((0, 0), (0, steps * size - rows))
    return jnp.pad(own, padding, constant_values=rows).reshape(epochs * steps, size)


def _mean_cross_entropy(logits: Array, labels: Array, real: Array) -> Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.where(real, losses, 0.0).sum() / jnp.maximum(real.sum(), 1)
