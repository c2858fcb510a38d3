"""Optimizers and schedules by name, over optax."""

from fedjax_bal.optim.optimizers import (
    USUAL_RATES,
    AnyOptimizer,
    Optimizer,
    as_optimizer,
    check_known,
    fedopt,
    optimizer,
    optimizer_factory,
    optimizer_names,
    option_names,
)
from fedjax_bal.optim.schedules import schedule, schedule_factory, schedule_names

__all__ = [
    "USUAL_RATES",
    "AnyOptimizer",
    "Optimizer",
    "as_optimizer",
    "check_known",
    "fedopt",
    "optimizer",
    "optimizer_factory",
    "optimizer_names",
    "option_names",
    "schedule",
    "schedule_factory",
    "schedule_names",
]
