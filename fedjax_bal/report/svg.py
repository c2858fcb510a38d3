"""Figures as SVG text, in one style, the same bytes for the same figure, safe inside a page.

Matplotlib is only imported together with this module, which light callers therefore import late.
"""

import io
import warnings
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from fedjax_bal.report.wording import printable

WIDTH = 4.6
BASE_SIZE = 9.5
INK = "#222222"
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"

STYLE = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": BASE_SIZE,
    "axes.labelsize": BASE_SIZE,
    "axes.titlesize": BASE_SIZE + 0.5,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.fontsize": 9.0,
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
    "svg.hashsalt": "fedjax_bal",
}


def style():
    """A context in which figures are made and written: matplotlib's defaults with this style on top; also a decorator.

    The user's own matplotlib settings are left alone and have no influence.

    >>> with style():
    ...     matplotlib.rcParams["svg.fonttype"]
    'none'
    """
    look: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")}
    look.update(STYLE)
    return matplotlib.rc_context(look)


def blank(height: float, width: float = WIDTH) -> Figure:
    """An empty figure of some size in inches, free of pyplot's global state, with constrained layout.

    The width is small on purpose: a figure is scaled to its column, and stays legible on a telephone.

    >>> blank(3.0).get_size_inches().tolist()
    [4.6, 3.0]
    """
    return Figure(figsize=(width, height), layout="constrained")


def to_svg(figure: Figure, name: str, title: str, description: str) -> str:
    r"""Writes a figure as an SVG document with a title and a description for screen readers.

    The figure is made within `style`. Identifiers start with `name` (letters, digits, `-` and `_`), so that several
    figures can stand in one page; metadata (a date, an address) and the global style sheet are left out, and so is the
    XML declaration; pixels of images keep sharp edges.

    >>> with style():
    ...     text = to_svg(blank(3.0), "empty", "Nothing", "An empty figure.")
    >>> text.startswith("<svg"), "<title id=\"empty-title\">Nothing</title>" in text
    (True, True)
    """
    buffer = io.BytesIO()
    with style(), warnings.catch_warnings():
        # The reader's browser draws the text, in any script, even if the font used here for measuring lacks it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _drop_clutter(root)
    _prefix_identifiers(root, name)
    _describe(root, name, title, description)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def to_png(figure: Figure, dots_per_inch: int = 200) -> bytes:
    r"""Writes a figure, made within `style`, as a PNG file; the same bytes for the same figure.

    >>> with style():
    ...     to_png(blank(3.0))[:4]
    b'\x89PNG'
    """
    buffer = io.BytesIO()
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="png", dpi=dots_per_inch, metadata={"Software": None})
    return buffer.getvalue()


def inline(document: str) -> str:
    """An SVG document without its namespace declarations, which HTML doesn't need.

    >>> inline('<svg xmlns="http://www.w3.org/2000/svg" width="1"><g/></svg>')
    '<svg width="1"><g/></svg>'
    """
    start, end, rest = document.partition(">")
    for declaration in (f' xmlns="{SVG}"', f' xmlns:xlink="{XLINK}"'):
        start = start.replace(declaration, "")
    return start + end + rest


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
