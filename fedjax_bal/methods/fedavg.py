"""Federated averaging: local SGD, updates averaged by number of samples."""

from fedjax_bal.methods.combine import Recipe, recipe


@recipe("averaging", "mcmahan2017fedavg")
def fedavg() -> Recipe:
    """Federated averaging: local SGD, updates averaged by number of samples.

    Example:
        >>> fedavg().parts
        ()

    References:
        McMahan et al., 2017, Algorithm 1.
    """
    return Recipe("fedavg")
