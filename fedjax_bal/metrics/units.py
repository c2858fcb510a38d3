"""Units of metrics, and how a number in one is written."""

from typing import NamedTuple

from fedjax_bal.metrics.seeds import Spread

NOTHING = "\N{EN DASH}"
"""Stands for a number that is missing."""


class Unit(NamedTuple):
    """A symbol for headings, empty for plain numbers; the factor of a value; the format of the product."""

    symbol: str
    factor: float
    digits: str

    def show(self, value: Spread) -> str:
        """A mean over seeds, with the standard deviation if there is one."""
        if value.mean is None:
            return NOTHING
        numbers = [value.mean] if value.std is None else [value.mean, value.std]
        return " ± ".join(f"{self.factor * number:{self.digits}}" for number in numbers)


SHARE = Unit("%", 100, ".1f")
POINTS = Unit("points", 100, ".1f")
NATS = Unit("nats", 1, ".3f")
SECONDS = Unit("s", 1, ",.1f")
NUMBER = Unit("", 1, "g")
TEXT = Unit("", 1, "s")
