"""What an evaluated round is recorded by, of all that was held out of training."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_bal.metrics.class_groups import across_clients, client_accuracies
from fedjax_bal.metrics.classification import classification_metrics, order_statistics

if TYPE_CHECKING:
    from fedjax_bal.types import Federation, Info, Plan, TestResult


def held_out_metrics(
    federation: "Federation", plan: "Plan", info: "Info", evaluation: "TestResult", place: int
) -> dict[str, Any]:
    """How the global model does on what nobody is trained on, and the cohort's own models on their test rows.

    Args:
        federation: the federation, on the host.
        plan: the round's plan.
        info: what the rounds of a dispatch reported, leaves `[T, ...]`.
        evaluation: what they were evaluated to, leaves `[T, ...]`.
        place: which of the T it is.

    Returns:
        With validation rows `validation_accuracy`, `validation_balanced_accuracy` and `validation_loss`; with test rows
        of clients `client_accuracy`, that of the global model, and `own_accuracy`, that of the models which this
        round's cohort brought, each with its spread over clients as `across_clients` names it; and `client_accuracies`,
        the global model's in rising order, evenly spaced ones where there are many.
    """
    found: dict[str, Any] = {}
    if evaluation.validation is not None:
        scores = classification_metrics(np.asarray(evaluation.validation.confusion[place]))
        loss = float(evaluation.validation.loss[place])
        found |= {
            "validation_accuracy": scores["test_accuracy"],
            "validation_balanced_accuracy": scores["balanced_accuracy"],
            "validation_loss": loss if np.isfinite(loss) else None,
        }
    if federation.tests is not None and evaluation.client_hits is not None:
        sizes = np.diff(federation.tests.offsets)
        brought = plan.clients[plan.delivered]
        everybody = client_accuracies(np.asarray(evaluation.client_hits[place]), sizes)
        cohort = client_accuracies(np.asarray(info.own_hits[place])[plan.delivered], sizes[brought])
        found |= across_clients("client_accuracy", everybody) | across_clients("own_accuracy", cohort)
        found["client_accuracies"] = order_statistics(everybody)
    return found
