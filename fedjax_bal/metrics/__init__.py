"""What is measured of a run: how it is computed from counts, confusions and seeds."""

from fedjax_bal.metrics.class_groups import (
    SHOTS,
    Shots,
    across_clients,
    client_accuracies,
    shot_accuracies,
    shot_groups,
)
from fedjax_bal.metrics.classification import classification_metrics, order_statistics, rank_correlations, summarise
from fedjax_bal.metrics.faults import FAULT_WORDS, HUGE, LONG, NOT_FINITE, OUTDATED, Fault, FaultCounts
from fedjax_bal.metrics.records import held_out_metrics
from fedjax_bal.metrics.seeds import (
    Curve,
    Difference,
    MethodSummary,
    Spread,
    class_accuracies,
    compare,
    cumulate_traffic,
    curve,
    pooled_confusion,
    spread,
)
from fedjax_bal.metrics.stopping import METRICS, EarlyStopping
from fedjax_bal.metrics.traffic import Counts, Traffic, chain_divergences, count_round

__all__ = [
    "FAULT_WORDS",
    "HUGE",
    "LONG",
    "METRICS",
    "NOT_FINITE",
    "OUTDATED",
    "SHOTS",
    "Counts",
    "Curve",
    "Difference",
    "EarlyStopping",
    "Fault",
    "FaultCounts",
    "MethodSummary",
    "Shots",
    "Spread",
    "Traffic",
    "across_clients",
    "chain_divergences",
    "class_accuracies",
    "classification_metrics",
    "client_accuracies",
    "compare",
    "count_round",
    "cumulate_traffic",
    "curve",
    "held_out_metrics",
    "order_statistics",
    "pooled_confusion",
    "rank_correlations",
    "shot_accuracies",
    "shot_groups",
    "spread",
    "summarise",
]
