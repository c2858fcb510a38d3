"""Metrics of rounds and runs, and their statistics over seeds."""

from fedjax_bal.metrics.class_groups import SHOTS, Shots, across_clients, client_accuracies, shot_groups
from fedjax_bal.metrics.classification import divergences, evenly_spaced, order_statistics, rank_correlations
from fedjax_bal.metrics.faults import FAULT_WORDS, HUGE, LONG, NOT_FINITE, OUTDATED, Fault, FaultCounts
from fedjax_bal.metrics.metric import OWN, REPORT_TABLES, Column, Metric, ReportTable
from fedjax_bal.metrics.results import RoundResult, RunHistory
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
from fedjax_bal.metrics.stopping import EarlyStopping, stopping_metrics
from fedjax_bal.metrics.table import METRICS, record_round, summarise_run
from fedjax_bal.metrics.traffic import Counts, Traffic, count_round
from fedjax_bal.metrics.units import NOTHING, SHARE, TEXT, Unit
