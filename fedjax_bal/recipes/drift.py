"""Methods against client drift."""

from fedjax_bal.models import FORMS
from fedjax_bal.optim import optimizer
from fedjax_bal.parts import (
    ClientMomentum,
    ControlVariates,
    Decorrelation,
    DynamicRegularisation,
    LateControlVariates,
    ModelContrast,
    NormalisedAveraging,
    PrototypeDistance,
    Proximal,
)
from fedjax_bal.recipes.recipe import BelowOne, Count, NonNegative, PositiveShare, Recipe, checked, positive
from fedjax_bal.validate import one_of

VARIANTS = {"official": None, "rebafl_code": LateControlVariates(clip=10.0), "cbfl_code": LateControlVariates()}
"""Forms of SCAFFOLD; the part, where it isn't the paper's."""


@checked
def scaffold(scaffold_momentum: bool = False, variant: str = "official") -> Recipe:
    """Control variates against client drift, option II, updates averaged without weights.

    Args:
        scaffold_momentum: allow a local momentum, dividing the drift by the equivalent number of plain steps.
        variant: "official", or what the code of ReBaFL or CBFL calls SCAFFOLD: "rebafl_code" or "cbfl_code". These two
            are no good methods. They reproduce the very low rows in those papers' tables, which come from how the code
            treats momentum and the server's control variate; see `fedjax_bal.parts.scaffold`.

    Raises:
        ValueError: an unknown variant, or scaffold_momentum for another than the official one.

    Example:
        >>> scaffold().parts
        (ControlVariates(with_momentum=False),)
        >>> scaffold(variant="rebafl_code").parts
        (LateControlVariates(clip=10.0),)

    References:
        Karimireddy et al., 2020, Algorithm 1.
    """
    other = VARIANTS[one_of("scaffold: variant", variant, VARIANTS)]
    if other is None:
        return Recipe("scaffold", (ControlVariates(with_momentum=scaffold_momentum),))
    if scaffold_momentum:
        raise ValueError(
            f"scaffold: scaffold_momentum: received true beside {variant}, which divides the drift by plain steps "
            "whatever the momentum: leave it out"
        )
    return Recipe("scaffold", (other,))


@checked
def moon(mu: NonNegative = 1.0, temperature: float = 0.5, projection: str = "head", width: Count = 256) -> Recipe:
    """A contrastive loss that draws a client's representations to the global model's and away from its own last ones.

    Args:
        mu: weight of the contrastive loss, at least 0.
        temperature: what cosines are divided by, above 0.
        projection: "head" puts two dense layers between features and classifier, as the authors' code does; "side" puts
            them beside the classifier, which leaves the network that is evaluated as it is; "none" compares features.
        width: of the projection, without effect for "none".

    Example:
        >>> moon(mu=5.0).parts
        (ModelContrast(mu=5.0, temperature=0.5, projection='head', width=256),)

    References:
        Li et al., 2021, Algorithm 1.
    """
    temperature = positive("moon: temperature", temperature, "; the authors use 0.5")
    return Recipe("moon", (ModelContrast(mu, temperature, one_of("moon: projection", projection, FORMS), width),))


@checked
def feddyn(alpha: NonNegative = 0.01, adaptive: bool = True, clip: NonNegative | None = 10.0) -> Recipe:
    """Dynamic regularisation: a penalty that remembers each client's drift, and a server that adds their mean.

    Args:
        alpha: weight of the penalty, at least 0. At 0 clients train as in FedAvg, but the server still adds their mean
            drift.
        adaptive: divide alpha by the client's size relative to the mean size.
        clip: largest norm of a local gradient; None or 0 for no limit.

    Example:
        >>> feddyn(alpha=1e-4, adaptive=False, clip=None).parts
        (DynamicRegularisation(alpha=0.0001, adaptive=False, clip=None, in_loss=True),)

    References:
        Acar et al., 2021, Algorithm 1. The defaults are those of the authors' code on CIFAR; ReBaFL compares itself
        with alpha=1e-4, not adaptive.
    """
    return Recipe("feddyn", (DynamicRegularisation(alpha, adaptive, clip or None),))


@checked
def fednova(mu: NonNegative = 0.0, server_momentum: BelowOne = 0.0) -> Recipe:
    """Normalised averaging: updates divided by how far their local steps reach, momentum included.

    Args:
        mu: weight of a proximal term, at least 0. It is part of how far steps reach: set it here, not with fedprox.
        server_momentum: momentum of the server, in [0, 1).

    Example:
        >>> fednova(mu=0.01).parts
        (NormalisedAveraging(mu=0.01), Proximal(mu=0.01))

    References:
        Wang et al., 2020, section 4. The proximal term is part of the loss, so that momentum sees it; the authors' code
        adds it behind the momentum. As there, the effective number of steps leaves a momentum rho out once mu is set:
        over many local steps, updates are then shorter by a factor of (1 - rho) / (2 - rho).
    """
    return Recipe(
        "fednova",
        (NormalisedAveraging(mu), Proximal(mu)) if mu else (NormalisedAveraging(),),
        server_optimizer=optimizer("sgd", 1.0, momentum=server_momentum) if server_momentum else None,
    )


@checked
def fedcm(alpha: PositiveShare = 0.1) -> Recipe:
    """Client-level momentum: every local gradient is mixed with the direction of the last mean update.

    Args:
        alpha: share of the client's own gradient, above 0; 1 is FedAvg. Needs plain SGD on clients.

    Example:
        >>> fedcm().parts
        (ClientMomentum(alpha=0.1),)

    References:
        Xu et al., 2021; the default is that of github.com/woodenchild95/FL-Simulator. Updates are averaged by number of
        samples; add `equal_weights` for the paper's uniform average.
    """
    return Recipe("fedcm", (ClientMomentum(alpha),))


@checked
def fedproto(weight: NonNegative = 1.0) -> Recipe:
    """FedAvg whose clients keep features near the prototype of their class over all clients.

    Args:
        weight: lambda, at least 0; 0 is FedAvg.

    Example:
        >>> fedproto(0.1).parts
        (PrototypeDistance(weight=0.1),)

    References:
        Tan et al., 2022, Algorithm 1, as a regulariser of an averaged model; the default is that of the authors' code.
    """
    return Recipe("fedproto", (PrototypeDistance(weight),))


@checked
def feddecorr(weight: NonNegative = 0.1) -> Recipe:
    """FedAvg whose clients keep features uncorrelated, against their collapse onto few dimensions.

    Args:
        weight: beta, at least 0; 0 is FedAvg.

    Example:
        >>> feddecorr().parts
        (Decorrelation(weight=0.1),)

    References:
        Shi et al., 2023, in the form of the authors' code, whose default this is.
    """
    return Recipe("feddecorr", (Decorrelation(weight),))
