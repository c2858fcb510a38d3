"""The assignment of a round's chains to devices."""

from typing import Any, NamedTuple


class Assignment(NamedTuple):
    """The chains that each device trains; leaves `[devices, ...]`, one device's own on the device itself.

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
