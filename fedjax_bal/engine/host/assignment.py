"""Assigns a round's chains to devices and lanes, so that lanes are idle as little as possible.

A lane trains its chains back to back; all lanes of a device take a step together, until the last lane is done. The
steps that idle lanes compute meanwhile are wasted.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_bal.engine.device import Assignment, Layout


class StepCounts(NamedTuple):
    """Local steps of one round.

    Attributes:
        useful: steps of clients that deliver.
        computed: all steps that the devices compute, padding included.
    """

    useful: int
    computed: int


def assign(layout: Layout, steps: np.ndarray, delivered: np.ndarray) -> tuple[Assignment, StepCounts]:
    """Assigns the chains that deliver to the devices, with about equal steps; other chains are not trained.

    `steps`, `Int[G, L]`, are 0 for a client that doesn't deliver; `delivered`, `Bool[G]`, says whether any client of
    the chain does.

    Example:
        >>> import numpy as np
        >>> given, work = assign(Layout("map", devices=2), np.array([[3], [5], [2], [0]]), np.array([1, 1, 1, 0], bool))
        >>> given.chains.tolist(), given.count.tolist(), work
        ([[1, 4, 4, 4], [0, 2, 4, 4]], [1, 2], StepCounts(useful=10, computed=10))
    """
    width = layout.width
    total = steps.sum(1)
    active = np.flatnonzero(delivered)
    if layout.lanes or width == 1:
        # All lanes of all devices are packed at once: a device's turns are the length of its longest lane, and a round
        # ends with its last device, so only the balance of lanes matters. The longest chains go first into lanes
        # 0, 1, 2, ...; dealing these out to the devices in turn keeps one device from getting all of the longest.
        owner, loads = pack_greedily(total[active], layout.devices * width)
        order = longest_first(total[active])
        lane, device = np.divmod(owner[order], layout.devices)
        order, lane, device = (each[np.argsort(lane, kind="stable")] for each in (active[order], lane, device))
        queues = [order[device == number] for number in range(layout.devices)]
        lengths = [np.bincount(lane[device == number], minlength=width) for number in range(layout.devices)]
        by_device = [chains[longest_first(total[chains])] for chains in queues]
        turns = loads.reshape(width, layout.devices).max(0)
        computed = width * int(turns.sum())
    else:
        # A bucket waits for its longest chain, so chains of about equal length share a bucket, and whole buckets are
        # packed by their longest chain. Only the last bucket may not be full. It is the shortest, and so the last of
        # its device, where its empty places come after all chains.
        order = active[longest_first(total[active])]
        buckets = [order[start : start + width] for start in range(0, len(order), width)]
        packed = in_lanes([int(total[bucket[0]]) for bucket in buckets], layout.devices)
        by_device = [np.concatenate([order[:0], *(buckets[number] for number in numbers)]) for numbers in packed]
        # The lanes are for the shapes only, and never read.
        queues, lengths = by_device, [np.zeros(width, int)] * layout.devices
        turns = np.array([total[chains].sum() for chains in by_device])
        computed = width * sum(int(steps[bucket].max(0).sum()) for bucket in buckets)

    # Shapes never change, so each device has places for all chains of a round.
    places = -(-len(steps) // width) * width

    def padded(lists: list[np.ndarray]) -> np.ndarray:
        return np.stack([np.append(chains, np.full(places - len(chains), len(steps))) for chains in lists])

    assignment = Assignment(
        chains=padded(by_device).astype(np.int32),
        count=np.array([len(chains) for chains in by_device], np.int32),
        queues=padded(queues).astype(np.int32),
        starts=np.stack([np.cumsum([0, *each]) for each in lengths]).astype(np.int32),
        turns=turns.astype(np.int32),
    )
    return assignment, StepCounts(int(steps[active].sum()), computed)


def in_lanes(steps: Sequence[int] | np.ndarray, lanes: int) -> list[np.ndarray]:
    """Packs G items into K lanes, the longest first, each into the lane with the least work so far.

    Returns each lane's items, in descending order of their `steps`, `Int[G]`. The longest lane is at most 4/3 - 1/(3K)
    times as long as in the best possible packing (Graham: Bounds on multiprocessing timing anomalies, 1969, theorem 2).

    Example:
        >>> [items.tolist() for items in in_lanes([3, 5, 2, 2], 2)]
        [[1, 3], [0, 2]]
    """
    steps = np.asarray(steps, np.int64)
    owner, _ = pack_greedily(steps, lanes)
    order = longest_first(steps)
    by_lane = order[np.argsort(owner[order], kind="stable")]
    return np.split(by_lane, np.cumsum(np.bincount(owner, minlength=lanes))[:-1])


def longest_first(steps: np.ndarray) -> np.ndarray:
    """Sorts items in descending order of their `steps`, `Int[G]`; equal items keep their order."""
    return np.argsort(-np.asarray(steps, np.int64), kind="stable")


def pack_greedily(steps: np.ndarray, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """Puts each item, the longest first, into the lane with the least load; returns items' lanes and lanes' loads."""
    owner = np.zeros(len(steps), np.int64)
    # A heap finds the lightest lane; of equal loads, the pair puts the lane with the lower number first.
    free = [(0, lane) for lane in range(lanes)]
    for item in longest_first(steps).tolist():
        load, lane = free[0]
        owner[item] = lane
        heapq.heapreplace(free, (load + int(steps[item]), lane))
    loads = np.zeros(lanes, np.int64)
    for load, lane in free:
        loads[lane] = load
    return owner, loads
