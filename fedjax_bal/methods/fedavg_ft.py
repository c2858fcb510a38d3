"""FedAvg-FT: the server fine-tunes the classifier on balanced rows of its own."""

import jax.numpy as jnp
from jax import lax

from fedjax_bal.data import normalised
from fedjax_bal.methods.combine import BelowOne, Count, NonNegative, Recipe, recipe
from fedjax_bal.methods.heads import retrained
from fedjax_bal.methods.needs import SERVER_ROWS, balanced_rows
from fedjax_bal.methods.part import Need, part, static
from fedjax_bal.methods.roles import Refine
from fedjax_bal.types import Array, Key, ServerContext, Variables


@part
class RefinedHead(Refine):
    """Fine-tunes the classifier of the global model after each round, and goes on from there.

    Attributes:
        epochs: passes over the rows.
        batch_size: rows a step; the last step of a pass takes what is left.
        learning_rate: of SGD.
        momentum: of SGD, fresh each time.
        evaluation_only: whether only the test set sees the fine-tuned classifier, and the next round goes on without.
            The order of rows is drawn again for each evaluation, also if the model is the same as at the last one.

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

    @property
    def needs(self) -> tuple[Need, ...]:
        """Rows of the server's own."""
        return (SERVER_ROWS,)

    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """The global model with a fine-tuned classifier; all else stays as it is, batch statistics included."""
        rows = jnp.asarray(balanced_rows(server.federation))
        # The body doesn't change, so that features are computed once, in evaluation mode.
        head = retrained(
            server.model,
            variables.params,
            _features(variables, server, rows, min(self.batch_size, len(rows))),
            server.federation.labels[rows],
            key,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
        )
        return variables._replace(params={**variables.params, "head": head})


def _features(variables: Variables, server: ServerContext, rows: Array, size: int) -> Array:
    """The classifier's inputs, `Float[R, F]`, some at a time; the last row is repeated to fill the last step."""
    padded = jnp.pad(rows, (0, -len(rows) % size), mode="edge").reshape(-1, size)

    def one(rows: Array) -> Array:
        images = normalised(server.federation.images[rows], server.federation.mean, server.federation.std)
        return server.model.apply(variables, images, train=False)[0].features

    return lax.map(one, padded).reshape(padded.size, -1)[: len(rows)]


@recipe("heads", "xu2023rebafl")
def fedavg_ft(
    epochs: Count = 5, learning_rate: NonNegative = 0.01, momentum: BelowOne = 0.5, batch_size: Count = 50
) -> Recipe:
    """FedAvg whose server fine-tunes the classifier on balanced rows of its own after each round.

    Args:
        epochs: passes over these rows, at least 1. They come with the configuration's `auxiliary.per_class`.
        learning_rate: of SGD on the classifier, at least 0.
        momentum: in [0, 1).
        batch_size: rows a step, at least 1.

    Example:
        >>> fedavg_ft().parts
        (RefinedHead(epochs=5, batch_size=50, learning_rate=0.01, momentum=0.5, evaluation_only=False),)
    """
    return Recipe("fedavg_ft", (RefinedHead(epochs, batch_size, learning_rate, momentum),))
