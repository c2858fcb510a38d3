"""Methods that change the local loss for the sake of classes that a client lacks."""

from typing import Literal

from fedjax_bal.parts import (
    DecayedResampling,
    FeatureTransfer,
    LabelMaskingDistillation,
    LogitCalibration,
    LogitSuppression,
    NotTrueDistillation,
    PredictionEntropy,
    PriorCalibration,
    RestrictedSoftmax,
    VacantClassDistillation,
)
from fedjax_bal.recipes.recipe import Count, NonNegative, Positive, Recipe, Share, checked, readings


def balanced_softmax() -> Recipe:
    """FedAvg whose local loss is calibrated with the client's class prior (BSM-FedAvg).

    Example:
        >>> balanced_softmax().parts
        (PriorCalibration(epsilon=0.0, tau=1.0, counts='local', absent=0),)

    References:
        Ren et al., 2020, eq. 4; in federated learning ReBaFL, eq. 8. It is the generic model of `fedrod`.
    """
    return Recipe("balanced_softmax", (PriorCalibration(0.0),))


@readings(paper={}, code={"prototypes": "global_only", "min_classes": 2, "mu": 0.5})
@checked
def rebafl(
    epsilon: Share = 0.01,
    mu: NonNegative = 0.1,
    scale: NonNegative = 1.0,
    prototypes: Literal["local_override", "global_only"] = "local_override",
    carry: bool = False,
    min_classes: Count = 1,
) -> Recipe:
    """Relaxed balanced softmax and feature augmentation from class prototypes.

    `variant="paper"` or `variant="code"` sets all options in which the paper and the authors' code differ; what is
    given beside it comes first.

    Args:
        epsilon: share of the uniform distribution in the class prior, in [0, 1].
        mu: weight of the feature augmentation, at least 0; at 0 its loss has no effect.
        scale: lambda, the factor on a feature's offset from its prototype.
        prototypes: "local_override" or "global_only".
        carry: keep the prototype of a class that no client delivered.
        min_classes: clients with fewer classes send no prototypes.

    Example:
        >>> [part.slot for part in rebafl().parts]
        ['PriorCalibration', 'FeatureTransfer']

    References:
        Xu et al., 2023, Algorithm 1.
    """
    transfer = FeatureTransfer(mu, epsilon, scale, prototypes, carry, min_classes)
    return Recipe("rebafl", (PriorCalibration(epsilon), transfer))


@readings(paper={}, code={"mode": "soft"})
@checked
def fedrs(alpha: Share = 0.5, mode: Literal["hard", "soft"] = "hard") -> Recipe:
    """Restricted softmax: FedAvg whose local training scales down the logits of classes that a client lacks.

    `variant="paper"` or `variant="code"` sets all options in which the paper and the authors' code differ; what is
    given beside it comes first.

    Args:
        alpha: factor for an absent class, in [0, 1]; 1 is FedAvg.
        mode: "hard", present or absent; "soft", by a class's count relative to the client's largest.

    Example:
        >>> fedrs().parts
        (RestrictedSoftmax(alpha=0.5, mode='hard'),)

    References:
        Li and Zhan, 2021; "soft" is the authors' code, where alpha is one of 0.9, 0.5 and 0.1.
    """
    return Recipe("fedrs", (RestrictedSoftmax(alpha, mode),))


@checked
def fedlc(tau: NonNegative = 1.0) -> Recipe:
    """Logit calibration: FedAvg whose training logits are lowered by a margin, the larger the rarer their class.

    Args:
        tau: size of the margin, at least 0; 0 is FedAvg.

    Example:
        >>> fedlc().parts
        (LogitCalibration(tau=1.0),)

    References:
        Zhang et al., 2022, of whose authors no code is public; ReBaFL compares itself with tau = 1.
    """
    return Recipe("fedlc", (LogitCalibration(tau),))


@checked
def fedvls(weight: NonNegative = 0.1, suppression: NonNegative = 0.005) -> Recipe:
    """Balanced softmax with distillation on the classes that a client lacks, and with small logits for other classes.

    Args:
        weight: lambda, of the distillation, at least 0; 0.1 for ten classes, 0.5 for a hundred.
        suppression: weight of the sum over classes that holds logits down, at least 0.

    Example:
        >>> [part.slot for part in fedvls().parts]
        ['PriorCalibration', 'VacantClassDistillation', 'LogitSuppression']

    References:
        Guo et al., 2025, and the authors' code, whose balanced softmax adds 1e-9 to a prior; here absent classes are
        excluded exactly.
    """
    return Recipe("fedvls", (PriorCalibration(0.0), VacantClassDistillation(weight), LogitSuppression(suppression)))


@checked
def fedlmd(weight: NonNegative = 1.0, temperature: Positive = 1.0) -> Recipe:
    """Distillation from the received model on the classes that a client has little of.

    Args:
        weight: beta, at least 0; 0 is FedAvg.
        temperature: what logits are divided by, above 0.

    Example:
        >>> fedlmd().parts
        (LabelMaskingDistillation(weight=1.0, temperature=1.0),)

    References:
        Lu et al., 2023; the defaults are those of the authors' code.
    """
    return Recipe("fedlmd", (LabelMaskingDistillation(weight, temperature),))


@checked
def fedntd(weight: NonNegative = 1.0, temperature: Positive = 1.0) -> Recipe:
    """Distillation from the received model on all classes but the true one.

    Args:
        weight: beta, at least 0; 0 is FedAvg.
        temperature: what logits are divided by, above 0.

    Example:
        >>> fedntd().parts
        (NotTrueDistillation(weight=1.0, temperature=1.0),)

    References:
        Lee et al., 2022, Algorithm 1; the defaults are those of the authors' configurations.
    """
    return Recipe("fedntd", (NotTrueDistillation(weight, temperature),))


@checked
def balancefl(weight: NonNegative = 1.0, temperature: Positive = 2.0, smoothing: NonNegative = 0.002) -> Recipe:
    """Classes drawn alike, a loss among those that a client has, and distillation on those that it lacks.

    Args:
        weight: lambda, of the distillation, without the usual factor of the squared temperature; at least 0.
        temperature: of the distillation, above 0.
        smoothing: weight of the entropy of predictions, summed over a batch, at least 0.

    Example:
        >>> [part.slot for part in balancefl().parts]
        ['DecayedResampling', 'PriorCalibration', 'VacantClassDistillation', 'PredictionEntropy']

    References:
        Shuai et al., 2022, without its noise on the features of rare classes. The defaults are those of the authors'
        code, which takes the classes of each batch for those of the client, and whose teacher is in training mode; here
        it is in evaluation mode.
    """
    drawn = DecayedResampling(1.0, schedule="fixed")  # by one over the number of the class's samples
    kept = VacantClassDistillation(weight / temperature**2, temperature)
    parts = (drawn, PriorCalibration(0.0, 0.0), kept, PredictionEntropy(smoothing))
    return Recipe("balancefl", parts, drawing="replacement")
