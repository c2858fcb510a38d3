"""FedAvg with momentum, Adam, Yogi or Adagrad on the server."""

from typing import Any, Literal

from fedjax_bal.methods.combine import BelowOne, NonNegative, Recipe, positive, recipe
from fedjax_bal.optim import fedopt, optimizer


@recipe("averaging", "hsu2019measuring")
def fedavgm(momentum: BelowOne = 0.9, learning_rate: NonNegative = 1.0, nesterov: bool = False) -> Recipe:
    """FedAvg with momentum on the server.

    Args:
        momentum: beta, in [0, 1).
        learning_rate: the server's learning rate.
        nesterov: use Nesterov's momentum: w moves by the mean update plus beta v.

    Example:
        >>> fedavgm().server_optimizer.options
        {'momentum': 0.9}

    References:
        Hsu et al., 2019, FedAvgM: v becomes beta v plus the mean update, and w moves by v. This is the formula in the
        text; the experiments and Flower's reproduction of them use Nesterov's momentum.
    """
    flags: dict[str, Any] = {"nesterov": True} if nesterov else {}
    return Recipe("fedavgm", server_optimizer=optimizer("sgd", learning_rate, momentum=momentum, **flags))


@recipe("averaging", "reddi2021adaptive")
def fedadam(
    learning_rate: NonNegative = 0.01,
    beta_1: BelowOne = 0.9,
    beta_2: BelowOne = 0.99,
    tau: float = 0.001,
    form: Literal["optax", "paper", "from_zero"] = "optax",
) -> Recipe:
    r"""FedAvg with Adam on the server.

    Args:
        learning_rate: the server's learning rate.
        beta_1: decay of the first moment m, in [0, 1).
        beta_2: decay of the second moment v, in [0, 1).
        tau: adaptivity, added to the root of the second moment; above 0.
        form: "optax", whose Adam starts with m = v = 0 and corrects both for this bias; "paper", without correction and
            starting with v = tau^2; "from_zero", without correction and starting with v = 0, as in FL-Simulator.

    Example:
        >>> fedadam().server_optimizer.options
        {'b1': 0.9, 'b2': 0.99, 'eps': 0.001}

    References:
        Reddi et al., 2021, Algorithm 2: $w \leftarrow w + \eta m / (\sqrt{v} + \tau)$. The first steps of form "optax"
        are longer than the paper's, 17 times as long for updates of a tenth of tau; around round 20 they are half to
        twice as long.
    """
    tau = _adaptivity("fedadam", tau)
    if form == "optax":
        return Recipe("fedadam", server_optimizer=optimizer("adam", learning_rate, b1=beta_1, b2=beta_2, eps=tau))
    initial = tau**2 if form == "paper" else 0.0
    return Recipe("fedadam", server_optimizer=fedopt("adam", learning_rate, beta_1, beta_2, tau, initial))


@recipe("averaging", "reddi2021adaptive")
def fedyogi(
    learning_rate: NonNegative = 0.01,
    beta_1: BelowOne = 0.9,
    beta_2: BelowOne = 0.99,
    tau: float = 0.001,
    form: Literal["optax", "paper"] = "optax",
) -> Recipe:
    r"""FedAvg with Yogi on the server, whose second moment adapts more slowly than Adam's.

    Args:
        learning_rate: the server's learning rate.
        beta_1: decay of the first moment m, in [0, 1).
        beta_2: decay of the second moment v, in [0, 1).
        tau: adaptivity, added to the root of the second moment; above 0.
        form: "optax" or "paper".

    Example:
        >>> fedyogi().server_optimizer.name
        'yogi'

    References:
        Reddi et al., 2021, Algorithm 2: $v \leftarrow v - (1 - \beta_2) \Delta^2 sign(v - \Delta^2)$ for the mean
        update $\Delta$. Unlike the paper, optax's Yogi applies a bias correction to both moments, and starts both with
        1e-6, regardless of tau; the paper starts with m = 0 and v = $\tau^2$. Until these initial values have decayed,
        parameters drift by up to about a thousandth of the learning rate per round.
    """
    tau = _adaptivity("fedyogi", tau)
    if form == "optax":
        return Recipe("fedyogi", server_optimizer=optimizer("yogi", learning_rate, b1=beta_1, b2=beta_2, eps=tau))
    return Recipe("fedyogi", server_optimizer=fedopt("yogi", learning_rate, beta_1, beta_2, tau, tau**2))


@recipe("averaging", "reddi2021adaptive")
def fedadagrad(
    learning_rate: NonNegative = 0.1, tau: float = 0.001, form: Literal["optax", "paper"] = "optax"
) -> Recipe:
    r"""FedAvg with Adagrad on the server.

    Args:
        learning_rate: the server's learning rate.
        tau: adaptivity; above 0.
        form: "optax" or "paper".

    Example:
        >>> sorted(fedadagrad(tau=0.5).server_optimizer.options.items())
        [('eps', 0.25), ('initial_accumulator_value', 0.25)]

    References:
        Reddi et al., 2021, Algorithm 2, with $\beta_1 = 0$ as in its experiments: v is $\tau^2$ plus the sum of the
        squared updates. optax divides by $\sqrt{v + \tau^2}$, the paper by $\sqrt{v} + \tau$, so that small updates
        move parameters at most 1.42 times as far.
    """
    tau = _adaptivity("fedadagrad", tau)
    if form == "paper":
        return Recipe("fedadagrad", server_optimizer=fedopt("adagrad", learning_rate, 0.0, 0.0, tau, tau**2))
    server = optimizer("adagrad", learning_rate, initial_accumulator_value=tau**2, eps=tau**2)
    return Recipe("fedadagrad", server_optimizer=server)


def _adaptivity(recipe: str, tau: float) -> float:
    return positive(f"{recipe}: tau", tau, "; it keeps the division by small updates finite")
