"""Methods that bend each client's loss towards the optimum of the whole."""

from fedjax_bal.checks import finite_number, switch
from fedjax_bal.parts.dynamic import DynamicRegularisation
from fedjax_bal.recipes.recipe import Recipe


def feddyn(alpha: float = 0.01, adaptive: bool = True, clip: float | None = 10.0) -> Recipe:
    """Dynamic regularisation: a penalty that remembers each client's drift, and a server that adds their mean.

    Args:
        alpha: weight of the penalty, at least 0. At 0 clients train as in FedAvg, but the server still adds their mean
            drift.
        adaptive: divide alpha by the client's size relative to the mean size.
        clip: largest norm of a local gradient; None or 0 for no limit.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> feddyn(alpha=1e-4, adaptive=False, clip=None).parts
        (DynamicRegularisation(alpha=0.0001, adaptive=False, clip=None),)

    References:
        Acar et al., 2021, Algorithm 1. The defaults are those of the authors' code on CIFAR; ReBaFL compares itself
        with alpha=1e-4, not adaptive.
    """
    limit = finite_number("feddyn: clip", clip) if clip is not None else None
    part = DynamicRegularisation(
        alpha=finite_number("feddyn: alpha", alpha),
        adaptive=switch("feddyn: adaptive", adaptive),
        clip=limit or None,
    )
    return Recipe("feddyn", (part,))
