"""Chooses the layout of a round's clients on this machine."""

from collections.abc import Sequence

import jax
import numpy as np

from fedjax_bal.engine.device import Layout
from fedjax_bal.engine.host.packing import choose_width
from fedjax_bal.validate import whole_number


def resolve_strategy(strategy: str) -> str:
    """The strategy "map" or "vmap" for "auto", "map" or "vmap".

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
    """The number of devices for "auto", all that jax has, or for a number of them.

    Raises:
        ValueError: more than there are, or none.

    Example:
        >>> device_count(1)
        1
    """
    total = jax.device_count()
    if devices == "auto":
        return total
    if whole_number("execution.devices", devices) > total:
        raise ValueError(
            f"execution.devices: received {devices}, but jax has {total} {jax.default_backend()} device(s): ask for at "
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
    """Chooses the layout, above all the number of clients to train at a time.

    Args:
        strategy: "map" or "vmap".
        devices: number of devices that share the work.
        steps: local steps of each client that can train, `Int[N]`, at least one of them.
        chains: G, chains a round.
        chain_length: L, clients a chain.
        passes: passes of a chain over its clients.
        chunk: clients at a time on each device; None to choose by how well the clients' steps can be packed.

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
    """Steps of the chains of some random cohorts, each `Int[G]`."""
    # Any law would do: the width is a shape, chosen once; how a cohort is packed into it is decided every round.
    rng = np.random.default_rng(0)
    draw = lambda: steps[rng.integers(0, len(steps), chains * chain_length)]
    return [draw().reshape(chains, chain_length).sum(1) for _ in range(count)]
