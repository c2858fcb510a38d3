"""Figures as SVG text, in one style, the same bytes for the same figure, safe inside a page.

Matplotlib is only imported together with this module, which light callers therefore import late.
"""

import contextlib
import io
import json
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple
from xml.etree import ElementTree

import matplotlib
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from fedjax_bal.report.wording import printable

WIDTH = 4.6
_WIDTH = ContextVar("width in inches", default=WIDTH)
SIZES = {"font.size": 9.5, "axes.labelsize": 9.5, "axes.titlesize": 10.0, **dict.fromkeys(
    ("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9.0
)}  # fmt: skip
SMALLEST = 7.0 / 9.0
INK = "#222222"
# What takes the colours of the page around it, which may be dark; the text on coloured cells does not.
THEME = {INK: "ink", "#666666": "soft", "#555555": "soft", "#e3e3e3": "rule", "#bcbcbc": "rule", "#ffffff": "paper"}
ON_LIGHT, ON_DARK = "#212121", "#fefefe"
_TIPS = "tips:"
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"

STYLE = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#666666",
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
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    # Names come from configurations: a `$` in one is a dollar sign, not mathematics.
    "text.parse_math": False,
    # Text stays text: it can be searched, read aloud and copied, and keeps the file small.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedjax_bal",
}


Drawn = tuple[str, str, str, Figure]
"""Name, title and caption of a figure, and the figure."""


class Picture(NamedTuple):
    """A finished figure: the name of its file without ending, title, caption on how to read it, and SVG file."""

    name: str
    title: str
    caption: str
    document: str

    @property
    def html(self) -> str:
        """The SVG for inside a page."""
        return inline(self.document)


@contextlib.contextmanager
def style() -> Iterator[None]:
    """A context, or decorator, for making and writing figures: this style on top of matplotlib's defaults.

    The user's own matplotlib settings are left alone and have no influence. Text shrinks with the width, to 7 points.
    """
    look: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")}
    look |= STYLE | {key: text_scale() * size for key, size in SIZES.items()}
    with matplotlib.rc_context(look):
        yield


def text_scale() -> float:
    """The factor by which text is smaller than in figures of the usual width."""
    return min(1.0, max(width() / WIDTH, SMALLEST))


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


def blank(height: float, wide: float | None = None) -> Figure:
    """An empty figure of some size in inches, free of pyplot's global state, with constrained layout.

    The usual width is small on purpose: a figure is scaled to its column, and stays legible on a telephone.
    """
    return Figure(figsize=(wide or width(), height), layout="constrained")


def tip(artist: Artist, *texts: str) -> None:
    """Gives an artist a text that shows where the pointer rests on it, or each of its marks one."""
    artist.set_gid(_TIPS + json.dumps([printable(text) for text in texts]))


def to_pictures(drawn: Iterable[Drawn]) -> list[Picture]:
    """Writes figures as SVG documents, one after the other as they are made."""
    return [Picture(name, title, text, to_svg(figure, name, title, text)) for name, title, text, figure in drawn]


def to_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """Writes a figure as an SVG document with a title and a description for screen readers.

    Identifiers start with `name` (letters, digits, `-` and `_`), so that several figures can stand in one page. The
    metadata (a date, an address), the global style sheet and the XML declaration are left out; pixels of images keep
    sharp edges.
    """
    root = ElementTree.fromstring(_save(figure, format="svg", metadata={"Date": None}))
    _drop_clutter(root)
    _add_tips(root)
    _prefix_identifiers(root, name)
    _describe(root, name, title, description)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def to_png(figure: Figure, dots_per_inch: int = 200) -> bytes:
    """Writes a figure as a PNG file; the same bytes for the same figure."""
    return _save(figure, format="png", dpi=dots_per_inch, metadata={"Software": None})


def to_pdf(figure: Figure) -> bytes:
    """Writes a figure as a PDF file; the same bytes for the same figure."""
    return _save(figure, format="pdf", metadata={"CreationDate": None})


def inline(document: str) -> str:
    """An SVG document for inside a page: in its colours, without namespace declarations, which HTML doesn't need."""
    start, end, rest = document.partition(">")
    for declaration in (f' xmlns="{SVG}"', f' xmlns:xlink="{XLINK}"'):
        start = start.replace(declaration, "")
    for colour, name in THEME.items():
        rest = rest.replace(f": {colour}", f": var(--{name})")
    return start + end + rest


def lay_out(figure: Figure) -> None:
    """Gives the axes of a figure their places, for what is measured in them."""
    with _measured():
        figure.draw_without_rendering()


def _save(figure: Figure, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with style(), _measured():
        figure.savefig(buffer, **options)
    return buffer.getvalue()


@contextlib.contextmanager
def _measured() -> Iterator[None]:
    with warnings.catch_warnings():
        # The reader's browser draws the text, in any script, even if the font used here for measuring lacks it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _drop_clutter(root: ElementTree.Element) -> None:
    for tag in ("metadata", "defs"):
        for child in root.findall(f"{{{SVG}}}{tag}"):
            if tag == "metadata" or child.find(f"{{{SVG}}}style") is not None:
                root.remove(child)
    # The style sheet's rules, for this figure instead of for every element of the page around it.
    root.set("style", "stroke-linejoin:round;stroke-linecap:butt")
    for size in ("width", "height"):
        root.set(size, f"{float(root.get(size, '0').removesuffix('pt')) * 4 / 3:g}")
    for image in root.iter(f"{{{SVG}}}image"):
        image.set("style", "image-rendering:pixelated")


def _add_tips(root: ElementTree.Element) -> None:
    """Turns the texts of `tip` into titles, which browsers show beside the pointer."""
    drawn = [f"{{{SVG}}}{tag}" for tag in ("use", "path")]
    for group in [element for element in root.iter() if element.get("id", "").startswith(_TIPS)]:
        texts = json.loads(group.attrib.pop("id").removeprefix(_TIPS))
        for definitions in group.findall(f"{{{SVG}}}defs"):
            group.remove(definitions)
            root.insert(0, definitions)
        marks = [element for element in group.iter() if element.tag in drawn]
        for mark, text in zip(marks if len(texts) > 1 else [group], texts, strict=False):
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = text
            mark.insert(0, title)


def _prefix_identifiers(root: ElementTree.Element, name: str) -> None:
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, f"{name}-{value}")
            elif key == f"{{{XLINK}}}href" and value.startswith("#"):
                element.set(key, f"#{name}-{value[1:]}")
            else:
                element.set(key, value.replace("url(#", f"url(#{name}-"))


def _describe(root: ElementTree.Element, name: str, title: str, description: str) -> None:
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(f"{{{SVG}}}{tag}", {"id": f"{name}-{tag}"})
        element.text = printable(text)
        root.insert(place, element)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-desc")
