"""The layout of a round's clients on the devices, and the loop of a device over its chains."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_bal.target import target_devices
from fedjax_bal.types import Array, PyTree

CLIENTS = "clients"


@dataclasses.dataclass(frozen=True)
class Layout:
    """The strategy, devices and number of clients at a time; decides shapes, and changes results only by rounding.

    Attributes:
        strategy: "map", a device's clients one after another; or "vmap", several at a time.
        devices: number of devices that share the work.
        width: clients at a time on each device; 1 for "map".
        lanes: whether a lane starts its next client as soon as it has finished one, instead of waiting for the slowest
            lane; only for chains of a single client, and if they don't end together anyway.
        even: whether all clients that train take equally many local steps, so that those of a bucket end together.
    """

    strategy: str = "map"
    devices: int = 1
    width: int = 1
    lanes: bool = False
    even: bool = False

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

    def spread(self, function: Callable[..., PyTree], *cut: bool) -> Callable[..., PyTree]:
        """Returns a function that runs on every device; `cut` arguments are divided among them, others replicated.

        The function must return the same on every device, as a sum over `CLIENTS` does.
        """
        whole = PartitionSpec()
        piece = PartitionSpec(CLIENTS)
        specs = tuple(piece if is_cut else whole for is_cut in cut)
        # JAX's check that the results are equal requires that every loop's first carry is marked if it will differ
        # between devices. Ours start as zeros and become a device's own sums, in loops of users' parts, too. Users
        # can't be expected to mark them, so the check is off.
        return jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=whole, check_vma=False)


class Assignment(NamedTuple):
    """The chains that each device trains; leaves `[devices, ...]`, without that axis on the device itself.

    Attributes:
        chains: chain numbers, `Int32[W]`, W at least G; G marks an empty place.
        count: number of chains, `Int32[]`.
        queues: the same chains, lane after lane, `Int32[W]`; used only if the layout has lanes.
        starts: start of each lane's queue, and the end of the last one, `Int32[width + 1]`.
        turns: steps until the last lane is done, `Int32[]`.
    """

    chains: Any
    count: Any
    queues: Any
    starts: Any
    turns: Any


def over_buckets(
    layout: Layout, assignment: Assignment, body: Callable[[Array, PyTree], PyTree], init: PyTree
) -> PyTree:
    """Folds `body(numbers, carry) -> carry` over the buckets; `numbers`, `Int32[width]`, holds G in empty places."""
    width = layout.width

    def one_bucket(index: Array, carry: PyTree) -> PyTree:
        return body(lax.dynamic_slice(assignment.chains, (index * width,), (width,)), carry)

    if len(assignment.chains) == width:
        # XLA:TPU compiles the first turn of a loop apart, and so all of the training twice.
        return body(assignment.chains, init)
    # The number of buckets is known only on the device, so a round with few clients takes no more turns than it needs.
    return lax.fori_loop(0, -(-assignment.count // width), one_bucket, init)
