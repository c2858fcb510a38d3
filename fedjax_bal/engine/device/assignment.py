"""Which chains each device trains in a round."""

from typing import Any, NamedTuple


class Assignment(NamedTuple):
    """Which chains each device trains; leaves `[devices, ...]`, one device's on the device itself.

    Attributes:
        chains: its chains, `Int32[W]`, W at least G; G marks an empty place.
        count: how many they are, `Int32[]`.
        queues: the same chains, lane after lane, `Int32[W]`; only where the layout has lanes.
        starts: where each lane's queue begins, and the end of the last, `Int32[width + 1]`.
        turns: steps until its last lane is done, `Int32[]`.
    """

    chains: Any
    count: Any
    queues: Any
    starts: Any
    turns: Any
