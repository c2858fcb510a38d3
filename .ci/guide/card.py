"""Small SVG pictures on a card, in light or dark colours depending on the reader's settings."""

from collections.abc import Iterable
from html import escape

_LIGHT = "--paper:#fff;--ink:#1f2328;--soft:#59636e;--rule:#ccd2d8;--tint:#f3f5f7;--dot:#0072b2;--bar:#8aa9c4"
_DARK = "--paper:#1c2128;--ink:#e6edf3;--soft:#a3adb8;--rule:#4a525c;--tint:#272d36;--dot:#56b4e9;--bar:#587b99"
_STYLE = (
    f"svg{{{_LIGHT}}}@media(prefers-color-scheme:dark){{svg{{{_DARK}}}}}"
    "text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:var(--ink)}.soft{fill:var(--soft)}.bold{font-weight:600}"
    ".small{font-size:11px}.paper{fill:var(--paper)}.tint{fill:var(--tint)}.dot{fill:var(--dot);fill-opacity:.85}.bar{fill:var(--bar)}"
    ".line{fill:none;stroke:var(--rule)}.edge{stroke:var(--rule)}.role{fill:none;stroke:var(--dot)}"
    ".code{font:12px ui-monospace,'DejaVu Sans Mono',monospace}.arrow{fill:none;stroke:var(--soft);stroke-width:1.5}"
)


def card(width: int, height: int, description: str, shapes: Iterable[str]) -> str:
    """Builds an SVG file of a size in pixels, with a description for screen readers."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    background = f'<rect class="paper" width="{width}" height="{height}" rx="6"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(description)}</title>'
    return "\n".join([head, f"<style>{_STYLE}</style>", background, *shapes, "</svg>\n"])


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start", turned: bool = False) -> str:
    """Draws a line of text, optionally rotated to read upwards."""
    turn = f' transform="rotate(-90 {x:g} {y:g})"' if turned else ""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}"{turn}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, rounded: float = 0) -> str:
    """Draws a rectangle."""
    corners = f' rx="{rounded:g}"' if rounded else ""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{corners}/>'
