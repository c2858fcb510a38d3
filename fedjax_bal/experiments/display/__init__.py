"""The progress display of a run: a live table in a terminal, plain lines elsewhere.

The runner calls the methods of `Progress`; `choose` picks the display.
"""

from rich.console import Console

from fedjax_bal.experiments.display.live import LiveProgress
from fedjax_bal.experiments.display.plain import PlainProgress
from fedjax_bal.experiments.display.protocol import Progress
from fedjax_bal.experiments.display.tally import RunProgress

__all__ = ["LiveProgress", "PlainProgress", "Progress", "RunProgress", "choose"]


def choose(console: Console, *, plain: bool = False) -> Progress:
    """The display that suits a console: a live one for a terminal that can move its cursor, else plain lines."""
    live = not plain and console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
    return LiveProgress(console) if live else PlainProgress(console)
