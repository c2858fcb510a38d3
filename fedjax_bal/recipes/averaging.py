"""Federated averaging, and what changes the server or adds a plain penalty."""

import math

from fedjax_bal.optim import Optimizer, optimizer
from fedjax_bal.parts import Proximal
from fedjax_bal.recipes.recipe import Recipe
from fedjax_bal.validate import finite_number

_BELOW_ONE = math.nextafter(1.0, 0.0)


def fedavg() -> Recipe:
    """Federated averaging: local SGD, updates averaged by number of samples.

    Example:
        >>> fedavg().parts
        ()

    References:
        McMahan et al., 2017, Algorithm 1.
    """
    return Recipe("fedavg")


def fedprox(mu: float = 0.001) -> Recipe:
    """FedAvg with a proximal term.

    Args:
        mu: weight of the penalty, at least 0.

    Raises:
        ValueError: mu out of range.

    Example:
        >>> fedprox(0.01).parts
        (Proximal(mu=0.01),)

    References:
        Li et al., 2020, Algorithm 2, without its emulation of partial work.
    """
    return Recipe("fedprox", (Proximal(finite_number("fedprox: mu", mu)),))


def fedavgm(momentum: float = 0.9, learning_rate: float = 1.0) -> Recipe:
    """FedAvg with momentum on the server.

    Args:
        momentum: beta, in [0, 1).
        learning_rate: the server's learning rate.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> fedavgm().server_optimizer.options
        {'momentum': 0.9}

    References:
        Hsu et al., 2019, FedAvgM: v is beta v plus the mean update, and w moves by v.
    """
    momentum = finite_number("fedavgm: momentum", momentum, high=_BELOW_ONE)
    rate = finite_number("fedavgm: learning_rate", learning_rate)
    return Recipe("fedavgm", server_optimizer=optimizer("sgd", rate, momentum=momentum))


def fedadam(learning_rate: float = 0.01, beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 0.001) -> Recipe:
    r"""FedAvg with Adam on the server.

    Args:
        learning_rate: the server's learning rate.
        beta_1: decay of the first moment m, in [0, 1).
        beta_2: decay of the second moment v, in [0, 1).
        tau: adaptivity, added to the root of the second moment; above 0.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> fedadam().server_optimizer.options
        {'b1': 0.9, 'b2': 0.99, 'eps': 0.001}

    References:
        Reddi et al., 2021, Algorithm 2: $w \leftarrow w + \eta m / (\sqrt{v} + \tau)$. This is optax's Adam, which
        begins with v = 0, not $\tau^2$, and corrects both moments for their zero start, as the paper does not: in the
        first rounds it takes longer steps where updates are small.
    """
    return Recipe("fedadam", server_optimizer=_adaptive("fedadam", "adam", learning_rate, beta_1, beta_2, tau))


def fedyogi(learning_rate: float = 0.01, beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 0.001) -> Recipe:
    r"""FedAvg with Yogi on the server, whose second moment follows that of the updates more slowly than Adam's.

    Args:
        learning_rate: the server's learning rate.
        beta_1: decay of the first moment m, in [0, 1).
        beta_2: decay of the second moment v, in [0, 1).
        tau: adaptivity, added to the root of the second moment; above 0.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> fedyogi().server_optimizer.name
        'yogi'

    References:
        Reddi et al., 2021, Algorithm 2: $v \leftarrow v - (1 - \beta_2) \Delta^2 sign(v - \Delta^2)$ for the mean
        update $\Delta$. This is optax's Yogi, which corrects both moments for the first rounds, as the paper does not,
        and begins with 1e-6 in both whatever tau is, where the paper has m = 0 and v = $\tau^2$: until that has
        decayed, parameters drift by up to about a thousandth of the learning rate a round.
    """
    return Recipe("fedyogi", server_optimizer=_adaptive("fedyogi", "yogi", learning_rate, beta_1, beta_2, tau))


def fedadagrad(learning_rate: float = 0.1, tau: float = 0.001) -> Recipe:
    r"""FedAvg with Adagrad on the server.

    Args:
        learning_rate: the server's learning rate.
        tau: adaptivity; above 0.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> sorted(fedadagrad(tau=0.5).server_optimizer.options.items())
        [('eps', 0.25), ('initial_accumulator_value', 0.25)]

    References:
        Reddi et al., 2021, Algorithm 2, with $\beta_1 = 0$ as in its experiments: v is $\tau^2$ plus the sum of the
        squared updates. optax divides by $\sqrt{v + \tau^2}$ where the paper has $\sqrt{v} + \tau$, so that small
        updates go at most 1.42 times as far.
    """
    rate = finite_number("fedadagrad: learning_rate", learning_rate)
    square = _above_zero("fedadagrad: tau", tau) ** 2
    return Recipe(
        "fedadagrad", server_optimizer=optimizer("adagrad", rate, initial_accumulator_value=square, eps=square)
    )


def _adaptive(recipe: str, name: str, learning_rate: float, beta_1: float, beta_2: float, tau: float) -> Optimizer:
    return optimizer(
        name,
        finite_number(f"{recipe}: learning_rate", learning_rate),
        b1=finite_number(f"{recipe}: beta_1", beta_1, high=_BELOW_ONE),
        b2=finite_number(f"{recipe}: beta_2", beta_2, high=_BELOW_ONE),
        eps=_above_zero(f"{recipe}: tau", tau),
    )


def _above_zero(name: str, value: float) -> float:
    if finite_number(name, value) == 0:
        raise ValueError(f"{name}: received 0, must be above 0; it keeps the division by small updates finite")
    return float(value)
