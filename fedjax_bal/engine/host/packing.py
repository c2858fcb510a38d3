"""Packs items of unequal length, the chains of a round, into lanes with as little idle time as possible.

A lane does its items back to back; all lanes of a device take a step together, until the last lane is done. The steps
that idle lanes compute meanwhile are waste.
"""

import heapq
from collections.abc import Sequence

import numpy as np

TOLERATED_WASTE = 0.1


def in_lanes(steps: Sequence[int] | np.ndarray, lanes: int) -> list[np.ndarray]:
    """Packs G items into K lanes, the longest first, each into the lane with the least work so far.

    Returns each lane's items, in descending order of their `steps`, `Int[G]`. The longest lane is at most 4/3 - 1/(3K)
    times as long as in the best possible packing (Graham: Bounds on multiprocessing timing anomalies, 1969, theorem 2).

    Example:
        >>> [items.tolist() for items in in_lanes([3, 5, 2, 2], 2)]
        [[1, 3], [0, 2]]
    """
    steps = np.asarray(steps, np.int64)
    owner, _ = _longest_first_into_lightest(steps, lanes)
    order = longest_first(steps)
    by_lane = order[np.argsort(owner[order], kind="stable")]
    return np.split(by_lane, np.cumsum(np.bincount(owner, minlength=lanes))[:-1])


def longest_first(steps: np.ndarray) -> np.ndarray:
    """The items in descending order of their steps, `Int[G]`; equal ones keep their order."""
    return np.argsort(-np.asarray(steps, np.int64), kind="stable")


def choose_width(cohorts: Sequence[np.ndarray], most: int, devices: int = 1, *, buckets: bool = False) -> int:
    """The number of clients to train at a time on each device, from 1 to `most`.

    It is the largest that wastes less than a tenth of the steps over all `cohorts`, each `Int[G]`: more at a time keep
    a wide machine busier, but leave longer idle tails. With `buckets`, clients start together; without, each lane takes
    its next client as soon as it is done with one.

    Example:
        >>> choose_width([np.array([9, 3, 3, 3])], most=4)
        2
    """
    useful = sum(int(steps.sum()) for steps in cohorts)
    for width in _candidates(most):
        lanes = width * devices
        lower = sum(lanes * max(-(-int(steps.sum()) // lanes), int(steps.max(initial=0))) for steps in cohorts)
        if not buckets and _waste(useful, lower) >= TOLERATED_WASTE:
            continue  # no packing can do better than this bound
        computed = sum(lanes_computed(steps, width, devices, buckets=buckets) for steps in cohorts)
        if _waste(useful, computed) < TOLERATED_WASTE:
            return width
    return 1


def lanes_computed(steps: np.ndarray, width: int, devices: int, *, buckets: bool) -> int:
    """Steps computed for a cohort, useful or not, if devices don't wait for each other."""
    if buckets:
        return int(np.asarray(steps, np.int64)[longest_first(steps)[::width]].sum()) * width
    _, loads = _longest_first_into_lightest(np.asarray(steps, np.int64), width * devices)
    return int(loads.reshape(width, devices).max(0).sum()) * width


def _longest_first_into_lightest(steps: np.ndarray, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """The lane of each item, and the load of each lane."""
    owner, free = np.zeros(len(steps), np.int64), [(0, lane) for lane in range(lanes)]
    for item in longest_first(steps).tolist():
        load, lane = free[0]
        owner[item] = lane
        heapq.heapreplace(free, (load + int(steps[item]), lane))
    loads = np.zeros(lanes, np.int64)
    for load, lane in free:
        loads[lane] = load
    return owner, loads


def _candidates(most: int) -> list[int]:
    """Widths to try, from large to small: all small numbers, and some of the large ones."""
    numbers, current = [], most
    while current >= 1:
        numbers.append(current)
        current = min(current - 1, int(current * 0.95))
    return numbers


def _waste(useful: int, computed: int) -> float:
    return 1 - useful / computed if computed else 0.0
