"""Host-side decisions, in NumPy: which clients are available, selected, and deliver."""

from fedjax_bal.selection import speed
from fedjax_bal.selection.availability import PATTERNS, Pattern, Presence, always, bernoulli, clustered, periodic
from fedjax_bal.selection.bandit import class_balancing_set, cucb, greedy, ucb_scores
from fedjax_bal.selection.buffered import buffered
from fedjax_bal.selection.choice import FROM_FEDERATION, SELECTORS, Choice
from fedjax_bal.selection.mediators import mediated, mediators
from fedjax_bal.selection.patterns import Cyclic, Markov, Window, arrival, cyclic, departure, markov, rotation
from fedjax_bal.selection.selectors import (
    LOSS,
    Asynchrony,
    Selector,
    by_size,
    make_plan,
    power_of_choice,
    round_robin,
    uniform,
)
from fedjax_bal.selection.speed import SPEEDS, Speed
from fedjax_bal.selection.trace import Trace, trace

__all__ = [
    "FROM_FEDERATION",
    "LOSS",
    "PATTERNS",
    "SELECTORS",
    "SPEEDS",
    "Asynchrony",
    "Choice",
    "Cyclic",
    "Markov",
    "Pattern",
    "Presence",
    "Selector",
    "Speed",
    "Trace",
    "Window",
    "always",
    "arrival",
    "bernoulli",
    "buffered",
    "by_size",
    "class_balancing_set",
    "clustered",
    "cucb",
    "cyclic",
    "departure",
    "greedy",
    "make_plan",
    "markov",
    "mediated",
    "mediators",
    "periodic",
    "power_of_choice",
    "rotation",
    "round_robin",
    "speed",
    "trace",
    "ucb_scores",
    "uniform",
]


def __dir__() -> list[str]:
    return __all__
