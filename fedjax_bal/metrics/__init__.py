"""Metrics of rounds and runs, and their statistics over seeds."""

from fedjax_bal.metrics.classification import (
    SHOTS,
    Shots,
    across_clients,
    client_accuracies,
    divergences,
    evenly_spaced,
    order_statistics,
    rank_correlations,
    shot_groups,
)
from fedjax_bal.metrics.metric import (
    NOTHING,
    OWN,
    REPORT_TABLES,
    SHARE,
    TEXT,
    Column,
    Measured,
    Metric,
    ReportTable,
    Unit,
)
from fedjax_bal.metrics.results import EarlyStopping, RoundResult, RunHistory, stopping_metrics
from fedjax_bal.metrics.seeds import (
    LARGEST_SHOWN,
    MOST_AVERAGED,
    Curve,
    Difference,
    MethodSummary,
    SeededDraw,
    Spread,
    averaged,
    class_accuracies,
    compare,
    cumulate_traffic,
    curve,
    mean_interval,
    paired_difference,
    pooled_confusion,
    predicted_shares,
    ranked_clients,
    spread,
    spread_of_draws,
)
from fedjax_bal.metrics.table import METRICS, OWN_HITS, record_round, summarise_run
from fedjax_bal.metrics.traffic import (
    FAULT_WORDS,
    HUGE,
    LONG,
    NOT_FINITE,
    OUTDATED,
    Counts,
    Fault,
    FaultCounts,
    Traffic,
    count_round,
)
