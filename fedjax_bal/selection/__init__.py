"""Host-side decisions, in NumPy: who is available, who is chosen, who delivers."""

from fedjax_bal.selection.availability import AVAILABILITY, DELIVERY, Presence, always, bernoulli, clustered, periodic
from fedjax_bal.selection.selectors import SELECTORS, Selector, make_plan, uniform

__all__ = [
    "AVAILABILITY",
    "DELIVERY",
    "SELECTORS",
    "Presence",
    "Selector",
    "always",
    "bernoulli",
    "clustered",
    "make_plan",
    "periodic",
    "uniform",
]
