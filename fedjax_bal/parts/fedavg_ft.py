"""FedAvg-FT: the server fine-tunes the classifier on balanced rows of its own."""

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.data import normalised
from fedjax_bal.parts.auxiliary import balanced_rows
from fedjax_bal.parts.fedbabu import classifier
from fedjax_bal.parts.part import RunSetting, part, static
from fedjax_bal.parts.roles import Refine
from fedjax_bal.types import Array, Key, PyTree, ServerContext, Variables


@part
class RefinedHead(Refine):
    """Fine-tunes the classifier of the global model after each round, and goes on from there.

    Attributes:
        epochs: passes over the rows.
        batch_size: rows a step; the last step of a pass takes what is left.
        learning_rate: of SGD.
        momentum: of SGD, fresh each time.
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
        """The global model with a fine-tuned classifier; all else stays as it is, batch statistics included."""
        rows = jnp.asarray(balanced_rows(server.federation))
        size = min(self.batch_size, len(rows))
        steps = -(-len(rows) // size)
        # The body doesn't change, so that features are computed once, in evaluation mode.
        features = _features(variables, server, rows, steps, size)
        labels = server.federation.labels[rows]
        optimizer = optax.sgd(self.learning_rate, self.momentum)

        def step(carry: tuple[PyTree, PyTree], places: Array) -> tuple[tuple[PyTree, PyTree], None]:
            head, state = carry

            def loss(head: PyTree) -> Array:
                own = features.at[places].get(mode="clip")
                logits = server.model.head({**variables.params, "head": head}, own)
                return _mean_cross_entropy(logits, labels.at[places].get(mode="clip"), places < len(rows))

            updates, state = optimizer.update(jax.grad(loss)(head), state)
            return (jax.tree.map(jnp.add, head, updates), state), None

        head = classifier(variables.params)
        order = _order(key, self.epochs, len(rows), steps, size)
        (head, _), _ = lax.scan(step, (head, optimizer.init(head)), order)
        return variables._replace(params={**variables.params, "head": head})


def _features(variables: Variables, server: ServerContext, rows: Array, steps: int, size: int) -> Array:
    """The classifier's inputs, `Float[steps * size, F]`; the last row is repeated to fill the last step."""
    padded = jnp.pad(rows, (0, steps * size - len(rows)), mode="edge").reshape(steps, size)

    def one(rows: Array) -> Array:
        images = normalised(server.federation.images[rows], server.federation.mean, server.federation.std)
        return server.model.apply(variables, images, train=False)[0].features

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
