"""Methods that count local steps: what momentum makes of them, and where it has to begin."""

import jax.numpy as jnp

from fedjax_bal.parts.part import RunSetting
from fedjax_bal.types import Array


def momentum_steps(steps: Array, momentum: Array | float) -> Array:
    r"""How many plain steps as many momentum steps amount to.

    $a = (\tau - \rho (1 - \rho^\tau) / (1 - \rho)) / (1 - \rho)$: along a constant gradient g, $\tau$ steps of SGD with
    momentum $\rho$ and learning rate $\eta$ move by $a \eta g$.

    Args:
        steps: tau, `Int[...]`.
        momentum: rho, in [0, 1).

    Returns:
        `Float[...]`.

    Example:
        >>> [round(float(momentum_steps(t, 0.9)), 2) for t in (1, 2, 3)]
        [1.0, 2.9, 5.61]

    References:
        FedNova (Wang et al., 2020), section 4.1.
    """
    tau = jnp.asarray(steps, float)
    return (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)


def check_fresh_momentum(slot: str, setting: RunSetting) -> None:
    """Refuses a momentum that is handed on from client to client, for a part that counts on resetting it.

    Args:
        slot: the part's.
        setting: the run.

    Raises:
        ValueError: there is one.
    """
    if setting.carried and setting.local.options.get("momentum"):
        raise ValueError(
            f"optimizer_state: received 'carried' and a local momentum beside {slot}, which reckons with one "
            "that begins anew at each visit: take 'fresh', or set training.optimizer.momentum to 0"
        )
