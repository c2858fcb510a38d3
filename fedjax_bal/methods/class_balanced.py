"""Class-balanced loss: each row is weighted by the inverse of its class's effective number of samples."""

import jax.numpy as jnp
import optax

from fedjax_bal.balance import effective_number_weights
from fedjax_bal.methods.balanced_softmax import Scope, counts_in
from fedjax_bal.methods.combine import Recipe, Share, recipe
from fedjax_bal.methods.roles import Criterion, part, static
from fedjax_bal.types import Array, Context


@part
class ClassBalancedLoss(Criterion):
    r"""Cross-entropy times $w_y$, where $w_c$ is proportional to $(1 - \beta) / (1 - \beta^{n_c})$.

    The weights are scaled so that their mean over the classes that are present is 1.

    Attributes:
        beta: in [0, 1]; 0 is plain cross-entropy, 1 weights by $1 / n_c$.
        counts: whose $n_c$: "local", the client's, or "global", those of all clients together.
        begins: the round, from 0, from which weights apply; above 0 for deferred re-weighting.

    References:
        Cui et al., 2019, section 4; deferred re-weighting: Cao et al., 2019, section 3.3.
    """

    beta: float = 0.9999
    counts: Scope = static("local")
    begins: int = static(0)

    @property
    def first_round(self) -> int:
        """The round from which weights apply."""
        return self.begins

    def losses(self, logits: Array, labels: Array, ctx: Context) -> Array:
        """Returns the loss of each row, `Float[B]`."""
        weights = effective_number_weights(counts_in(ctx, self.counts), self.beta)
        mean = weights.sum() / jnp.maximum((weights > 0).sum(), 1)
        shares = weights / jnp.where(mean > 0, mean, 1.0)
        return shares[labels] * optax.softmax_cross_entropy_with_integer_labels(logits, labels)


@recipe("long_tail", "cui2019effective")
def class_balanced(beta: Share = 0.9999, counts: Scope = "local") -> Recipe:
    """Cross-entropy weighted by the inverse of each class's effective number of samples.

    Args:
        beta: in [0, 1]; 0 is FedAvg, 1 weights by one over the number of samples. The paper tries 0.9, 0.99, 0.999 and
            0.9999.
        counts: whose samples: "local", the client's, or "global", all clients', which clients would have to disclose.

    Example:
        >>> class_balanced(0.99).parts
        (ClassBalancedLoss(beta=0.99, counts='local', begins=0),)
    """
    return Recipe("class_balanced", (ClassBalancedLoss(beta, counts),))
