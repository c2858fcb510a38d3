"""Losses of central long-tailed learning, on the clients, weights that follow training, and calibrated teachers."""

from fedjax_bal.parts import (
    SCOPES,
    CalibratedDistillation,
    ClassBalancedLoss,
    Disentangling,
    DualWeights,
    FocalLoss,
    GradientBalancer,
    LabelMargins,
    PriorCalibration,
    RatioLoss,
)
from fedjax_bal.recipes.recipe import Count, CountOrZero, NonNegative, Positive, Recipe, Share, checked
from fedjax_bal.validate import one_of


@checked
def class_balanced(beta: Share = 0.9999, counts: str = "local") -> Recipe:
    """Cross-entropy weighted by the inverse of each class's effective number of samples.

    Args:
        beta: in [0, 1]; 0 is FedAvg, 1 weighs by one over the number of samples. The paper tries 0.9, 0.99, 0.999 and
            0.9999.
        counts: whose samples: "local", the client's, or "global", all clients', which they would have to disclose.

    Example:
        >>> class_balanced(0.99).parts
        (ClassBalancedLoss(beta=0.99, counts='local', begins=0),)

    References:
        Cui et al., 2019, section 4.
    """
    return Recipe("class_balanced", (ClassBalancedLoss(beta, one_of("class_balanced: counts", counts, SCOPES)),))


@checked
def focal(gamma: NonNegative = 2.0) -> Recipe:
    """Cross-entropy in which rows that the model already classifies well count less.

    Args:
        gamma: focusing, at least 0; 0 is FedAvg.

    Example:
        >>> focal().parts
        (FocalLoss(gamma=2.0),)

    References:
        Lin et al., 2017, eq. 4, whose default this is; in federated learning Sarkar et al., 2020, without their
        selection of clients.
    """
    return Recipe("focal", (FocalLoss(gamma),))


@checked
def logit_adjustment(tau: NonNegative = 1.0, counts: str = "local", epsilon: Share = 0.0) -> Recipe:
    """Cross-entropy of logits to which tau times the log of the class prior is added.

    Args:
        tau: the strength, at least 0. With 1 and a client's own counts this is `balanced_softmax`.
        counts: whose prior: "local", the client's, or "global", that of all clients' rows, which they would have to
            disclose.
        epsilon: share of the uniform distribution in the prior, in [0, 1]. At 0 a class without samples is excluded.

    Example:
        >>> logit_adjustment(1.5, "global").parts
        (PriorCalibration(epsilon=0.0, tau=1.5, counts='global', absent=0),)

    References:
        Menon et al., 2021, eq. 10.
    """
    prior = PriorCalibration(epsilon, tau, one_of("logit_adjustment: counts", counts, SCOPES))
    return Recipe("logit_adjustment", (prior,))


@checked
def ldam(
    margin: NonNegative = 0.5,
    scale: Positive = 30.0,
    reweight_from: CountOrZero | None = None,
    beta: Share = 0.9999,
    counts: str = "local",
) -> Recipe:
    """Larger margins for rarer classes, on a classifier of cosines, and class-balanced weights late in training.

    Args:
        margin: that of the rarest class, at least 0.
        scale: factor on cosines, above 0.
        reweight_from: the round, from 0, from which weights apply (LDAM-DRW): in the paper after four fifths of
            training, 160 epochs of 200. None for never.
        beta: of the weights, see `class_balanced`.
        counts: whose samples: "local", the client's, or "global", all clients', which they would have to disclose.

    Example:
        >>> ldam().parts
        (LabelMargins(margin=0.5, scale=30.0, counts='local'),)
        >>> [part.slot for part in ldam(reweight_from=160).parts]
        ['LabelMargins', 'ClassBalancedLoss']

    References:
        Cao et al., 2019, section 3, and the authors' code, where the weighted losses of a batch are divided by the
        sum of their weights, here by their number.
    """
    one_of("ldam: counts", counts, SCOPES)
    margins = LabelMargins(margin, scale, counts)
    if reweight_from is None:
        return Recipe("ldam", (margins,))
    return Recipe("ldam", (margins, ClassBalancedLoss(beta, counts, reweight_from)))


@checked
def lade(weight: NonNegative = 0.1, regularisation: NonNegative = 0.1, counts: str = "local") -> Recipe:
    """Balanced softmax with a term that disentangles logits from the class prior of the training rows.

    Args:
        weight: alpha, of that term, at least 0; 0 is balanced softmax.
        regularisation: lambda, of the squares in it, at least 0.
        counts: whose prior: "local", the client's, or "global", that of all clients' rows, which they would have to
            disclose.

    Example:
        >>> [part.slot for part in lade().parts]
        ['PriorCalibration', 'Disentangling']

    References:
        Hong et al., 2021, and the authors' code with its values for CIFAR-100, for a balanced test set: its
        configuration has lambda 0.1, the command in its README 0.01.
    """
    one_of("lade: counts", counts, SCOPES)
    return Recipe("lade", (PriorCalibration(0.0, 1.0, counts), Disentangling(weight, regularisation, counts)))


@checked
def ratio_loss(alpha: NonNegative = 1.0, beta: NonNegative = 0.1) -> Recipe:
    """Cross-entropy with class weights that the server estimates on a few rows of its own.

    Args:
        alpha: weight of the plain loss, at least 0.
        beta: weight of the monitored ratios, at least 0; with 0 and alpha = 1 this is FedAvg. The server's rows come
            with the configuration's `auxiliary.per_class`.

    Example:
        >>> ratio_loss().parts
        (RatioLoss(alpha=1.0, beta=0.1),)

    References:
        Wang et al., 2021.
    """
    return Recipe("ratio_loss", (RatioLoss(alpha, beta),))


@checked
def fedgrab(proportional: NonNegative = 10.0, integral: NonNegative = 0.01, derivative: NonNegative = 0.1) -> Recipe:
    """A binary loss for each class, whose controller balances the gradients that raise its logit and that lower it.

    Args:
        proportional: gain on the imbalance of the gradients so far, at least 0; with all gains 0 this is FedAvg with a
            binary loss for each class.
        integral: gain on its sum over local steps, at least 0.
        derivative: gain on its last change, at least 0.

    Example:
        >>> fedgrab().parts
        (GradientBalancer(proportional=10.0, integral=0.01, derivative=0.1),)

    References:
        Xiao et al., 2023, without its estimate of the global class prior; the defaults are those of the authors' code.
    """
    return Recipe("fedgrab", (GradientBalancer(proportional, integral, derivative),))


@checked
def climb(rate: NonNegative = 1.0, tolerance: NonNegative = 1.0, interval: Count = 5) -> Recipe:
    """FedAvg in which the clients with the highest losses weigh more and more, instead of the largest ones.

    Args:
        rate: of the dual variables, at least 0; 0 is FedAvg whose clients weigh the same.
        tolerance: how far a client's loss may exceed the mean, at least 0.
        interval: rounds from one change of the dual variables to the next.

    Example:
        >>> climb(tolerance=0.1).parts
        (DualWeights(rate=1.0, tolerance=0.1, interval=5),)

    References:
        Shen et al., 2022; the defaults are those of the authors' code.
    """
    return Recipe("climb", (DualWeights(rate, tolerance, interval),))


@checked
def fedic(
    share: Share = 0.5,
    temperature: Positive = 2.0,
    learning_rate: NonNegative = 0.001,
    steps: CountOrZero = 100,
    batch_size: Count = 20,
    distillation_batch: Count = 128,
) -> Recipe:
    """FedAvg whose mean model a server trains on balanced rows of its own, with all clients' models for a teacher.

    Args:
        share: lambda, of the distillation in the loss, in [0, 1]. The rows come with the configuration's
            `auxiliary.per_class`.
        temperature: of the distillation, above 0.
        learning_rate: of Adam, at least 0.
        steps: of each of the three trainings in a round: of a fine-tuned model, the teacher and the mean model.
        batch_size: rows a step.
        distillation_batch: rows a step of the distillation.

    Example:
        >>> [part.slot for part in fedic().parts]
        ['CalibratedDistillation']

    References:
        Shang et al., 2022 (FedIC); the defaults are those of the authors' code.
    """
    part = CalibratedDistillation(share, temperature, learning_rate, steps, batch_size, distillation_batch)
    return Recipe("fedic", (part,))
