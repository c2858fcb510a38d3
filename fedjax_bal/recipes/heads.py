"""Methods that treat the classifier apart from the rest of the network."""

import math

from fedjax_bal.parts import FrozenHead, RefinedHead
from fedjax_bal.recipes.recipe import Recipe
from fedjax_bal.validate import finite_number, whole_number

_BELOW_ONE = math.nextafter(1.0, 0.0)


def fedbabu(
    fine_tune_epochs: int = 0,
    fine_tune_learning_rate: float = 0.01,
    fine_tune_momentum: float = 0.5,
    fine_tune_batch_size: int = 50,
) -> Recipe:
    """FedAvg of the body alone; the classifier stays at its random start.

    Args:
        fine_tune_epochs: passes over the server's balanced rows for which the classifier is trained before each
            evaluation; 0, as in the tables of ReBaFL, evaluates it as it is. Rows come with the configuration's
            `auxiliary.per_class`.
        fine_tune_learning_rate: of that training, at least 0.
        fine_tune_momentum: in [0, 1).
        fine_tune_batch_size: rows a step, at least 1.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> fedbabu().parts
        (FrozenHead(),)

    References:
        Oh et al., 2022, Algorithm 1, with updates weighted by number of samples.
    """
    shown = RefinedHead(
        epochs=whole_number("fedbabu: fine_tune_epochs", fine_tune_epochs, low=0),
        batch_size=whole_number("fedbabu: fine_tune_batch_size", fine_tune_batch_size),
        learning_rate=finite_number("fedbabu: fine_tune_learning_rate", fine_tune_learning_rate),
        momentum=finite_number("fedbabu: fine_tune_momentum", fine_tune_momentum, high=_BELOW_ONE),
        evaluation_only=True,
    )
    return Recipe("fedbabu", (FrozenHead(), shown) if fine_tune_epochs else (FrozenHead(),))


def fedavg_ft(epochs: int = 5, learning_rate: float = 0.01, momentum: float = 0.5, batch_size: int = 50) -> Recipe:
    """FedAvg whose server fine-tunes the classifier on balanced rows of its own after each round.

    Args:
        epochs: passes over these rows, at least 1. They come with the configuration's `auxiliary.per_class`.
        learning_rate: of SGD on the classifier, at least 0.
        momentum: in [0, 1).
        batch_size: rows a step, at least 1.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> fedavg_ft().parts
        (RefinedHead(epochs=5, batch_size=50, learning_rate=0.01, momentum=0.5, evaluation_only=False),)

    References:
        Xu et al., 2023, Figure 1.
    """
    refined = RefinedHead(
        epochs=whole_number("fedavg_ft: epochs", epochs),
        batch_size=whole_number("fedavg_ft: batch_size", batch_size),
        learning_rate=finite_number("fedavg_ft: learning_rate", learning_rate),
        momentum=finite_number("fedavg_ft: momentum", momentum, high=_BELOW_ONE),
    )
    return Recipe("fedavg_ft", (refined,))
