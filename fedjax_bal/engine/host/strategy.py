"""How the clients of a round are laid out on the machine."""

from collections.abc import Sequence

import jax
import numpy as np

from fedjax_bal.engine.device import Layout
from fedjax_bal.engine.host.packing import choose_width
from fedjax_bal.validate import whole_number


def resolve_strategy(strategy: str) -> str:
    """Picks a strategy for this machine.

    Args:
        strategy: "auto", "map" or "vmap".

    Returns:
        "map" or "vmap"; "auto" is "map" on CPUs, where true step counts and unbatched convolutions win, and "vmap" on
        accelerators.

    Example:
        >>> resolve_strategy("vmap")
        'vmap'
    """
    if strategy != "auto":
        return strategy
    return "map" if jax.default_backend() == "cpu" else "vmap"


def device_count(devices: str | int) -> int:
    """How many devices to use.

    Args:
        devices: "auto" for all that jax has, or a number of them.

    Returns:
        The number.

    Raises:
        ValueError: more than there are, or none.

    Example:
        >>> device_count(1)
        1
    """
    there = jax.device_count()
    if devices == "auto":
        return there
    if whole_number("execution.devices", devices) > there:
        raise ValueError(
            f"execution.devices: received {devices}, but jax has {there} {jax.default_backend()} device(s): ask for at "
            "most as many; more CPU devices have to be set before jax starts, with jax_num_cpu_devices"
        )
    return int(devices)


def lay_out(
    strategy: str,
    devices: int,
    steps: np.ndarray,
    chains: int,
    chain_length: int,
    passes: int,
    chunk: int | None = None,
) -> Layout:
    """Chooses how many clients to train at a time.

    Args:
        strategy: "map" or "vmap".
        devices: how many devices share the work.
        steps: local steps of each client that can train, `Int[N]`, at least one of them.
        chains: G, chains a round.
        chain_length: L, clients a chain.
        passes: how often a chain goes through its clients.
        chunk: how many at a time on each device; None to choose by how well the clients' steps can be packed.

    Returns:
        The layout.

    Example:
        >>> import numpy as np
        >>> lay_out("vmap", 1, np.full(9, 5), chains=8, chain_length=1, passes=1)
        Layout(strategy='vmap', devices=1, width=8, lanes=True)
    """
    if strategy == "map":
        return Layout(strategy, devices)
    lanes = chain_length == 1 and passes == 1
    share = -(-chains // devices)
    if chunk is not None:
        return Layout(strategy, devices, min(chunk, share), lanes)
    width = choose_width(_typical_cohorts(steps, chains, chain_length), share, devices, buckets=not lanes)
    return Layout(strategy, devices, width, lanes)


def _typical_cohorts(steps: np.ndarray, chains: int, chain_length: int, count: int = 64) -> Sequence[np.ndarray]:
    # Any law would do: the width is a shape, chosen once; how a cohort is packed into it is decided every round.
    rng = np.random.default_rng(0)
    draw = lambda: steps[rng.integers(0, len(steps), chains * chain_length)]
    return [draw().reshape(chains, chain_length).sum(1) for _ in range(count)]
