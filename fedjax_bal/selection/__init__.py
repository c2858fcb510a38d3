"""Host-side decisions, in NumPy: who is available, who is chosen, who delivers."""

from fedjax_bal.selection.availability import AVAILABILITY, DELIVERY, Presence, always, bernoulli, clustered, periodic
from fedjax_bal.selection.bandit import class_balancing_set, cucb, greedy, ucb_scores
from fedjax_bal.selection.choice import SELECTORS, Choice
from fedjax_bal.selection.estimates import COMPOSITION
from fedjax_bal.selection.mediators import mediated, mediators
from fedjax_bal.selection.orders import LOSS, by_size, power_of_choice, round_robin
from fedjax_bal.selection.selectors import Selector, make_plan, uniform

__all__ = [
    "AVAILABILITY",
    "COMPOSITION",
    "DELIVERY",
    "LOSS",
    "SELECTORS",
    "Choice",
    "Presence",
    "Selector",
    "always",
    "bernoulli",
    "by_size",
    "class_balancing_set",
    "clustered",
    "cucb",
    "greedy",
    "make_plan",
    "mediated",
    "mediators",
    "periodic",
    "power_of_choice",
    "round_robin",
    "ucb_scores",
    "uniform",
]
