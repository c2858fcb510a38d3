"""FedAvg-FT: the server fine-tunes the classifier on its own balanced rows."""

import jax.numpy as jnp
from jax import lax

from fedjax_bal.data import normalised
from fedjax_bal.methods.combine import BelowOne, Count, NonNegative, Recipe, recipe
from fedjax_bal.methods.heads import retrain_classifier
from fedjax_bal.methods.needs import SERVER_ROWS, balanced_rows, shared_model
from fedjax_bal.methods.roles import Need, Refine, part, static
from fedjax_bal.types import Array, Key, ServerContext, Variables


@part
class RefinedHead(Refine):
    """Fine-tunes the global model's classifier after each round; the next round starts from the result.

    Attributes:
        epochs: passes over the rows.
        batch_size: rows per step; the last step of a pass takes the remaining rows.
        learning_rate: SGD's learning rate.
        momentum: SGD's momentum, reset each time.
        evaluation_only: whether only evaluation uses the fine-tuned classifier, and training continues without it. The
            order of rows is redrawn for each evaluation, even if the model is unchanged.

    References:
        ReBaFL (Xu et al., 2023), Figure 1, where the rows are 30 test images of each class and the batch size isn't
        stated. Here the rows are the federation's auxiliary set "balanced". For evaluation only: FedBABU (Oh et al.,
        2022), Algorithm 1, where each client fine-tunes on its own rows and is evaluated on its own distribution; here
        the global model is fine-tuned on rows of all classes.
    """

    epochs: int = static(5)
    batch_size: int = static(50)
    learning_rate: float = 0.01
    momentum: float = 0.5
    evaluation_only: bool = static(False)

    @property
    def slot(self) -> str:
        """A separate name for each use, so that both can be combined."""
        return "ShownHead" if self.evaluation_only else "RefinedHead"

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requires rows of the server's own, and a model that the clients use as it is."""
        name = "fedbabu" if self.evaluation_only else "fedavg_ft"
        why = "the classifier that the server makes would be that of a model that no client uses"
        return shared_model(name, why), SERVER_ROWS

    def refine(self, key: Key, variables: Variables, server: ServerContext) -> Variables:
        """Returns the global model with a fine-tuned classifier; all else is unchanged, batch statistics included."""
        federation = server.federation
        rows = jnp.asarray(balanced_rows(federation))
        # The body doesn't change, so features are computed only once, in evaluation mode. The last row is repeated to
        # fill the last batch.
        size = min(self.batch_size, len(rows))
        padded = jnp.pad(rows, (0, -len(rows) % size), mode="edge").reshape(-1, size)

        def features_of(rows: Array) -> Array:
            images = normalised(federation.images[rows], federation.mean, federation.std)
            return server.model.apply(variables, images, train=False)[0].features

        head = retrain_classifier(
            server.model,
            variables.params,
            lax.map(features_of, padded).reshape(padded.size, -1)[: len(rows)],
            federation.labels[rows],
            key,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
        )
        return variables._replace(params={**variables.params, "head": head})


@recipe("heads", "xu2023rebafl")
def fedavg_ft(
    epochs: Count = 5, learning_rate: NonNegative = 0.01, momentum: BelowOne = 0.5, batch_size: Count = 50
) -> Recipe:
    """FedAvg whose server fine-tunes the classifier on its own balanced rows after each round.

    Args:
        epochs: passes over these rows, at least 1. The configuration's `auxiliary.per_class` provides the rows.
        learning_rate: learning rate of SGD on the classifier, at least 0.
        momentum: in [0, 1).
        batch_size: rows per step, at least 1.

    Example:
        >>> fedavg_ft().parts
        (RefinedHead(epochs=5, batch_size=50, learning_rate=0.01, momentum=0.5, evaluation_only=False),)
    """
    return Recipe("fedavg_ft", (RefinedHead(epochs, batch_size, learning_rate, momentum),))
