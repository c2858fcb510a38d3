"""The layout of a round's clients on the devices."""

import dataclasses

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_bal.target import target_devices

CLIENTS = "clients"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Strategy, number of devices and clients at a time; decides shapes, and changes results only by rounding.

    Attributes:
        strategy: "map", a device's clients one after another; or "vmap", several at a time.
        devices: number of devices that share the work.
        width: clients at a time on each device; 1 for "map".
        lanes: whether a lane takes its next client as soon as it is done with one, rather than waiting for the slowest;
            for chains of a single client only.
    """

    strategy: str = "map"
    devices: int = 1
    width: int = 1
    lanes: bool = False

    @property
    def mesh(self) -> Mesh:
        """The devices, along the axis of clients."""
        return Mesh(np.array(target_devices()[: self.devices]), (CLIENTS,))

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of arrays that every device has in full."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def divided(self) -> NamedSharding:
        """The sharding of arrays that are cut along their first axis."""
        return NamedSharding(self.mesh, PartitionSpec(CLIENTS))
