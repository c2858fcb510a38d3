"""Methods that treat the classifier apart from the rest of the network."""

from typing import Literal

from fedjax_bal.parts import (
    FeatureMatching,
    FrozenHead,
    PriorCalibration,
    PrototypeClassifier,
    RefinedHead,
    SimplexClassifier,
    VirtualRepresentations,
)
from fedjax_bal.recipes.recipe import BelowOne, Count, CountOrZero, NonNegative, Positive, Recipe, Share, checked


@checked
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

    References:
        Oh et al., 2022, Algorithm 1, with updates weighted by number of samples; add `equal_weights` for the authors'
        uniform average.
    """
    if not fine_tune_epochs:
        return Recipe("fedbabu", (FrozenHead(),))
    shown = RefinedHead(
        fine_tune_epochs, fine_tune_batch_size, fine_tune_learning_rate, fine_tune_momentum, evaluation_only=True
    )
    return Recipe("fedbabu", (FrozenHead(), shown))


@checked
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

    References:
        Xu et al., 2023, Figure 1.
    """
    return Recipe("fedavg_ft", (RefinedHead(epochs, batch_size, learning_rate, momentum),))


@checked
def fedetf(scale: Positive = 1.0, absent: Literal["excluded", "one"] = "excluded") -> Recipe:
    """Balanced softmax towards a classifier that is the same fixed simplex for all clients.

    Args:
        scale: start of the trained factor on cosines, above 0; the authors' code has 1, and 10 for two small networks.
        absent: classes that a client lacks are "excluded" from its loss, as the paper's formula has it, or count as
            having "one" row, as in the authors' code. The latter matters for clients with few rows.

    Example:
        >>> [part.slot for part in fedetf().parts]
        ['SimplexClassifier', 'PriorCalibration']

    References:
        Li et al., 2023, without fine-tuning on each client.
    """
    return Recipe("fedetf", (SimplexClassifier(scale), PriorCalibration(0.0, absent=int(absent == "one"))))


@checked
def fednh(rho: Share = 0.9, scale: Positive = 1.0) -> Recipe:
    """A classifier of prototypes, which the server moves towards the clients' features.

    Args:
        rho: how much of the old prototypes stays in a round, in [0, 1].
        scale: start of the trained factor on cosines, above 0; the authors' code has 20 for ResNets.

    Example:
        >>> fednh().parts
        (PrototypeClassifier(rho=0.9, scale=1.0),)

    References:
        Dai et al., 2023, Algorithm 1; the defaults are those of the authors' code.
    """
    return Recipe("fednh", (PrototypeClassifier(rho, scale),))


@checked
def creff(
    per_class: Count = 100,
    match_steps: CountOrZero = 100,
    match_rate: NonNegative = 0.1,
    epochs: Count = 300,
    batch_size: Count = 32,
    learning_rate: NonNegative = 0.01,
) -> Recipe:
    """FedAvg evaluated with a classifier that the server trains on features learned from clients' gradients.

    Args:
        per_class: features of each class, at least 1.
        match_steps: steps on them in a round.
        match_rate: learning rate of these steps, at least 0.
        epochs: passes over the features for the classifier, at least 1.
        batch_size: features a step, at least 1.
        learning_rate: of SGD on the classifier, at least 0.

    Example:
        >>> creff().parts[0].slot
        'FeatureMatching'

    References:
        Shang et al., 2022 (CReFF), Algorithm 1; the defaults are those of the authors' code.
    """
    return Recipe("creff", (FeatureMatching(per_class, match_steps, match_rate, epochs, batch_size, learning_rate),))


@checked
def ccvr(
    per_class: Count = 200, epochs: Count = 1, batch_size: Count = 50, learning_rate: NonNegative = 0.01
) -> Recipe:
    """FedAvg whose classifier is calibrated, before each evaluation, on features drawn by class.

    Every evaluation takes a pass over all clients' rows: evaluate rarely where there are many.

    Args:
        per_class: features drawn of each class, at least 1.
        epochs: passes over them, at least 1.
        batch_size: features a step, at least 1.
        learning_rate: of SGD on the classifier, at least 0; 0 is FedAvg.

    Example:
        >>> ccvr().parts
        (VirtualRepresentations(per_class=200, epochs=1, batch_size=50, learning_rate=0.01),)

    References:
        Luo et al., 2021, Algorithm 1.
    """
    return Recipe("ccvr", (VirtualRepresentations(per_class, epochs, batch_size, learning_rate),))
