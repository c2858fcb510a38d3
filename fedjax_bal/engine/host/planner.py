"""Plans a dispatch on the host: the clients that train in its rounds, and their devices."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.engine.device import DispatchPlan, Layout, Setting
from fedjax_bal.engine.host.assignment import StepCounts, assign
from fedjax_bal.engine.host.memory import MemoryTable, table_of
from fedjax_bal.options import Participation
from fedjax_bal.selection import Selector, make_plan
from fedjax_bal.types import Plan


class PlannedDispatch(NamedTuple):
    """A planned dispatch.

    Attributes:
        rounds: its rounds, as the program takes them.
        selector: the selector's state after choosing.
        plans: the plans of the live rounds.
        table: the clients whose memory it needs; None if all clients' memory is on the devices.
        work: steps of all its rounds.
        seconds: simulated duration of each live round; empty for synchronous rounds of clients without speeds.
    """

    rounds: DispatchPlan
    selector: Any
    plans: list[Plan]
    table: MemoryTable | None
    work: StepCounts
    seconds: list[float]


@dataclasses.dataclass(frozen=True)
class Planner:
    """Plans rounds.

    Attributes:
        setting: the setting; a dispatch may have another layout, one that fits into memory.
        sizes: rows of each client, `Int[N]`.
        training: the clients that take at least one local step, `Bool[N]`.
        selector: selects the cohort.
        participation: which clients are available, which deliver, and how fast they are.
        rounds: number of rounds of a run.
        rounds_per_dispatch: number of rounds in one program.
        tables: whether the program receives only the memory of the clients in its dispatch.
    """

    setting: Setting
    sizes: np.ndarray
    training: np.ndarray
    selector: Selector
    participation: Participation
    rounds: int
    rounds_per_dispatch: int
    tables: bool

    def plan_dispatch(self, layout: Layout, seed: int, first: int, selector: Any) -> PlannedDispatch:
        """Plans the dispatch that starts at round `first` (from 0), for a layout.

        Entries after the last round repeat it and are not live.
        """
        count = self.rounds_per_dispatch
        speed = self.participation.speed
        timing = self.selector.asynchrony
        plans = []
        assigned = []
        seconds = []
        # An extended run may resume in the middle of a dispatch; the next one starts where it would without the stop.
        end = min(first - first % count + count, self.rounds)
        for number in range(first, end):
            before = selector
            plan, selector = self.round(seed, number, before)
            plans.append(plan)
            assigned.append(assign(layout, self.steps(plan), plan.delivered.any(1)))
            if timing is not None:
                seconds.append(timing.clock(selector) - timing.clock(before))
            elif speed is not None:
                steps = self._local_steps(plan._replace(limits=None))
                seconds.append(speed.seconds(seed, number, plan, steps, self.setting.passes, len(self.sizes)))
        numbers = np.arange(first, first + count, dtype=np.int32)
        live = numbers < end
        due = live & (((numbers + 1) % self.setting.evaluation.every == 0) | (numbers == self.rounds - 1))

        def stack(items: Sequence[Any]) -> Any:
            rest = [items[-1]] * (count - len(items))
            return jax.tree.map(lambda *leaves: np.stack(leaves), *items, *rest)

        assignments, works = zip(*assigned, strict=True)
        stacked = stack(plans)
        # With the memory on the host, the program receives only the rows of this dispatch's clients.
        table = table_of(stacked.clients, len(self.sizes)) if self.tables else None
        seats = table.seats if table else stacked.clients
        rounds = DispatchPlan(numbers, live, due, stacked, seats, stack(assignments))
        work = StepCounts(*map(sum, zip(*works, strict=True)))
        return PlannedDispatch(rounds, selector, plans, table, work, seconds)

    def round(self, seed: int, number: int, selector: Any) -> tuple[Plan, Any]:
        """Plans a round (from 0); returns the plan and the selector's new state."""
        speed = self.participation.speed
        timing = self.selector.asynchrony
        available = self.participation.availability.mask(seed, "availability", number, self.training)
        durations = () if timing is None else (self._durations(seed, number),)
        clients, selector = self.selector.select(selector, seed, number, available, *durations)
        cohort = np.zeros(len(self.sizes) + 1, bool)  # the last entry is for empty places
        cohort[np.minimum(clients, len(self.sizes))] = True
        trained = cohort[:-1] & self.training  # a user's selector may list clients that take no step
        arriving = self.participation.delivery.mask(seed, "delivery", number, trained)
        plan = make_plan(clients, arriving)
        if speed is not None:
            steps = self._local_steps(plan)
            plan = speed.limited(seed, number, plan, steps, self.setting.passes, len(self.sizes))
        if timing is not None:
            staleness = number - timing.versions(selector)[np.minimum(plan.clients, len(self.sizes) - 1)]
            delivered = plan.delivered & (staleness <= timing.max_staleness)
            plan = plan._replace(delivered=delivered, staleness=np.where(delivered, staleness, 0).astype(np.int32))
        return plan, selector

    def _durations(self, seed: int, number: int) -> np.ndarray:
        """Returns the seconds of each client's local training if it starts in a round, `Float64[N]`.

        Without speeds, a local step takes a second.
        """
        speed = self.participation.speed
        steps = self.setting.passes * self.setting.local_steps(self.sizes)
        clients = np.arange(len(self.sizes))
        return steps / 1.0 if speed is None else speed.durations(seed, number, clients, steps, len(self.sizes))

    def _local_steps(self, plan: Plan) -> np.ndarray:
        """Returns the local steps of each client of a plan within its limits, `Int[G, L]`."""
        inside = np.minimum(plan.clients, len(self.sizes) - 1)
        return self.setting.local_steps(self.sizes[inside], plan.limits)

    def steps(self, plan: Plan) -> np.ndarray:
        """Returns each client's steps in a round, over all passes; 0 if it doesn't deliver; `Int[G, L]`."""
        return np.asarray(self.setting.passes * self._local_steps(plan) * plan.delivered)
