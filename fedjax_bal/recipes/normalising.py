"""Methods against clients that take unequal numbers of steps."""

import math

from fedjax_bal.checks import finite_number
from fedjax_bal.optimizers import optimizer
from fedjax_bal.parts.normalised import NormalisedAveraging
from fedjax_bal.parts.proximal import Proximal
from fedjax_bal.recipes.recipe import Recipe


def fednova(mu: float = 0.0, server_momentum: float = 0.0) -> Recipe:
    """Normalised averaging: updates divided by how far their local steps reach, momentum included.

    Args:
        mu: weight of a proximal term, at least 0. It is part of how far steps reach: set it here, not with fedprox.
        server_momentum: momentum of the server, in [0, 1).

    Raises:
        ValueError: a value out of range.

    Example:
        >>> fednova(mu=0.01).parts
        (NormalisedAveraging(mu=0.01), Proximal(mu=0.01))

    References:
        Wang et al., 2020, section 4. The proximal term is part of the loss, so that momentum sees it; the authors' code
        adds it behind the momentum. As there, the effective number of steps leaves a momentum rho out once mu is set:
        over long visits, updates are then shorter by a factor of (1 - rho) / (2 - rho).
    """
    mu = finite_number("fednova: mu", mu)
    momentum = finite_number("fednova: server_momentum", server_momentum, high=math.nextafter(1.0, 0.0))
    return Recipe(
        "fednova",
        (NormalisedAveraging(mu), Proximal(mu)) if mu else (NormalisedAveraging(),),
        server_optimizer=optimizer("sgd", 1.0, momentum=momentum) if momentum else None,
    )
