"""The three kinds of figures of all pages: panels of curves, heat maps, and rows of images."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_bal.metrics import Curve, evenly_spaced
from fedjax_bal.report.svg import INK, SOFT, blank, style, text_scale, width
from fedjax_bal.report.wording import printable

# Okabe and Ito's colours, which colour-blind readers can distinguish, with the ink of the text for black. Each line has
# a marker too, so that a print in black and white tells them apart.
COLOURS = (INK, "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#8a8a8a"
# From a blue that even one sample sets off from the white of none.
SAMPLES = ListedColormap(colormaps["Blues"](np.linspace(0.2, 1, 256)))
MOST_NAMED = 20  # rows or columns of a heat map; of more, some have a name
MOST_POINTS = 1000  # of a line: a page is narrower than that
_MOST_NUMBERED = 10  # columns of a heat map whose numbers are written
_LONGEST_NAME = 22
_ROUND = [1, 2, 5, 10]


class Line(NamedTuple):
    """The name of a line beside its panel, its colour, and its marker."""

    label: str
    colour: str
    marker: str


class Panel(NamedTuple):
    """A panel of curves: its title, empty for none, and its lines by the names under which the data have them."""

    title: str
    lines: Mapping[str, Line]


class Series(NamedTuple):
    """Points to draw: `Float[E]` each, the edges of the band None without one."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def panels_of(
    names: Sequence[str], title: str = "", origins: Mapping[str, tuple[str, str]] | None = None
) -> list[Panel]:
    """Splits methods into panels with as many lines as there are colours.

    `origins` has the method and the run behind names that stand for both: methods that several runs have in common get
    a panel each, whose lines are the runs. Of other methods that are too many for one panel, the first is in each, in
    grey.
    """
    whole = {name: (origins or {}).get(name, (name, "")) for name in names}
    methods, runs = (list(dict.fromkeys(own)) for own in zip(*whole.values(), strict=True))
    if len(methods) < len(names) and len(runs) <= len(COLOURS):
        return [
            Panel(method, {name: _line(run, runs.index(run)) for name, (own, run) in whole.items() if own == method})
            for method in methods
        ]
    if len(names) <= len(COLOURS):
        return [Panel(title, {name: _line(name, place) for place, name in enumerate(names)})]
    first, *others = names
    repeated = {first: Line(first, GREY, "None")}
    parts = np.array_split(np.array(others, object), -(-len(others) // len(COLOURS)))
    return [Panel(title, repeated | {name: _line(name, place) for place, name in enumerate(part)}) for part in parts]


def _line(label: str, place: int) -> Line:
    return Line(label, COLOURS[place], MARKERS[place])


def percent(curve: Curve, x: np.ndarray | None = None) -> Series:
    """A curve of shares in percent, against its rounds or other positions."""
    low, high = (None if edge is None else 100 * np.clip(edge, 0, 1) for edge in (curve.low, curve.high))
    return Series(curve.rounds if x is None else x, 100 * curve.mean, low, high)


@style()
def curves(
    shown: Sequence[tuple[Panel, Mapping[str, Series]]],
    horizontal: str,
    vertical: str,
    *,
    target: float | None = None,
    late: bool = False,
    finish: Callable[[Axes], object] = lambda axes: None,
) -> Figure:
    """Curves by panel, all with the same axes, each panel with the series of its lines that there are.

    `target` is a height that is drawn as a line. With `late` the y-axis starts at what is reached after the first tenth
    of the x-axis: the first climb would leave no room for what sets methods apart at the end. `finish` is called with
    each panel's axes, for ticks and limits of their own.
    """
    # Panels with the same few lines share one legend below; others have theirs on the right.
    shared = len(shown) > 1 and len({line for panel, _ in shown for line in panel.lines.values()}) <= len(COLOURS)
    across = 2 if shared else 1
    down = -(-len(shown) // across)
    figure = blank(2.9 if len(shown) == 1 else (2.0 * down + 0.4) * text_scale())
    grid = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for axes in grid[len(shown) :]:
        axes.remove()
    drawn = grid[: len(shown)]
    for place, (axes, (panel, series)) in enumerate(zip(drawn, shown, strict=True)):
        axes.set_title(printable(panel.title, 44 // across), fontsize="medium", loc="left")
        axes.xaxis.set_major_locator(MaxNLocator(6 // across, steps=_ROUND, integer=True))
        for name, line in panel.lines.items():
            if name in series:
                _draw(axes, series[name], line)
        if target is not None:
            axes.axhline(target, color=SOFT, linewidth=1, zorder=1, label=f"target {target:g}%")
        if place % across == 0:
            axes.set_ylabel(vertical)
        if place + across >= len(shown):
            axes.set_xlabel(horizontal)
            axes.tick_params(labelbottom=True)
    for axes in drawn:
        finish(axes)
    if late:
        every = [own for _, series in shown for own in series.values()]
        last = max(own.x[-1] for own in every)
        least = min([100 if target is None else target, *(own.y[own.x >= last / 10].min(initial=100) for own in every)])
        drawn[0].set(xlim=(0, last), ylim=(max(least - 2, drawn[0].get_ylim()[0]), None))

    for axes in drawn if not shared else ():
        # In the order in which the lines end, from above.
        handles = sorted(axes.get_legend_handles_labels()[0], key=lambda own: -float(own.get_ydata()[-1]))
        names = [printable(str(own.get_label()), _LONGEST_NAME) for own in handles]
        axes.legend(handles, names, loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0, handlelength=1.6)
    if shared:
        found = {str(own.get_label()): own for axes in drawn for own in axes.get_legend_handles_labels()[0]}
        names = [printable(name, _LONGEST_NAME) for name in found]
        columns = int(72 * width() / ((max(map(len, names)) + 5) * 5.6 * text_scale()))
        figure.legend(list(found.values()), names, loc="outside lower center", ncols=max(1, columns))
    return figure


def _draw(axes: Axes, series: Series, line: Line) -> None:
    kept = evenly_spaced(len(series.x), MOST_POINTS)
    axes.plot(
        series.x[kept], series.y[kept], label=line.label, color=line.colour, marker=line.marker, zorder=3,
        markevery=max(1, len(kept) // 8), markeredgecolor="white", markeredgewidth=0.5,
    )  # fmt: skip
    if series.low is not None and series.high is not None:
        edges = series.low[kept], series.high[kept]
        axes.fill_between(series.x[kept], *edges, color=line.colour, alpha=0.12, linewidth=0)


@style()
def heat(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    label: str,
    *,
    horizontal: str = "",
    vertical: str = "",
    title: str = "",
    scale: tuple[float, float] = (0, 100),
    digits: int = 0,
    colours: ListedColormap | str = "Blues",
) -> Figure:
    """A heat map of `Float[rows, columns]`, blank for nan: with a number in each cell, or a bar of colours for many.

    `label` is what the bar shows, `scale` the values at its ends.
    """
    figure = blank(float(np.clip(0.25 * len(rows) + 1.1, 1.6, 4.4)))
    axes = figure.add_subplot()
    norm = Normalize(scale[0], max(scale[1], scale[0] + 1e-6))
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, norm=norm, interpolation="none", aspect="auto")
    axes.set(xlabel=horizontal, ylabel=vertical)
    if title:
        axes.set_title(textwrap.fill(printable(title, 110), 50), fontsize="medium")
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(True)
    name_places(axes.yaxis, rows)
    name_places(axes.xaxis, columns)
    if len(columns) > _MOST_NUMBERED or len(rows) > MOST_NAMED:
        bar = figure.colorbar(image, ax=axes, label=label, pad=0.02)
        bar.ax.yaxis.set_major_locator(MaxNLocator(5, steps=_ROUND))
        return figure
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "white" if norm(value) > 0.55 else INK
            axes.text(column, row, f"{value:,.{digits}f}", ha="center", va="center", color=colour, size="small")
    return figure


def name_places(axis: Axis, names: Sequence[str]) -> None:
    """Names the places 0, 1, ... of an axis, or some of many; long names of an x-axis are slanted."""
    places = evenly_spaced(len(names), MOST_NAMED if len(names) <= MOST_NAMED else 8).tolist()
    shown = [printable(str(names[place]), _LONGEST_NAME) for place in places]
    axis.set_ticks(places, shown)
    if isinstance(axis, XAxis) and sum(map(len, shown)) > 24:
        for text in axis.get_ticklabels():
            text.set(rotation=40, ha="right", rotation_mode="anchor")


@style()
def images(kinds: Sequence[tuple[str, np.ndarray]], classes: Sequence[str]) -> Figure:
    """Images of several kinds side by side, a row for each class, the first 20 at most.

    `kinds` are titles and pixels `UInt8[C, S, H, W, K]`, K 1 or 3.
    """
    rows = min(len(kinds[0][1]), len(classes), MOST_NAMED)
    widths = [pixels.shape[1] for _, pixels in kinds]
    narrow = max(widths) == 1
    figure = blank((1.0 if narrow else 0.5) + rows * min(0.27, 3.6 / (sum(widths) + len(widths))))
    side_by_side = figure.subplots(1, len(kinds), width_ratios=widths, squeeze=False)[0]
    for place, (axes, (title, pixels)) in enumerate(zip(side_by_side, kinds, strict=True)):
        _, shown, height, wide, channels = pixels.shape
        table = pixels[:rows].transpose(0, 2, 1, 3, 4).reshape(rows * height, shown * wide, channels)
        axes.imshow(table[..., 0] if channels == 1 else table, interpolation="nearest", cmap="gray", vmin=0, vmax=255)
        axes.set_title(title, rotation=90 if narrow else 0)
        names = [printable(name, _LONGEST_NAME) for name in classes[:rows]]
        axes.set_yticks(height * (np.arange(rows) + 0.5), [] if place else names)
        axes.set_xticks([])
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure
