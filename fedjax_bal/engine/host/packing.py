"""Packs items of unequal length, the chains of a round, into lanes with as little idle time as can be.

Pure, on the host. A lane does its items back to back; all lanes of a device take a step together, until the last of
them is done. The steps that idle lanes compute meanwhile are waste.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

TOLERATED_WASTE = 0.1


class Packing(NamedTuple):
    """Items packed into lanes.

    Attributes:
        lanes: for each lane its items, in the order in which they are done.
        turns: steps until the last lane is done.
        waste: idle steps as a share of all steps computed; 0 if there is no work.
    """

    lanes: tuple[np.ndarray, ...]
    turns: int
    waste: float


def in_lanes(steps: Sequence[int] | np.ndarray, lanes: int) -> Packing:
    """Packs G items into K lanes, the longest first, each into the lane with the least work so far.

    A lane's items are in descending order of their `steps`, `Int[G]`. The makespan is at most 4/3 - 1/(3K) of the best
    possible one.

    Example:
        >>> packing = in_lanes([3, 5, 2, 2], 2)
        >>> [items.tolist() for items in packing.lanes], packing.turns, round(packing.waste, 3)
        ([[1, 3], [0, 2]], 7, 0.143)

    References:
        Graham: Bounds on multiprocessing timing anomalies, 1969, theorem 2.
    """
    steps = np.asarray(steps, np.int64)
    owner, loads = _longest_first_into_lightest(steps, lanes)
    order = longest_first(steps)
    by_lane = order[np.argsort(owner[order], kind="stable")]
    cuts = np.cumsum(np.bincount(owner, minlength=lanes))[:-1]
    turns = int(loads.max(initial=0))
    return Packing(tuple(np.split(by_lane, cuts)), turns, _waste(int(steps.sum()), lanes * turns))


def in_buckets(steps: Sequence[int] | np.ndarray, width: int) -> Packing:
    """Sorts items by length and cuts them into buckets; all items of a bucket start together and wait for its longest.

    Lane j has the j-th item of every bucket.

    Example:
        >>> packing = in_buckets([3, 5, 2, 2], 2)
        >>> [items.tolist() for items in packing.lanes], packing.turns, round(packing.waste, 3)
        ([[1, 2], [0, 3]], 7, 0.143)
    """
    steps = np.asarray(steps, np.int64)
    order = longest_first(steps)
    turns = int(steps[order[::width]].sum())
    return Packing(tuple(order[lane::width] for lane in range(width)), turns, _waste(int(steps.sum()), width * turns))


def longest_first(steps: np.ndarray) -> np.ndarray:
    """The items in descending order of their steps, `Int[G]`; equal ones keep their order."""
    return np.argsort(-np.asarray(steps, np.int64), kind="stable")


def choose_width(cohorts: Sequence[np.ndarray], most: int, devices: int = 1, *, buckets: bool = False) -> int:
    """The number of clients to train at a time on each device, from 1 to `most`.

    It is the largest that wastes less than a tenth of the steps over all `cohorts`, each `Int[G]`: more at a time keep
    a wide machine busier, but leave longer idle tails. `buckets` says whether clients start together in buckets, or
    each lane goes on by itself.

    Example:
        >>> choose_width([np.array([4, 4, 4, 4])], most=4)
        4
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
