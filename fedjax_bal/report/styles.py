"""The style of each method in every figure: its colour, marker and dash.

The colours are Okabe and Ito's, which colour-blind readers can distinguish.

References:
    M. Okabe and K. Ito, Color Universal Design: how to make figures and presentations that are friendly to colorblind
    people, 2008.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedjax_bal.report.svg import WIDTH, blank
from fedjax_bal.report.wording import printable

COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
DASHES = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)))


def method_style(place: int, points: int = 1) -> dict[str, Any]:
    """Line properties of a method, given its place in the figure; about eight of its points get a marker."""
    every = max(1, points // 8)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": DASHES[place % len(DASHES)],
        "markevery": (place * every // 4 % every, every),
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
    }


def figure_with_legend(names: Sequence[str], height: float = 2.9, linestyle: str | None = None) -> tuple[Figure, Axes]:
    """An empty figure above a legend of methods.

    Args:
        names: the methods.
        height: of the figure in inches, but for the legend.
        linestyle: replaces each method's own dash in the legend, such as "none".
    """
    columns = _columns(names)
    figure = blank(height + 0.19 * -(-len(names) // columns))
    own = {} if linestyle is None else {"linestyle": linestyle}
    handles = [Line2D([], [], **{**method_style(place), **own}) for place in range(len(names))]
    labels = [printable(name, 40) for name in names]
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.2)
    return figure, figure.add_subplot()


def _columns(names: Sequence[str]) -> int:
    # Legends fill one column after the other; a letter takes about 5.6 points, all else in a column 56.
    widths = [56 + 5.6 * len(printable(name, 40)) for name in names]
    for columns in range(min(4, len(names)), 1, -1):
        if sum(max(column) for column in np.array_split(widths, columns)) <= 72 * WIDTH:
            return columns
    return 1
