"""The look of each method in every figure: colour and marker by the method's name, the dash by its run.

The colours are Okabe and Ito's, which colour-blind readers can distinguish, with the ink of the text for black.

References:
    M. Okabe and K. Ito, Color Universal Design: how to make figures and presentations that are friendly to colorblind
    people, 2008.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import MaxNLocator

from fedjax_bal.report.svg import INK
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
    slots = _slots(list(dict.fromkeys(method for method, _ in behind.values())))
    return {name: Look(method, run, slots[method], runs.index(run)) for name, (method, run) in behind.items()}


def parts_of(names: Sequence[str]) -> list[list[str]]:
    """Splits methods into as few as a panel has room for; of several parts the first method is in each.

    >>> [len(part) for part in parts_of("abcdefgh")], [len(part) for part in parts_of("abcdefghi")]
    ([8], [5, 5])
    """
    if len(names) <= len(COLOURS) + 1:
        return [list(names)]
    count = -(-(len(names) - 1) // len(COLOURS))
    return [[names[0], *(names[int(place)] for place in own)] for own in np.array_split(range(1, len(names)), count)]


def _slots(methods: Sequence[str]) -> dict[str, int]:
    parts = parts_of(methods)
    slots: dict[str, int] = {}
    for method in sorted(methods, key=lambda own: own not in _OWN_COLOUR):
        first = _OWN_COLOUR.index(method) if method in _OWN_COLOUR else crc32(method.encode(errors="replace"))
        # The first method is grey where it is in several parts, and so leaves its colour to others.
        beside = next(part[len(parts) > 1 :] for part in parts if method in part)
        slots[method] = _free_slot(list(slots.values()), [slots[own] for own in beside if own in slots], first)
    return slots


def _free_slot(taken: Sequence[int], beside: Sequence[int], first: int) -> int:
    """The slot whose colour is rarest beside it, then so far, then its marker; of several the next from `first` on."""
    near, colours, markers = (
        Counter(slot % len(kind) for slot in own)
        for own, kind in ((beside, COLOURS), (taken, COLOURS), (taken, MARKERS))
    )

    def rarity(slot: int) -> tuple[int, ...]:
        colour, marker = slot % len(COLOURS), slot % len(MARKERS)
        return near[colour], colours[colour], markers[marker], (slot - first) % _SLOTS

    return min(range(_SLOTS), key=rarity)


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
