"""FedBABU: clients train the body of the network, never its classifier."""

from fedjax_bal.methods.combine import BelowOne, Count, CountOrZero, NonNegative, Recipe, recipe
from fedjax_bal.methods.fedavg_ft import RefinedHead
from fedjax_bal.methods.heads import classifier
from fedjax_bal.methods.part import part
from fedjax_bal.methods.roles import Freeze
from fedjax_bal.types import PyTree


@part
class FrozenHead(Freeze):
    """Keeps the classifier, `params["head"]`, at its random start, which all clients share.

    References:
        FedBABU (Oh et al., 2022), Algorithm 1. Updates are weighted by number of samples; add `equal_weights` for the
        authors' uniform average.
    """

    def frozen(self, params: PyTree) -> PyTree:
        """The classifier."""
        classifier(params)
        return {name: name == "head" for name in params}


@recipe("heads", "oh2022fedbabu")
def fedbabu(
    fine_tune_epochs: CountOrZero = 0,
    fine_tune_learning_rate: NonNegative = 0.01,
    fine_tune_momentum: BelowOne = 0.5,
    fine_tune_batch_size: Count = 50,
) -> Recipe:
    """FedAvg of the body alone; the classifier stays at its random start.

    Args:
        fine_tune_epochs: passes over the server's balanced rows for which the classifier is trained before each
            evaluation; 0, as in the tables of ReBaFL, evaluates it as it is. Rows come with the configuration's
            `auxiliary.per_class`.
        fine_tune_learning_rate: of that training, at least 0.
        fine_tune_momentum: in [0, 1).
        fine_tune_batch_size: rows a step, at least 1.

    Example:
        >>> fedbabu().parts
        (FrozenHead(),)
    """
    if not fine_tune_epochs:
        return Recipe("fedbabu", (FrozenHead(),))
    shown = RefinedHead(
        fine_tune_epochs, fine_tune_batch_size, fine_tune_learning_rate, fine_tune_momentum, evaluation_only=True
    )
    return Recipe("fedbabu", (FrozenHead(), shown))
