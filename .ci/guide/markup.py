"""Markdown for generated pages: cells and tables; and formulas as MathML, which browsers show without a script."""

import html
import re
from collections.abc import Iterable, Sequence

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a table of Markdown cells."""
    lines = [headings, ["---"] * len(headings), *([inline(own).replace("|", "\\|") for own in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """Escapes plain text for a cell."""
    return re.sub(r"([\\`*_\[\]])", r"\\\1", html.escape(inline(text), quote=False))


def inline(text: str) -> str:
    """Joins a text into one line."""
    return " ".join(text.split())


def with_formulas(page: str) -> str:
    """Replaces the formulas in a page's HTML, which Markdown has marked, by MathML."""
    return _FORMULA.sub(lambda found: convert(html.unescape(found[1])), page)
