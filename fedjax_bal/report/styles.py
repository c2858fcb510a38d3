"""The look of each method in every figure: colour and marker by the method's name, the dash by its run.

The colours are Okabe and Ito's, which colour-blind readers can distinguish, with the ink of the text for black.

References:
    M. Okabe and K. Ito, Color Universal Design: how to make figures and presentations that are friendly to colorblind
    people, 2008.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedjax_bal.report.svg import INK, blank, text_scale, width
from fedjax_bal.report.wording import printable

COLOURS = (INK, "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
DASHES = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)))
LONGEST_LINE = 22
ROUND = [1, 2, 5, 10]
_OWN_COLOUR = ("fedavg", "balanced_softmax", "rebafl", "astraea", "cbfl", "flcir", "iwds")
_SLOTS = len(COLOURS) * len(MARKERS)  # each a different pair, as the two numbers have no common divisor


class Look(NamedTuple):
    """The style in which the curve of one method of one run is drawn.

    Attributes:
        method: its name without that of the run.
        run: the run's name; empty where there is only one.
        slot: of the pairs of a colour and a marker.
        dash: the place of the run's dash.
    """

    method: str
    run: str
    slot: int
    dash: int

    @property
    def colour(self) -> str:
        """The colour of its lines and marks."""
        return COLOURS[self.slot % len(COLOURS)]

    def line(self, points: int = 1) -> dict[str, Any]:
        """Properties of its line; about eight of the points get a marker."""
        every = max(1, points // 8)
        return {
            "color": self.colour,
            "marker": MARKERS[self.slot % len(MARKERS)],
            "linestyle": DASHES[self.dash % len(DASHES)],
            "markevery": (self.slot * every // 4 % every, every),
            "markeredgecolor": "white",
            "markeredgewidth": 0.5,
        }


Looks = Mapping[str, Look]
"""The looks of all methods of a page, by the names under which its data have them."""


def looks_of(names: Sequence[str], origins: Mapping[str, tuple[str, str]] | None = None) -> Looks:
    """Gives each method its look: that of its name, whatever else the page shows, as far as there are colours for all.

    `origins` has the method and the run behind names that stand for both.

    >>> looks = looks_of(["fedavg (a)", "fedavg (b)"], {"fedavg (a)": ("fedavg", "a"), "fedavg (b)": ("fedavg", "b")})
    >>> [(look.colour, look.dash) for look in looks.values()]
    [('#222222', 0), ('#222222', 1)]
    """
    behind = {name: (origins or {}).get(name, (name, "")) for name in names}
    runs = list(dict.fromkeys(run for _, run in behind.values()))
    slots = _slots(dict.fromkeys(method for method, _ in behind.values()))
    return {name: Look(method, run, slots[method], runs.index(run)) for name, (method, run) in behind.items()}


def _slots(methods: Iterable[str]) -> dict[str, int]:
    slots: dict[str, int] = {}
    for method in sorted(methods, key=lambda own: own not in _OWN_COLOUR):
        first = _OWN_COLOUR.index(method) if method in _OWN_COLOUR else crc32(method.encode(errors="replace"))
        slots[method] = _free_slot(list(slots.values()), first)
    return slots


def _free_slot(taken: Sequence[int], first: int) -> int:
    """The slot whose colour, then whose marker, is rarest so far; of several the next one from `first` on."""
    colours, markers = (Counter(slot % len(kind) for slot in taken) for kind in (COLOURS, MARKERS))
    rarity = lambda slot: (colours[slot % len(COLOURS)], markers[slot % len(MARKERS)], (slot - first) % _SLOTS)
    return min(range(_SLOTS), key=rarity)


def legend_of(looks: Iterable[Look]) -> list[tuple[str, dict[str, Any]]]:
    """An entry for each method: its name, and the properties of its line."""
    return [(f"{look.method} ({look.run})" if look.run else look.method, look.line()) for look in looks]


def panels_of(looks: Looks, names: Sequence[str]) -> tuple[dict[str, list[str]], list[tuple[str, dict[str, Any]]]]:
    """Splits methods into panels by title, and gives the legend that all share.

    Methods that several runs have in common get a panel each, whose legend are the runs' dashes; else there is one.
    """
    panels: dict[str, list[str]] = {}
    for name in names:
        panels.setdefault(looks[name].method, []).append(name)
    if len(panels) == 1 or all(len(own) == 1 for own in panels.values()):
        return {"": list(names)}, legend_of(looks[name] for name in names)
    runs = {looks[name].run: looks[name].dash for name in names}
    return panels, [(run, {"color": INK, "linestyle": DASHES[dash % len(DASHES)]}) for run, dash in runs.items()]


def panelled(
    titles: Sequence[str], legend: Sequence[tuple[str, dict[str, Any]]], height: float = 2.9
) -> tuple[Figure, list[Axes]]:
    """An empty figure above a legend: one panel of a height in inches, or several smaller ones with the same axes."""
    across = min(2, len(titles))
    down = -(-len(titles) // across)
    columns = _columns([name for name, _ in legend])
    figure = blank(height * (1 if down == across == 1 else 0.68 * down) + 0.19 * -(-len(legend) // columns))
    handles = [Line2D([], [], **line) for _, line in legend]
    labels = [printable(name, 40) for name, _ in legend]
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.2)
    panels = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(printable(title, 2 * LONGEST_LINE), fontsize="medium")
    for axes in panels[len(titles) :]:
        axes.remove()
        panels[len(titles) - across].tick_params(labelbottom=True)
    return figure, panels[: len(titles)]


def label(panels: Sequence[Axes], horizontal: str, vertical: str) -> None:
    """Labels the outer axes of panels, two in a row."""
    for place, axes in enumerate(panels):
        if place % 2 == 0:
            axes.set_ylabel(vertical)
        if place + 2 >= len(panels):
            axes.set_xlabel(horizontal)


def number_clients(axis: Axis, clients: Sequence[int]) -> None:
    """Ticks at up to six clients that stand side by side, and of more at round numbers."""
    locator = MaxNLocator(6, steps=ROUND, integer=True, min_n_ticks=1)
    at = clients if len(clients) <= 6 else locator.tick_values(clients[0], clients[-1])
    shown = [int(number) for number in at if clients[0] <= number <= clients[-1]]
    places = np.interp(shown, clients, np.arange(len(clients)))
    axis.set_ticks(list(places), [f"{number:,}" for number in shown])


def two_lines(name: str) -> str:
    """A name in up to two lines, broken where it has a mark if possible."""
    text = printable(name, 2 * LONGEST_LINE)
    if len(text) <= LONGEST_LINE:
        return text
    cut = max(text.rfind(mark, 0, LONGEST_LINE) for mark in " _+,-") + 1 or LONGEST_LINE
    return f"{text[:cut].rstrip()}\n{printable(text[cut:], LONGEST_LINE)}"


def _columns(names: Sequence[str]) -> int:
    # Legends fill one column after the other; a letter takes about 5.6 points, all else in a column 56.
    widths = [text_scale() * (56 + 5.6 * len(printable(name, 40))) for name in names]
    for columns in range(min(4, len(names)), 1, -1):
        if sum(max(column) for column in np.array_split(widths, columns)) <= 72 * width():
            return columns
    return 1
