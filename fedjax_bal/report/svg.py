"""Figures as SVG, PDF and PNG: one style, and the same bytes for the same figure.

Matplotlib is only imported together with this module, which light callers therefore import late.
"""

import contextlib
import io
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure

from fedjax_bal.report.wording import printable

WIDTH = 4.6
_WIDTH = ContextVar("width in inches", default=WIDTH)
INK, SOFT = "#222222", "#666666"

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
    # Names come from configurations: a `$` in one is a dollar sign, not mathematics.
    "text.parse_math": False,
    # Text stays text, which keeps the files small, and editable where a paper needs other words.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedjax_bal",
}
_SIZES = {
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "axes.titlesize": 10.0,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.fontsize": 9.0,
}

Drawn = tuple[str, str, str, Figure]
"""Name, title and caption of a figure, and the figure."""


class Picture(NamedTuple):
    """A finished figure: the name of its file without ending, title, caption on how to read it, and SVG file."""

    name: str
    title: str
    caption: str
    document: str


@contextlib.contextmanager
def style() -> Iterator[None]:
    """A context, or decorator, for making and writing figures: this style on top of matplotlib's defaults.

    The user's own matplotlib settings are left alone and have no influence. Text shrinks with the width, to 7 points.
    """
    look: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")}
    look |= STYLE | {key: text_scale() * size for key, size in _SIZES.items()}
    with matplotlib.rc_context(look):
        yield


def text_scale() -> float:
    """The factor by which text is smaller than in figures of the usual width."""
    return min(1.0, max(width() / WIDTH, 7.0 / 9.0))


def width() -> float:
    """The width of figures in inches."""
    return _WIDTH.get()


@contextlib.contextmanager
def as_wide_as(inches: float) -> Iterator[None]:
    """A context in which figures are made for a column of another width."""
    before = _WIDTH.set(inches)
    try:
        yield
    finally:
        _WIDTH.reset(before)


def blank(height: float) -> Figure:
    """An empty figure of a height in inches, free of pyplot's global state, with constrained layout.

    The usual width is small on purpose: a figure is scaled to its column, and stays legible on a telephone.
    """
    return Figure(figsize=(width(), height), layout="constrained")


def to_pictures(drawn: Iterable[Drawn]) -> list[Picture]:
    """Writes figures as SVG documents, one after the other as they are made."""
    return [Picture(name, title, caption, to_svg(figure, title)) for name, title, caption, figure in drawn]


def to_svg(figure: Figure, title: str) -> str:
    """Writes a figure as an SVG document with a title, and without a date."""
    return _save(figure, format="svg", metadata={"Title": printable(title), "Date": None, "Creator": None}).decode()


def to_png(figure: Figure, dots_per_inch: int = 200) -> bytes:
    """Writes a figure as a PNG file; the same bytes for the same figure."""
    return _save(figure, format="png", dpi=dots_per_inch, metadata={"Software": None})


def to_pdf(figure: Figure) -> bytes:
    """Writes a figure as a PDF file; the same bytes for the same figure."""
    return _save(figure, format="pdf", metadata={"CreationDate": None})


def _save(figure: Figure, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with style(), warnings.catch_warnings():
        # The reader's browser draws the text, in any script, even if the font used here for measuring lacks it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, **options)
    return buffer.getvalue()
