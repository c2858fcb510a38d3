"""FedBABU: clients train the body of the network, never its classifier."""

from fedjax_bal.methods.combine import BelowOne, Count, CountOrZero, NonNegative, Recipe, recipe
from fedjax_bal.methods.fedavg_ft import RefinedHead
from fedjax_bal.methods.heads import classifier
from fedjax_bal.methods.roles import Freeze, part
from fedjax_bal.types import PyTree


@part
class FrozenHead(Freeze):
    """Keeps the classifier, `params["head"]`, at its random initialisation, which all clients share.

    References:
        FedBABU (Oh et al., 2022), Algorithm 1. Updates are weighted by number of samples; add `equal_weights` for the
        authors' uniform average.
    """

    def frozen(self, params: PyTree) -> PyTree:
        """Selects the classifier."""
        classifier(params)
        return {name: name == "head" for name in params}


@recipe("heads", "oh2022fedbabu")
def fedbabu(
    fine_tune_epochs: CountOrZero = 0,
    fine_tune_learning_rate: NonNegative = 0.01,
    fine_tune_momentum: BelowOne = 0.5,
    fine_tune_batch_size: Count = 50,
) -> Recipe:
    """FedAvg of the body only; the classifier keeps its random initialisation.

    Args:
        fine_tune_epochs: passes over the server's balanced rows to train the classifier before each evaluation; 0, as
            in the tables of ReBaFL, evaluates it untrained. The configuration's `auxiliary.per_class` provides the
            rows.
        fine_tune_learning_rate: learning rate of this training, at least 0.
        fine_tune_momentum: momentum of this training, in [0, 1).
        fine_tune_batch_size: rows per step, at least 1.

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
