"""How the clients of a round are laid out on the machine."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_bal.checks import one_of, whole_number
from fedjax_bal.engine.packing import choose_width

STRATEGIES = ("auto", "map", "vmap")
CLIENTS = "clients"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where and how many at a time; decides shapes, never results beyond rounding.

    Attributes:
        strategy: "map", a device's clients one after another; or "vmap", several at a time.
        devices: how many devices share the work.
        width: clients at a time on each device; 1 for "map".
        lanes: whether each of them is followed by the next client as soon as it is done, rather than waiting for the
            slowest; for chains of a single client only.
    """

    strategy: str = "map"
    devices: int = 1
    width: int = 1
    lanes: bool = False

    @property
    def mesh(self) -> Mesh:
        """The devices, along the axis of clients."""
        return Mesh(np.array(jax.devices()[: self.devices]), (CLIENTS,))

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of what every device has in full."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def divided(self) -> NamedSharding:
        """The sharding of what is cut along its first axis."""
        return NamedSharding(self.mesh, PartitionSpec(CLIENTS))


def resolve(strategy: str) -> str:
    """Picks a strategy for this machine.

    Args:
        strategy: "auto", "map" or "vmap".

    Returns:
        "map" or "vmap"; "auto" is "map" on CPUs, where true step counts and unbatched convolutions win, and "vmap" on
        accelerators.

    Raises:
        ValueError: another name.

    Example:
        >>> resolve("vmap")
        'vmap'
    """
    one_of("execution.strategy", strategy, STRATEGIES)
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
    strategy: str, devices: int, steps: np.ndarray, groups: int, links: int, passes: int, chunk: int | None = None
) -> Layout:
    """Chooses how many clients to train at a time.

    Args:
        strategy: "map" or "vmap".
        devices: how many devices share the work.
        steps: local steps of each client that can train, `Int[N]`, at least one of them.
        groups: G, chains a round.
        links: L, clients a chain.
        passes: how often a chain goes through its clients.
        chunk: how many at a time on each device; None to choose by how well the clients' steps can be packed.

    Returns:
        The layout.

    Example:
        >>> import numpy as np
        >>> lay_out("vmap", 1, np.full(9, 5), groups=8, links=1, passes=1)
        Layout(strategy='vmap', devices=1, width=8, lanes=True)
    """
    if strategy == "map":
        return Layout(strategy, devices)
    lanes = links == 1 and passes == 1
    share = -(-groups // devices)
    if chunk is not None:
        return Layout(strategy, devices, min(chunk, share), lanes)
    width = choose_width(_typical_cohorts(steps, groups, links), share, devices, buckets=not lanes)
    return Layout(strategy, devices, width, lanes)


def _typical_cohorts(steps: np.ndarray, groups: int, links: int, count: int = 64) -> Sequence[np.ndarray]:
    # Any law would do: the width is a shape, chosen once; how a cohort is packed into it is decided every round.
    rng = np.random.default_rng(0)
    draw = lambda: steps[rng.integers(0, len(steps), groups * links)]
    return [draw().reshape(groups, links).sum(1) for _ in range(count)]
