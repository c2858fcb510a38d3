"""Early stopping on a validation split, decided by a run's metrics alone."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_bal.metrics.table import METRICS
from fedjax_bal.validate import finite_number, is_number, one_of, whole_number


def stopping_metrics() -> tuple[str, ...]:
    """Names of the metrics that early stopping can follow."""
    return tuple(name for name, metric in METRICS.items() if metric.best)


@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """Ends a run whose validation metric has stopped getting better.

    The decision is a function of the metrics of the evaluated rounds, so that a run that is resumed takes it again. A
    run ends with the dispatch in which its patience runs out, whatever the later rounds of that dispatch bring.

    Attributes:
        patience: evaluated rounds in a row without an improvement after which the run ends; None for never.
        metric: one of `stopping_metrics()`; a loss is to fall, the others are to rise.
        min_delta: by how much more than the best so far counts as an improvement.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> rule = EarlyStopping(patience=2)
        >>> rule.over([{"validation_accuracy": value} for value in (0.5, 0.6, 0.6)])
        False
        >>> rule.over([{"validation_accuracy": value} for value in (0.5, 0.6, 0.6, 0.4, 0.9)])
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

    def over(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Tells whether a run ends here.

        Args:
            records: metrics of its evaluated rounds, in order; a value that is missing or not finite is no improvement.

        Returns:
            True if `patience` of them in a row, here or earlier, brought no improvement.
        """
        best, waited = -math.inf, 0
        for value in self._goodness(records):
            improved = value > best + self.min_delta
            best, waited = (value, 0) if improved else (best, waited + 1)
            if waited == self.patience:
                return True
        return False

    def best(self, records: Sequence[Mapping[str, Any]]) -> int | None:
        """The index of the first record in which the metric is best; None if no record has it."""
        values = self._goodness(records)
        best = max(values, default=-math.inf)
        return values.index(best) if best > -math.inf else None

    def _goodness(self, records: Sequence[Mapping[str, Any]]) -> list[float]:
        sign = 1 if METRICS[self.metric].best is max else -1
        values: list[Any] = [record.get(self.metric) for record in records]
        return [sign * value if is_number(value) and math.isfinite(value) else -math.inf for value in values]
