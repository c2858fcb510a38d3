"""What the metrics of an evaluated round are computed from."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_bal.metrics.class_groups import client_accuracies
from fedjax_bal.metrics.classification import divergences

if TYPE_CHECKING:
    from fedjax_bal.types import EvaluationResult, Federation, Plan


@dataclasses.dataclass(frozen=True)
class RoundResult:
    """An evaluated round.

    Attributes:
        federation: the federation, on the host.
        plan: the round's plan.
        evaluation: what the round evaluates to, on the host.
        reported: `Info.metrics` of the round, and what was counted since the last evaluation, by name.
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
        """The same of the validation rows; None where there are none."""
        own = self.evaluation.validation
        return None if own is None else np.asarray(own.confusion, np.int64)

    @cached_property
    def chain_divergences(self) -> np.ndarray:
        """How far from even the classes are of each chain that delivers, its clients taken together; in nats."""
        last = self.federation.num_clients - 1
        counts = np.asarray(self.federation.class_counts)[np.minimum(self.plan.clients, last)]
        return divergences((counts * self.plan.delivered[..., None]).sum(1, dtype=np.float64))

    @cached_property
    def client_accuracies(self) -> np.ndarray | None:
        """The global model's accuracy on each client's own test rows, rising; None without test rows."""
        hits = self.evaluation.client_hits
        return None if hits is None else np.sort(client_accuracies(np.asarray(hits), self._test_sizes))

    @cached_property
    def own_accuracies(self) -> np.ndarray | None:
        """Those of the models that the round's cohort delivered, each on its own client's test rows."""
        hits, there = self.reported.get("own_hits"), self.plan.delivered
        if hits is None:
            return None
        return np.sort(client_accuracies(hits[there], self._test_sizes[self.plan.clients[there]]))

    @property
    def _test_sizes(self) -> np.ndarray:
        tests = self.federation.tests
        return np.zeros(self.federation.num_clients, int) if tests is None else np.diff(tests.offsets)
