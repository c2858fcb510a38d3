"""A round's chains dealt to devices, by how much work they are."""

from typing import NamedTuple

import numpy as np

from fedjax_bal.engine.device import Assignment, Layout
from fedjax_bal.engine.host.packing import in_lanes, longest_first


class StepCounts(NamedTuple):
    """Steps of one round.

    Attributes:
        useful: local steps of clients that deliver.
        computed: all that are computed, for nobody too.
    """

    useful: int
    computed: int


def assign(layout: Layout, steps: np.ndarray, delivered: np.ndarray) -> tuple[Assignment, StepCounts]:
    """Deals chains to devices so that all have about as much to do; nobody trains a chain that delivers nothing.

    Args:
        layout: the layout.
        steps: steps of each client, `Int[G, L]`, 0 for one that doesn't deliver.
        delivered: `Bool[G]`, whether anybody in the chain delivers.

    Returns:
        The deal, and what it costs.

    Example:
        >>> import numpy as np
        >>> dealt, work = assign(Layout("map", devices=2), np.array([[3], [5], [2], [0]]), np.array([1, 1, 1, 0], bool))
        >>> dealt.chains.tolist(), dealt.count.tolist(), work
        ([[1, 4, 4, 4], [0, 2, 4, 4]], [1, 2], StepCounts(useful=10, computed=10))
    """
    active = np.flatnonzero(delivered)
    by_device, lanes = (_by_lanes if layout.lanes or layout.width == 1 else _by_buckets)(layout, active, steps.sum(1))
    places = -(-len(steps) // layout.width) * layout.width
    fill = lambda lists: np.stack([np.append(x, np.full(places - len(x), len(steps))) for x in lists]).astype(np.int32)
    turns = [max(int(steps[own].sum()) for own in device) for device in lanes]
    dealt = Assignment(
        chains=fill(by_device),
        count=np.array([len(own) for own in by_device], np.int32),
        queues=fill([np.concatenate(device) for device in lanes]),
        starts=np.stack([np.cumsum([0, *map(len, device)]) for device in lanes]).astype(np.int32),
        turns=np.array(turns, np.int32),
    )
    return dealt, StepCounts(int(steps[active].sum()), _computed(layout, by_device, turns, steps))


def _by_lanes(layout: Layout, active: np.ndarray, steps: np.ndarray) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    packing = in_lanes(steps[active], layout.devices * layout.width)
    # Neighbouring lanes, which get the longest chains, belong to different devices.
    lanes = [[active[own] for own in packing.lanes[device :: layout.devices]] for device in range(layout.devices)]
    joined = [np.concatenate(device) for device in lanes]
    return [own[longest_first(steps[own])] for own in joined], lanes


def _by_buckets(
    layout: Layout, active: np.ndarray, steps: np.ndarray
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    order = active[longest_first(steps[active])]
    buckets = [order[start : start + layout.width] for start in range(0, len(order), layout.width)]
    packing = in_lanes([int(steps[own[0]]) for own in buckets], layout.devices)
    # The last bucket, which alone may not be full, is the shortest and thus the last of its device.
    joined = [np.concatenate([order[:0], *(buckets[i] for i in own)]) for own in packing.lanes]
    return joined, [[own, *[own[:0]] * (layout.width - 1)] for own in joined]


def _computed(layout: Layout, by_device: list[np.ndarray], turns: list[int], steps: np.ndarray) -> int:
    if layout.lanes or layout.width == 1:
        return layout.width * sum(turns)
    width = layout.width
    buckets = [own[start : start + width] for own in by_device for start in range(0, len(own), width)]
    return width * sum(int(steps[own].max(0).sum()) for own in buckets)
