"""Small multiples: which curves share a panel, panels with the same axes, and names beside the ends of curves."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import offset_copy
from scipy.optimize import isotonic_regression

from fedjax_bal.report.styles import DASHES, LONGEST_LINE, Looks, parts_of
from fedjax_bal.report.svg import INK, blank, lay_out, text_scale, width
from fedjax_bal.report.wording import printable

_FEW = 4
GREY = "#8a8a8a"
_POINTS = 8.5  # the size of the names at curves
_LEAST_WIDTH = 1.15  # of a panel's axes, in inches
_ACROSS = 2


End = tuple[str, str, tuple[float, float]]
"""A text, a colour, and the point that they stand for."""


class Panel(NamedTuple):
    """A panel of curves.

    Attributes:
        title: above it; empty for none.
        labels: what is written at each curve, by the names under which the data have them.
        context: the name of the curve that is grey, as several panels repeat it; None for none.
    """

    title: str
    labels: dict[str, str]
    context: str | None = None

    def line(self, looks: Looks, name: str, points: int = 1) -> dict[str, Any]:
        """Properties of the line of a curve."""
        line = looks[name].line(points)
        return {**line, "color": GREY, "marker": "None"} if name == self.context else line


def panels_of(looks: Looks, names: Sequence[str], title: str = "") -> list[Panel]:
    """Splits methods into panels of a few.

    Methods that several runs have in common get a panel each, whose dashes are the runs, if there are dashes for all.
    Others stand in their order, and the first one is in each panel.
    """
    methods, runs = ({name: getattr(looks[name], key) for name in names} for key in ("method", "run"))
    groups = {method: [name for name in names if methods[name] == method] for method in methods.values()}
    if 1 < len(groups) < len(names) and len(set(runs.values())) <= len(DASHES):
        return [Panel(method, {name: runs[name] for name in own}) for method, own in groups.items()]
    both = {name: f"{methods[name]} ({runs[name]})" if runs[name] else methods[name] for name in names}
    label = runs if len(groups) == 1 < len(names) else both
    parts = parts_of(names)
    return [Panel(title, {name: label[name] for name in own}, names[0] if len(parts) > 1 else None) for own in parts]


def panels_in_words(panels: Sequence[Panel], looks: Looks) -> str:
    """The sentence of a caption on what the panels show; empty where there is nothing to say."""
    if any(panel.context for panel in panels):
        return " Each panel shows some of the methods, and the first one in grey."
    if len(panels) > 1 and len({looks[name].run for panel in panels for name in panel.labels}) > 1:
        return " A panel shows one method, its dashes the runs."
    return ""


def shows_seeds(panels: Sequence[Panel]) -> bool:
    """Tells whether panels have few enough curves for one of each seed, too."""
    return all(len(panel.labels) <= _FEW for panel in panels)


def panelled(panels: Sequence[Panel], height: float = 2.9, more: Iterable[str] = ()) -> tuple[Figure, list[Axes]]:
    """An empty figure: one panel of a height in inches, or several smaller ones with the same axes.

    Beside each is room for the labels of its curves and for `more` names.
    """
    named = [*(text for panel in panels for text in panel.labels.values()), *more]
    longest = max((len(_shown(text)) for text in named), default=0)
    room = width() - 0.55 - _ACROSS * (0.15 + 0.58 * longest * _size() / 72)
    across = min(_ACROSS if room >= _ACROSS * _LEAST_WIDTH else 1, len(panels))
    down = -(-len(panels) // across)
    figure = blank(height if down == across == 1 else 0.68 * height * text_scale() * down)
    drawn = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for axes, panel in zip(drawn, panels, strict=False):
        axes.set_title(printable(panel.title, 2 * LONGEST_LINE), fontsize="medium", loc="left")
    for axes in drawn[len(panels) :]:
        axes.remove()
        drawn[len(panels) - across].tick_params(labelbottom=True)
    return figure, drawn[: len(panels)]


def label(
    drawn: Sequence[Axes],
    panels: Sequence[Panel],
    looks: Looks,
    horizontal: str,
    vertical: str,
    ends: Sequence[Mapping[str, tuple[float, float]]],
    *more: End,
) -> None:
    """Labels the outer axes of panels, and in the margin the end of each curve; to be called last.

    `ends` are for each panel the last points of its curves by name; `more` are written in every panel.
    """
    grid: Any = drawn[0].get_gridspec()
    for place, axes in enumerate(drawn):
        if place % grid.ncols == 0:
            axes.set_ylabel(vertical)
        if place + grid.ncols >= len(drawn):
            axes.set_xlabel(horizontal)
    lay_out(cast(Figure, drawn[0].figure))
    for axes, panel, last in zip(drawn, panels, ends, strict=True):
        own = [(text, str(panel.line(looks, name)["color"]), last[name]) for name, text in panel.labels.items()]
        _label_ends(axes, [*own, *more])


def _label_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Writes texts one above the other, each with a line to its point."""
    (low, high), figure = axes.get_ylim(), cast(Any, axes.figure)
    ordered = sorted(ends, key=lambda end: end[2][1])
    heights = np.array([(point[1] - low) / (high - low) for *_, point in ordered])
    step = 1.2 * _size() / 72 / (axes.get_window_extent().height / figure.dpi)
    margin = offset_copy(axes.transAxes, figure, _POINTS, units="points")
    for (text, colour, point), place in zip(ordered, _spread_out(heights, step), strict=True):
        axes.annotate(
            _shown(text), point, (1, place), textcoords=margin, annotation_clip=False, va="center",
            size=_size(), color=INK,
            arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.9, "linestyle": ":", "shrinkA": 1, "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )  # fmt: skip


def _spread_out(heights: np.ndarray, step: float) -> np.ndarray:
    """The nearest heights, in rising order, that are a step apart and within 0 and 1 where there is room."""
    if not len(heights):
        return heights
    steps = step * np.arange(len(heights))
    fitted = np.asarray(isotonic_regression(heights - steps).x)
    return np.clip(fitted, 0, max(1 - step / 2 - steps[-1], 0)) + steps


def _shown(name: str) -> str:
    return printable(name, LONGEST_LINE + 4)


def _size() -> float:
    return text_scale() * _POINTS
