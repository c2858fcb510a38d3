"""The schedule of a dispatch: everything that the host has decided on its rounds."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import lax

from fedjax_bal.engine.device.layout import Layout
from fedjax_bal.types import Array, Plan, PyTree


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


class DispatchPlan(NamedTuple):
    """The rounds of a dispatch, leaves `[T, ...]`, or one round.

    Attributes:
        number: the round, from 0.
        live: False for places after the last round, which change nothing.
        evaluate: whether the round ends with an evaluation.
        plan: the clients that train, and those that deliver.
        seats: place of each client's part in the memory, `Int32[T, G, L]`.
        assignment: the chains that each device trains.
    """

    number: Any
    live: Any
    evaluate: Any
    plan: Plan
    seats: Any
    assignment: Assignment


def over_buckets(
    layout: Layout, assignment: Assignment, body: Callable[[Array, PyTree], PyTree], init: PyTree
) -> PyTree:
    """Folds `body(numbers, carry) -> carry` over a device's chains; `numbers`, `Int32[width]`, is G in empty places."""
    width = layout.width

    def one(index: Array, carry: PyTree) -> PyTree:
        return body(lax.dynamic_slice(assignment.chains, (index * width,), (width,)), carry)

    return lax.fori_loop(0, -(-assignment.count // width), one, init)
