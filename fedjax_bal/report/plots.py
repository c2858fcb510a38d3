"""The kinds of figures on all pages (panels of curves, heat maps, rows of images), and their SVG, PDF and PNG files.

This module imports matplotlib, so callers that must start quickly import it late.
"""

import contextlib
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.ticker import MaxNLocator

from fedjax_bal.metrics import Curve, evenly_spaced
from fedjax_bal.report.tables import LONGEST_NAME, printable, split_math

# Widths on a page, in inches: of one of its two columns, and of both, for figures with several panels.
WIDTH = 4.6
WIDE = 9.4
PHONE = 3.5
_WIDTH: ContextVar[float | None] = ContextVar("width of figures in inches", default=None)
INK = "#222222"
SOFT = "#666666"
GREY = "#8a8a8a"
# Okabe and Ito's colours, which colour-blind readers can distinguish, with the text colour for black. Each line also
# has a marker, so that it can be recognised in black and white.
COLOURS = (INK, "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Starts with a blue that distinguishes a single sample from none, which is white.
SAMPLES = ListedColormap(colormaps["Blues"](np.linspace(0.2, 1, 256)))
MOST_NAMED = 20  # labelled rows or columns of a heat map; if there are more, only some are labelled
MOST_POINTS = 1000  # per line: a page has fewer pixels
_MOST_NUMBERED = 10  # maximum number of columns of a heat map with numbers in its cells
_NARROWEST = 3.0  # inches: the smallest panel that has room for the numbers of ten columns
_LONGEST_LINE = 24  # letters of a name next to axes; longer names take several lines
_NARROW = 4.0  # inches: narrower panels have their legend above or below, not on the right
_BREAKS = re.compile(r"(\s+|(?<=\w[-+])(?=\w))")  # where a name may be broken
_FIRM = "\N{NO-BREAK SPACE}"
_LETTER = 4.8  # points: the mean width of a letter of 9 points
_ROUND = [1, 2, 5, 10]

STYLE = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "legend.frameon": False,
    # Text isn't converted to paths, so that files stay small and papers can edit it.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedjax_bal",
}
_OF_FONTS = ("mathtext.", "axes.formatter.use_mathtext", "axes.unicode_minus")
_SIZES = {"font.size": 9.5, "axes.labelsize": 9.5, "axes.titlesize": 10.0} | dict.fromkeys(
    ("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9.0
)

Drawn = tuple[str, str, str, Figure]
"""A figure with its name, title and caption."""


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Returns a context, or decorator, for drawing and writing figures: this style on matplotlib's defaults.

    Of the user's matplotlib settings only the fonts are used, and none is changed. Text shrinks with the width, down to
    7 points.
    """
    look: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")}
    look |= STYLE | {key: _text_scale() * size for key, size in _SIZES.items()}
    look |= {key: matplotlib.rcParams[key] for key in matplotlib.rcParamsDefault if key.startswith(_OF_FONTS)}
    fonts = _users_fonts()
    look["font.family"] = [*fonts, "sans-serif"]
    look["axes.formatter.use_mathtext"] |= "cmr10" in fonts  # which has no minus sign
    with matplotlib.rc_context(look):
        yield


def _users_fonts() -> list[str]:
    """Returns the installed fonts that the user's settings name, in order; none for matplotlib's default settings."""
    settings = cast("Mapping[str, Any]", matplotlib.rcParams)
    names: list[str] = []
    for family in settings["font.family"]:
        listed = settings.get(f"font.{family}", [family])  # a generic family such as "serif", or a font
        if listed not in (matplotlib.rcParamsDefault["font.sans-serif"], STYLE["font.sans-serif"]):
            names += listed
    return [name for name in dict.fromkeys(names) if name in fontManager.get_font_names()]


def _text_scale() -> float:
    return min(1.0, max(_width() / WIDTH, 7.0 / 9.0))


def _letters(inches: float) -> int:
    """Counts the letters that fit in a line of a title above a panel of some width."""
    return int(10 * inches / _text_scale())


def _width(*, wide: bool = False) -> float:
    return _WIDTH.get() or (WIDE if wide else WIDTH)


@contextlib.contextmanager
def as_wide_as(inches: float) -> Iterator[None]:
    """Returns a context in which figures are drawn for a column of another width."""
    before = _WIDTH.set(inches)
    try:
        yield
    finally:
        _WIDTH.reset(before)


class ShownFigure(Figure):
    """A figure that a notebook shows as the result of a cell, also without pyplot."""

    def _repr_png_(self) -> bytes:
        return to_png(self, 150)


def _blank(height: float, *, wide: bool = False) -> Figure:
    # Without pyplot, which would keep every figure in memory.
    return ShownFigure(figsize=(_width(wide=wide), height), layout="constrained")


def _small_multiples(figure: Figure, panels: int, across: int, *, shared: bool) -> list[Any]:
    """Adds the axes of panels in rows of `across`; `shared`: with the same limits and ticks."""
    grid = list(figure.subplots(-(-panels // across), across, sharex=shared, sharey=shared, squeeze=False).flat)
    for axes in grid[panels:]:
        axes.remove()
    return grid[:panels]


def to_svg(figure: Figure, title: str) -> str:
    """Converts a figure to an SVG document with a title, without a date."""
    return _save(figure, format="svg", metadata={"Title": printable(title), "Date": None, "Creator": None}).decode()


def to_png(figure: Figure, dots_per_inch: int = 200) -> bytes:
    """Converts a figure to PNG; the same figure gives the same bytes."""
    return _save(figure, format="png", dpi=dots_per_inch, metadata={"Software": None})


def to_pdf(figure: Figure) -> bytes:
    """Converts a figure to PDF; the same figure gives the same bytes."""
    return _save(figure, format="pdf", metadata={"CreationDate": None})


def _save(figure: Figure, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with style(), warnings.catch_warnings():
        # Names of eighty characters for several panels leave no room for axes: a bad figure, but no fault of the run.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        if options["format"] == "svg":  # whose text a browser draws, in any script
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, **options)
    return buffer.getvalue()


def wrapped(text: str, letters: int = _LONGEST_LINE) -> str:
    """Formats a name for a figure, in even lines of limited length; `$...$` are formulas, see `split_math`.

    They are text beside letters that the first font lacks, because matplotlib then tries no other font for these.
    """
    shown = printable(text, LONGEST_NAME)
    pieces = split_math(shown)
    if len(pieces) > 1 and not _has_letters("".join(pieces[::2])):
        pieces = [shown]
    # A line must not end within a formula.
    pieces[1::2] = [formula.replace(" ", _FIRM) for formula in pieces[1::2]]
    pieces[::2] = [text.replace("$", "\\$") for text in pieces[::2]]
    whole = "".join(pieces)
    wrapper = textwrap.TextWrapper(break_long_words=len(pieces) == 1, break_on_hyphens=False)
    if len(pieces) == 1:
        wrapper.wordsep_simple_re = _BREAKS

    def fill(width: int) -> list[str]:
        wrapper.width = width
        return wrapper.wrap(whole)

    lines = fill(letters)
    longest = max(map(len, whole.split()), default=0)
    even = (fill(width) for width in range(max(1, min(longest, letters)), letters))
    lines = next((shorter for shorter in even if len(shorter) == len(lines)), lines)
    return "\n".join(lines).replace(_FIRM, " ")


def _has_letters(text: str) -> bool:
    font = get_font(findfont(FontProperties()))
    return all(font.get_char_index(ord(letter)) for letter in text)


class LineStyle(NamedTuple):
    """A line's name in the legend, its colour, and its marker."""

    label: str
    colour: str
    marker: str


class Panel(NamedTuple):
    """A panel of curves: its title (may be empty), and its lines by their names in the data."""

    title: str
    lines: Mapping[str, LineStyle]


class Series(NamedTuple):
    """Points to draw, `Float[E]` each; the edges of the band are None without a band."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


Panels = Sequence[tuple[Panel, Mapping[str, Series]]]
"""Panels, each with the series of its lines."""


def panels_of(
    names: Sequence[str], title: str = "", origins: Mapping[str, tuple[str, str]] | None = None
) -> list[Panel]:
    """Distributes methods over panels, each with at most as many lines as there are colours.

    `origins` maps names of joined runs to method and run: a method that several runs share gets its own panel, with one
    line per run. Other methods are split over panels if there are too many for one; then the first method is drawn in
    every panel, in grey.
    """
    pairs = {name: (origins or {}).get(name, (name, "")) for name in names}
    methods = list(dict.fromkeys(method for method, _ in pairs.values()))
    runs = list(dict.fromkeys(run for _, run in pairs.values()))
    looks = list(zip(COLOURS, MARKERS, strict=True))
    if len(methods) < len(names) and len(runs) <= len(COLOURS):
        of_runs = {run: LineStyle(run, *look) for run, look in zip(runs, looks, strict=False)}
        return [
            Panel(method, {name: of_runs[run] for name, (of, run) in pairs.items() if of == method})
            for method in methods
        ]
    parts = [names]
    repeated = {}
    if len(names) > len(COLOURS):
        first, *others = names
        repeated[first] = LineStyle(first, GREY, "None")
        count = -(-len(others) // len(COLOURS))
        parts = [part.tolist() for part in np.array_split(np.array(others, object), count)]
    return [
        Panel(title, repeated | {name: LineStyle(name, *look) for name, look in zip(part, looks, strict=False)})
        for part in parts
    ]


def with_series(panels: Sequence[Panel], series: Mapping[str, Series]) -> list[tuple[Panel, Mapping[str, Series]]]:
    """Returns the panels for which there are series, with their series."""
    return [(panel, series) for panel in panels if any(name in series for name in panel.lines)]


def percent(curve: Curve, x: np.ndarray | None = None) -> Series:
    """Converts a curve of fractions to percent, against rounds or other positions."""
    low, high = (None if edge is None else 100 * np.clip(edge, 0, 1) for edge in (curve.low, curve.high))
    return Series(curve.rounds if x is None else x, 100 * curve.mean, low, high)


@style()
def curves(
    shown: Panels,
    horizontal: str,
    vertical: str,
    *,
    target: float | None = None,
    late: bool = False,
    below: bool = False,
    finish: Callable[[Axes], object] = lambda axes: None,
) -> Figure:
    """Draws curves in panels with common axes.

    `target` is drawn as a horizontal line. With `late` the x-axis spans the data, and the y-axis starts at the level
    reached after the first tenth of each line, because the first climb would hide the differences at the end. `finish`
    is called with each panel's axes to set ticks and limits. With `below` a single panel's legend is below it, too.
    """
    # Panels with the same few lines share one legend below, as does a narrow one; otherwise each has its legend on the
    # right, or above it where it is narrow.
    few = len({line for panel, _ in shown for line in panel.lines.values()}) <= len(COLOURS)
    shared = few and (below or len(shown) > 1 or _width() < _NARROW)
    wide = len(shown) > 2 or (len(shown) == 2 and not shared)
    width = _width(wide=wide)
    across = min(len(shown), max(2, int(width / _NARROWEST)) if shared else max(1, int(width / WIDTH)))
    inches = width / across
    beside = not shared and inches >= _NARROW
    height = float(np.clip(0.7 * inches, 2.0 * _text_scale(), 2.7)) * -(-len(shown) // across) + 0.2 * _text_scale()
    figure = _blank(2.9 if len(shown) == 1 and beside else height, wide=wide)
    drawn = _small_multiples(figure, len(shown), across, shared=True)
    for place, (axes, (panel, series)) in enumerate(zip(drawn, shown, strict=True)):
        if shared or beside:
            axes.set_title(wrapped(panel.title, _letters(inches)), fontsize="medium", loc="left")
        axes.xaxis.set_major_locator(MaxNLocator(max(3, int(1.4 * inches)), steps=_ROUND, integer=True))
        for name, line in panel.lines.items():
            if name not in series:
                continue
            x, y, low, high = series[name]
            kept = evenly_spaced(len(x), MOST_POINTS)
            axes.plot(
                x[kept], y[kept], label=line.label, color=line.colour, marker=line.marker, zorder=3,
                markevery=max(1, len(kept) // 8), markeredgecolor="white", markeredgewidth=0.5,
            )  # fmt: skip
            if low is not None and high is not None:
                axes.fill_between(x[kept], low[kept], high[kept], color=line.colour, alpha=0.12, linewidth=0)
        if target is not None:
            axes.axhline(target, color=SOFT, linewidth=1, zorder=1, label=f"target {target:g}%")
        if place % across == 0:
            axes.set_ylabel(wrapped(vertical, LONGEST_NAME))
        if place + across >= len(shown):
            axes.set_xlabel(wrapped(horizontal, LONGEST_NAME))
            axes.tick_params(labelbottom=True)
    for axes in drawn:
        finish(axes)
    if late:
        every = [points for _, series in shown for points in series.values()]
        first = min(points.x[0] for points in every)
        last = max(points.x[-1] for points in every)
        room = 0.03 * (last - first) or 0.5  # for half a marker
        reached = [points.y[points.x >= points.x[-1] / 10].min() for points in every]
        least = min([100 if target is None else target, *reached])
        drawn[0].set(xlim=(first - room, last + room), ylim=(max(least - 2, drawn[0].get_ylim()[0]), None))

    if shared:
        found = {str(line.get_label()): line for axes in drawn for line in axes.get_legend_handles_labels()[0]}
        names, options = _legend_layout(figure, list(found), width)
        figure.legend(list(found.values()), names, loc="outside lower center", **options)
        return figure
    for axes, (panel, _) in zip(drawn, shown, strict=True):
        # In the vertical order of the lines' ends.
        handles = sorted(axes.get_legend_handles_labels()[0], key=_end, reverse=True)
        labels = [str(handle.get_label()) for handle in handles]
        if beside:
            names = [wrapped(label) for label in labels]
            axes.legend(handles, names, loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0, handlelength=1.6)
        else:
            names, options = _legend_layout(figure, labels, 0.85 * inches)
            title = wrapped(panel.title, _letters(inches))
            axes.legend(handles, names, loc="lower center", bbox_to_anchor=(0.5, 1), title=title, **options)
    return figure


def _end(handle: Any) -> float:
    """Returns the height at which a line ends, which sorts the legend; bars come last."""
    return float(handle.get_ydata()[-1]) if hasattr(handle, "get_ydata") else -np.inf


def _legend_layout(figure: Figure, labels: Sequence[str], inches: float) -> tuple[list[str], dict[str, Any]]:
    """Makes room for a legend below a figure; returns its entries, and as many columns as fit."""
    letter = _LETTER * _text_scale()
    letters = int(72 * inches / letter)
    handle = 7  # letters that a handle and the space after a column take
    names = [wrapped(label, letters - handle) for label in labels]
    for count in range(min(len(names), 6), 0, -1):
        columns = [[line for name in column for line in name.split("\n")] for column in np.array_split(names, count)]
        # A formula's commands are letters.
        widths = ([len(re.sub(r"\\[A-Za-z]+|\$", "x", line)) for line in lines] for lines in columns)
        if sum(max(lengths) + handle for lengths in widths) <= letters:
            break
    figure.set_figheight(figure.get_figheight() + 0.18 * _text_scale() * max(map(len, columns)))
    return names, {"ncols": count, "columnspacing": 1.2, "handlelength": 1.6}


class Grid(NamedTuple):
    """A panel of a heat map: its title (may be empty), `Float[rows, columns]`, blank for nan, and column names."""

    title: str
    values: np.ndarray
    columns: Sequence[str]


@style()
def heat(
    grids: Sequence[Grid],
    rows: Sequence[str],
    label: str,
    *,
    horizontal: str = "",
    vertical: str = "",
    scale: tuple[float, float] = (0, 100),
    digits: int = 0,
    colours: ListedColormap | str = "Blues",
) -> Figure:
    """Draws heat maps with common rows and one colour scale, with numbers in few cells or a colour bar for many.

    `label` names the quantity on the bar, `scale` gives the values at its ends.
    """
    count = len(grids)
    width = _width(wide=count > 1)
    across = min(count, max(2, int(width / _NARROWEST)))
    inches = width / across
    most = max(len(grid.columns) for grid in grids)
    numbered = most <= _MOST_NUMBERED * inches / _NARROWEST and len(rows) <= MOST_NAMED
    # A row needs a line of text, and more for a number.
    lines = sum(wrapped(str(name)).count("\n") + 1 for name in rows) if len(rows) <= MOST_NAMED else len(rows)
    row = 0.25 if inches >= _NARROWEST else 0.14
    height = float(np.clip(row * lines + 0.3, 0.8, min(3.6, 1.2 * inches + 0.3))) * -(-count // across)
    # Room for the names of columns; above a row that isn't full the row before has them, too.
    room = 0.8 if count == 1 else 1.2 if count % across == 0 else 2.2
    figure = _blank(height + room, wide=count > 1)
    drawn = _small_multiples(figure, count, across, shared=False)
    norm = Normalize(scale[0], max(scale[1], scale[0] + 1e-6))
    for place, (axes, grid) in enumerate(zip(drawn, grids, strict=True)):
        values = np.ma.masked_invalid(grid.values)
        axes.imshow(values, cmap=colours, norm=norm, interpolation="none", aspect="auto")
        if grid.title:
            axes.set_title(wrapped(grid.title, _letters(inches)), fontsize="medium")
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(True)
        # Names on the left and below serve all panels that have the same.
        left = place % across == 0
        below = place + across >= count
        named = below or grid.columns != grids[0].columns
        # Where there is no room for them, the names on the left serve the columns, too.
        square = list(grid.columns) == list(rows) and 8 * (inches - 0.6) < len(rows) <= MOST_NAMED
        across_name = f"{horizontal}, same order" if square else horizontal
        axes.set(xlabel=wrapped(across_name, _letters(inches)) * below, ylabel=wrapped(vertical, LONGEST_NAME) * left)
        name_places(axes.yaxis, rows if left else ())
        name_places(axes.xaxis, grid.columns if named and not square else ())
        for (row, column), value in np.ndenumerate(grid.values) if numbered else ():
            if not np.isnan(value):
                colour = "white" if norm(value) > 0.55 else INK
                axes.text(column, row, f"{value:,.{digits}f}", ha="center", va="center", color=colour, size="small")
    if not numbered:
        place = {"location": "bottom", "aspect": 40} if inches < _NARROWEST else {}
        bar = figure.colorbar(ScalarMappable(norm, colours), ax=drawn, label=label, pad=0.02, **place)
        bar.locator = MaxNLocator(5, steps=_ROUND)
        bar.update_ticks()
    return figure


def name_places(axis: Axis, names: Sequence[str]) -> None:
    """Labels the positions 0, 1, ... of an axis, or some of them; long labels of an x-axis are turned."""
    places = evenly_spaced(len(names), MOST_NAMED if len(names) <= MOST_NAMED else 8).tolist()
    shown = [wrapped(str(names[place])) for place in places]
    axis.set_ticks(places, shown)
    if isinstance(axis, XAxis) and sum(map(len, shown)) > 24:
        inches = axis.axes.get_window_extent().width / axis.axes.figure.dpi
        turned = {"rotation": 90, "va": "center"} if len(shown) > 6 * inches else {"rotation": 40}
        for text in axis.get_ticklabels():
            text.set(ha="right", rotation_mode="anchor", **turned)


@style()
def images(kinds: Sequence[tuple[str, np.ndarray]], classes: Sequence[str]) -> Figure:
    """Draws images of several kinds side by side, one row per class, for at most the first 20 classes.

    `kinds` has titles and pixels `UInt8[C, S, H, W, K]`, K 1 or 3.
    """
    rows = min(len(kinds[0][1]), len(classes), MOST_NAMED)
    widths = [pixels.shape[1] for _, pixels in kinds]
    narrow = max(widths) == 1
    figure = _blank((1.0 if narrow else 0.5) + rows * min(0.27, 3.6 / (sum(widths) + len(widths))))
    grid = figure.subplots(1, len(kinds), width_ratios=widths, squeeze=False)[0]
    for place, (axes, (title, pixels)) in enumerate(zip(grid, kinds, strict=True)):
        _, shown, height, width, channels = pixels.shape
        table = pixels[:rows].transpose(0, 2, 1, 3, 4).reshape(rows * height, shown * width, channels)
        axes.imshow(table[..., 0] if channels == 1 else table, interpolation="nearest", cmap="gray", vmin=0, vmax=255)
        axes.set_title(title, rotation=90 if narrow else 0)
        names = list(map(wrapped, classes[:rows]))
        axes.set_yticks(height * (np.arange(rows) + 0.5), [] if place else names)
        axes.set_xticks([])
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure
