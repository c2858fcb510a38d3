"""Turns the formulas of the built pages into MathML, which browsers show without a script."""

import html
import re
import sys
from pathlib import Path

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)

for page in Path(sys.argv[1]).rglob("*.html"):
    convert_one = lambda found: convert(html.unescape(found[2]), "inline" if found[1] == "span" else "block")
    page.write_text(_FORMULA.sub(convert_one, page.read_text(encoding="utf-8")), encoding="utf-8")
