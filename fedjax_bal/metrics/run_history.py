"""What the metrics of a whole run are computed from."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from fedjax_bal.metrics.stopping import EarlyStopping
from fedjax_bal.validate import is_number

Line = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RunHistory:
    """A run so far.

    Attributes:
        lines: metrics of its evaluated rounds, maybe from a file.
        rounds: how many rounds it is to have.
        target: the accuracy to reach; None for none.
        stopping: when it ends early.
        fine_tuned: what was noted about the clients' fine-tuned models; empty where nothing was.
        failure: why it has no end; None where it has, or will have.
        clients_per_chain: how many clients one averaged model goes through at most.
        copies: augmented samples of all clients.
    """

    lines: Sequence[Line]
    rounds: int
    target: float | None = None
    stopping: EarlyStopping = dataclasses.field(default_factory=EarlyStopping)
    fine_tuned: Line = dataclasses.field(default_factory=dict)
    failure: str | None = None
    clients_per_chain: int = 1
    copies: int = 0

    @property
    def last(self) -> Line:
        """The last line; empty without one, and for a run that has no end, whatever it had reached before."""
        return self.lines[-1] if self.lines and not self.failure else {}

    @property
    def validated(self) -> Line:
        """The first of the lines in which the validation metric is best; empty without one."""
        best = self.stopping.best(self.lines)
        return {} if best is None else self.lines[best]

    @property
    def stopped_early(self) -> int | None:
        """The last evaluated round, where early stopping ended the run there."""
        round = self.last.get("round")
        return round if round is not None and round < self.rounds and self.stopping.over(self.lines) else None

    @cached_property
    def rounds_to_target(self) -> int | None:
        """The first evaluated round that reached the target."""
        if self.target is None:
            return None
        return next((line["round"] for line in self.lines if line["test_accuracy"] >= self.target), None)

    @property
    def to_target(self) -> "RunHistory | None":
        """The run up to the round that reached the target; None where none did."""
        reached = self.rounds_to_target
        if reached is None:
            return None
        return dataclasses.replace(self, lines=[line for line in self.lines if line["round"] <= reached])

    def numbers(self, name: str) -> list[Any]:
        """A metric's finite numbers, of the rounds that have one."""
        values: list[Any] = [line.get(name) for line in self.lines]
        return [value for value in values if is_number(value) and math.isfinite(value)]

    def total(self, name: str) -> Any:
        """The sum of a metric over the rounds that have one; None where none has."""
        known = self.numbers(name)
        return sum(known) if known else None
