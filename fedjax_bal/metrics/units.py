"""Units of metrics, and how a number in one is written."""

from typing import NamedTuple

from fedjax_bal.metrics.seeds import Spread

NOTHING = "\N{EN DASH}"
"""What stands in the place of a number that there isn't."""


class Unit(NamedTuple):
    """What headings say, empty for plain numbers; what a value is multiplied by; how the product is written."""

    symbol: str
    factor: float
    digits: str

    def show(self, value: Spread) -> str:
        """A mean over seeds, with the standard deviation where there is one.

        Example:
            >>> SHARE.show(Spread(0.7123, 0.008, 3)), SECONDS.show(Spread(1200.0, None, 1))
            ('71.2 ± 0.8', '1,200.0')
        """
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
