"""Methods by which every client gets a model of its own, and training without others.

A client's own test rows, `evaluation.client_test` in a configuration, show what its model is worth: `client_accuracy`
is that of all clients' own models. The test set sees the global model, whose personal leaves stay as initialised.

Centralised training is FedAvg with one client that has all rows and always takes part: `data.partition.iid(rng, labels,
1)`, or beside other methods of a configuration (availability and delivery are round by round, which no recipe decides)

    {name: centralised, recipe: fedavg, partition: {scheme: iid, clients: 1}, selection: {clients_per_round: 1},
     availability: {name: always}, delivery: {name: always}}
"""

from fedjax_bal.parts import (
    FrozenHead,
    HeadThenBody,
    OwnHead,
    OwnModel,
    OwnNormalisation,
    PriorCalibration,
    RealignedHeads,
    ResidualHead,
    SeparateModel,
)
from fedjax_bal.recipes.recipe import BelowOne, CountOrZero, NonNegative, Positive, Recipe, Share, checked


def fedper() -> Recipe:
    """FedAvg of the body; the classifier stays with each client.

    Example:
        >>> fedper().parts
        (OwnHead(),)

    References:
        Arivazhagan et al., 2019, Algorithms 1 and 2, with one personal layer.
    """
    return Recipe("fedper", (OwnHead(),))


@checked
def fedrep(head_share: Share = 0.5) -> Recipe:
    """FedPer whose clients train first their classifier, on the body received, and then the body.

    Args:
        head_share: share of a client's local steps for the classifier, in [0, 1]. With the authors' 10 epochs for the
            classifier and 1 for the body it is 10 / 11, and the number of local epochs 11.

    Example:
        >>> fedrep().parts
        (OwnHead(), HeadThenBody(head_share=0.5))

    References:
        Collins et al., 2021, Algorithm 1.
    """
    return Recipe("fedrep", (OwnHead(), HeadThenBody(head_share)))


def fedbn() -> Recipe:
    """FedAvg of all but normalisation layers, which stay with each client, running statistics included.

    Example:
        >>> fedbn().parts
        (OwnNormalisation(),)

    References:
        Li, Jiang et al., 2021, Algorithm 1.
    """
    return Recipe("fedbn", (OwnNormalisation(),))


@checked
def ditto(attraction: NonNegative = 0.1) -> Recipe:
    """FedAvg, and beside it a model of each client's own that is held near the global one.

    Args:
        attraction: lambda, the weight of the squared distance, at least 0; 0 is `local` for the own models.

    Example:
        >>> ditto().parts
        (SeparateModel(attraction=0.1),)

    References:
        Li, Hu et al., 2021, Algorithm 1, with as many steps for the own model as for the global one. Updates are
        averaged by number of samples; add `equal_weights` for the paper's uniform average.
    """
    return Recipe("ditto", (SeparateModel(attraction),))


def fedrod() -> Recipe:
    """Balanced softmax for the global model, and beside its classifier one of each client's own.

    The test set sees the global model, which is that of `balanced_softmax`; clients' own test rows see the
    personalised ones.

    Example:
        >>> fedrod().parts
        (PriorCalibration(epsilon=0.0, tau=1.0, counts='local', absent=0), ResidualHead())

    References:
        Chen and Chao, 2022, Algorithm 1, with a linear personalised classifier and gamma = 1.
    """
    return Recipe("fedrod", (PriorCalibration(0.0), ResidualHead()))


@checked
def fedloge(sparsity: BelowOne = 0.6, norm: Positive = 1.7, steps: CountOrZero = 10_000) -> Recipe:
    """A fixed sparse classifier for the body, and beside it one that all share and one of each client's own.

    The test set sees the shared one, its class vectors brought to one norm; clients' own test rows see it with the
    norms of their own.

    Args:
        sparsity: share of zeros in the fixed classifier, in [0, 1).
        norm: of class vectors in evaluation, above 0.
        steps: which drive the fixed class vectors apart, once before training.

    Example:
        >>> [part.slot for part in fedloge().parts]
        ['FrozenHead', 'RealignedHeads']

    References:
        Xiao et al., 2024; the defaults are those of the authors' code.
    """
    return Recipe("fedloge", (FrozenHead(), RealignedHeads(sparsity, norm, steps)))


def local() -> Recipe:
    """Every client trains a model of its own on its own rows; nothing is sent.

    Example:
        >>> local().parts
        (OwnModel(),)

    References:
        The baseline that federated learning should beat, as in Smith et al., 2017, section 5.
    """
    return Recipe("local", (OwnModel(),))
