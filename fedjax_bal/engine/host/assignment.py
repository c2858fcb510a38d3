"""Assigns a round's chains to devices, balanced by their local steps."""

from typing import NamedTuple

import numpy as np

from fedjax_bal.engine.device import Assignment, Layout
from fedjax_bal.engine.host.packing import in_lanes, longest_first


class StepCounts(NamedTuple):
    """Local steps of one round.

    Attributes:
        useful: steps of clients that deliver.
        computed: all steps that the devices compute, padding included.
    """

    useful: int
    computed: int


def assign(layout: Layout, steps: np.ndarray, delivered: np.ndarray) -> tuple[Assignment, StepCounts]:
    """Assigns the chains that deliver to the devices, about as many steps to each; other chains are not trained.

    `steps`, `Int[G, L]`, are 0 for a client that doesn't deliver; `delivered`, `Bool[G]`, says whether any client of
    the chain does.

    Example:
        >>> import numpy as np
        >>> own, work = assign(Layout("map", devices=2), np.array([[3], [5], [2], [0]]), np.array([1, 1, 1, 0], bool))
        >>> own.chains.tolist(), own.count.tolist(), work
        ([[1, 4, 4, 4], [0, 2, 4, 4]], [1, 2], StepCounts(useful=10, computed=10))
    """
    active = np.flatnonzero(delivered)
    by_device, lanes = (_by_lanes if layout.lanes or layout.width == 1 else _by_buckets)(layout, active, steps.sum(1))
    turns = [max(int(steps[own].sum()) for own in device) for device in lanes]
    assignment = Assignment(
        chains=_padded(layout, len(steps), by_device),
        count=np.array([len(own) for own in by_device], np.int32),
        queues=_padded(layout, len(steps), [np.concatenate(device) for device in lanes]),
        starts=np.stack([np.cumsum([0, *map(len, device)]) for device in lanes]).astype(np.int32),
        turns=np.array(turns, np.int32),
    )
    return assignment, StepCounts(int(steps[active].sum()), _computed(layout, by_device, turns, steps))


def _padded(layout: Layout, chains: int, lists: list[np.ndarray]) -> np.ndarray:
    """Each device's chains in as many places as all chains need, whatever the cohort: shapes never change."""
    places = -(-chains // layout.width) * layout.width
    return np.stack([np.append(own, np.full(places - len(own), chains)) for own in lists]).astype(np.int32)


def _by_lanes(layout: Layout, active: np.ndarray, steps: np.ndarray) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    # All lanes of all devices are packed at once: a device's turns are the length of its longest lane, and a round ends
    # with its last device, so that only the balance of lanes matters. The longest chains go first into lanes 0, 1, 2,
    # ...; giving these to the devices in turn keeps one device from getting all of the longest.
    packed = in_lanes(steps[active], layout.devices * layout.width)
    lanes = [[active[own] for own in packed[device :: layout.devices]] for device in range(layout.devices)]
    joined = [np.concatenate(device) for device in lanes]
    return [own[longest_first(steps[own])] for own in joined], lanes


def _by_buckets(
    layout: Layout, active: np.ndarray, steps: np.ndarray
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    # Without lanes a bucket waits for its longest chain: chains of about equal length share a bucket, and whole buckets
    # are packed by their longest. Only the last bucket may not be full. It is the shortest and so the last of its
    # device, where its empty places fall behind all chains.
    order = active[longest_first(steps[active])]
    buckets = [order[start : start + layout.width] for start in range(0, len(order), layout.width)]
    packed = in_lanes([int(steps[own[0]]) for own in buckets], layout.devices)
    joined = [np.concatenate([order[:0], *(buckets[i] for i in own)]) for own in packed]
    return joined, [[own, *[own[:0]] * (layout.width - 1)] for own in joined]


def _computed(layout: Layout, by_device: list[np.ndarray], turns: list[int], steps: np.ndarray) -> int:
    if layout.lanes or layout.width == 1:
        return layout.width * sum(turns)
    width = layout.width
    buckets = [own[start : start + width] for own in by_device for start in range(0, len(own), width)]
    return width * sum(int(steps[own].max(0).sum()) for own in buckets)
