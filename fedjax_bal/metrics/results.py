"""The inputs of metrics (an evaluated round, a run so far), and early stopping, which depends on metrics alone."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_bal.metrics.classification import client_accuracies, divergences, mean_known
from fedjax_bal.metrics.table import METRICS, OWN_HITS
from fedjax_bal.validate import finite_number, is_number, one_of, whole_number

if TYPE_CHECKING:
    from fedjax_bal.types import EvaluationResult, Federation, Plan

Line = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RoundResult:
    """An evaluated round.

    Attributes:
        federation: the federation, on the host.
        plan: the round's plan.
        evaluation: the evaluation after the round, on the host.
        reported: `Info.metrics` of the round, and counts since the last evaluation, by name.
        groups: masks over the classes by which accuracies are averaged, from `shot_groups`.
    """

    federation: "Federation"
    plan: "Plan"
    evaluation: "EvaluationResult"
    reported: Mapping[str, Any]
    groups: Mapping[str, np.ndarray]

    @property
    def confusion(self) -> np.ndarray:
        """Test images by true and predicted class, `Int64[C, C]`."""
        return np.asarray(self.evaluation.confusion, np.int64)

    @property
    def validation(self) -> np.ndarray | None:
        """Validation rows by true and predicted class, `Int64[C, C]`; None without validation rows."""
        validation = self.evaluation.validation
        return None if validation is None else np.asarray(validation.confusion, np.int64)

    @cached_property
    def chain_divergences(self) -> np.ndarray:
        """Divergence from uniform classes, in nats, of the pooled rows of each chain that delivers."""
        return divergences(self._chain_counts)

    @property
    def cohort_divergence(self) -> float:
        """Divergence from uniform classes, in nats, of the pooled rows of all clients that deliver; nan if none does.

        With a client of several chains its rows count once for each.
        """
        return mean_known(divergences(self._chain_counts.sum(0, keepdims=True)))

    @cached_property
    def _chain_counts(self) -> np.ndarray:
        """Rows by class of each chain's clients that deliver, `Float64[G, C]`."""
        last = self.federation.num_clients - 1
        counts = np.asarray(self.federation.class_counts)[np.minimum(self.plan.clients, last)]
        return (counts * self.plan.delivered[..., None]).sum(1, dtype=np.float64)

    @cached_property
    def client_accuracies(self) -> np.ndarray | None:
        """Accuracy of the model that each client uses, on the client's test rows, `Float64[N]`.

        nan for a client without test rows; None if no client has any.
        """
        hits = self.evaluation.client_hits
        return None if hits is None else client_accuracies(np.asarray(hits).sum(1), self._test_sizes)

    @cached_property
    def own_accuracies(self) -> np.ndarray | None:
        """Accuracies of the cohort's models after local training, each on its client's test rows; nan without any."""
        hits = self.reported.get(OWN_HITS.name)
        delivered = self.plan.delivered
        if hits is None:
            return None
        return client_accuracies(hits[delivered], self._test_sizes[self.plan.clients[delivered]])

    @property
    def _test_sizes(self) -> np.ndarray:
        tests = self.federation.tests
        return np.zeros(self.federation.num_clients, int) if tests is None else tests.sizes


def stopping_metrics() -> tuple[str, ...]:
    """Returns the names of the metrics that early stopping can follow."""
    return tuple(name for name, metric in METRICS.items() if metric.best)


@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """Ends a run whose validation metric has stopped improving.

    The decision depends only on the metrics of the evaluated rounds, so a resumed run makes the same one. A run ends
    with the dispatch in which its patience runs out, regardless of the later rounds of that dispatch.

    Attributes:
        patience: consecutive evaluated rounds without an improvement that end the run; None for never.
        metric: one of `stopping_metrics()`; a loss improves when it falls, the others when they rise.
        min_delta: an improvement must exceed the best value so far by more than this.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> rule = EarlyStopping(patience=2)
        >>> rule.should_stop([{"validation_accuracy": value} for value in (0.5, 0.6, 0.6)])
        False
        >>> rule.should_stop([{"validation_accuracy": value} for value in (0.5, 0.6, 0.6, 0.4, 0.9)])
        True
    """

    patience: int | None = None
    metric: str = "validation_accuracy"
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.patience is not None:
            whole_number("early_stopping.patience", self.patience)
        one_of("early_stopping.metric", self.metric, stopping_metrics())
        finite_number("early_stopping.min_delta", self.min_delta)

    def should_stop(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Returns whether a run ends after these rounds.

        Args:
            records: metrics of its evaluated rounds, in order; a value that is missing or not finite is no improvement.

        Returns:
            True if `patience` of them in a row, the last ones or earlier ones, brought no improvement.
        """
        best = -math.inf
        waited = 0
        for value in self._goodness(records):
            if value > best + self.min_delta:
                best = value
                waited = 0
            else:
                waited += 1
            if waited == self.patience:
                return True
        return False

    def best(self, records: Sequence[Mapping[str, Any]]) -> int | None:
        """Returns the index of the first record in which the metric is best; None if no record has it."""
        values = self._goodness(records)
        best = max(values, default=-math.inf)
        return values.index(best) if best > -math.inf else None

    def _goodness(self, records: Sequence[Mapping[str, Any]]) -> list[float]:
        sign = 1 if METRICS[self.metric].best is max else -1
        values: list[Any] = [record.get(self.metric) for record in records]
        return [sign * value if is_number(value) and math.isfinite(value) else -math.inf for value in values]


@dataclasses.dataclass(frozen=True)
class RunHistory:
    """A run so far.

    Attributes:
        lines: metrics of its evaluated rounds, perhaps from a file.
        rounds: number of rounds that the configuration asks for.
        target: the accuracy to reach; None for none.
        stopping: the rule of early stopping.
        fine_tuned: results of the clients' fine-tuned models, and of new clients; empty without any.
        failure: the reason why the run can't be finished; None if it is, or will be.
        clients_per_chain: the largest number of clients that train one averaged model in turn.
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
        """The last line; empty for a run without lines."""
        return self.lines[-1] if self.lines else {}

    @property
    def validated(self) -> Line:
        """The first line in which the validation metric is best; empty without one."""
        best = self.stopping.best(self.lines)
        return {} if best is None else self.lines[best]

    @property
    def stopped_early(self) -> int | None:
        """The last evaluated round, if early stopping ended the run."""
        round = self.last.get("round")
        return round if round is not None and round < self.rounds and self.stopping.should_stop(self.lines) else None

    @cached_property
    def rounds_to_target(self) -> int | None:
        """The first evaluated round that reached the target."""
        if self.target is None:
            return None
        return next((line["round"] for line in self.lines if line["test_accuracy"] >= self.target), None)

    @property
    def until_target(self) -> "RunHistory | None":
        """The run up to the round that reached the target; None if none did."""
        reached = self.rounds_to_target
        if reached is None:
            return None
        return dataclasses.replace(self, lines=[line for line in self.lines if line["round"] <= reached])

    def numbers(self, name: str) -> list[Any]:
        """Returns a metric's finite numbers, in order of rounds."""
        values: list[Any] = [line.get(name) for line in self.lines]
        return [value for value in values if is_number(value) and math.isfinite(value)]

    def total(self, name: str) -> Any:
        """Returns the sum of a metric over the rounds that have it; None if none has."""
        numbers = self.numbers(name)
        return sum(numbers) if numbers else None
