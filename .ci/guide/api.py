"""Writes the API reference from public docstrings, with formulas that need no script, and colours for the dark."""

import html
import re
import sys
import warnings
from pathlib import Path

import pdoc
from latex2mathml.converter import convert
from pygments.formatters import HtmlFormatter

from fedjax_bal import models

MODULES = (
    "fedjax_bal",
    *(f"fedjax_bal.{name}" for name in ("config", "contrib.privacy", "contrib.trackers", "optim", "report", "testing")),
    "fedjax_bal.types",
    r"!fedjax_bal\.(config|contrib\.privacy|contrib\.trackers|data\.partition|data\.sources|optim|parts|report|"
    r"selection|testing)\.",
)
_CODE_OR_FORMULA = re.compile(r"<pre.*?</pre>|<code.*?</code>|<script.*?</script>|\$\$(.+?)\$\$|\$(.+?)\$", re.DOTALL)
_COLOURS = (
    ":root{--pdoc-background:#1c2128}.pdoc{--text:#e6edf3;--muted:#a3adb8;--link:#8ab4f8;--link-hover:#aecbfa;"
    "--code:#272d36;--active:#5c5528;--accent:#2f353d;--accent2:#4a525c;--nav-hover:rgba(255,255,255,.08);"
    "--name:#79c0ff;--def:#7ee787;--annotation:#7ee787}.pdoc-button{color-scheme:dark}"
)


def main(folder: Path) -> None:
    """Writes the pages into a folder."""
    # A name that is imported when it is asked for must be there already; and a module that has the name of a function
    # of its package would be listed next to it.
    models.from_nnx = models.from_nnx
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Error parsing type annotation")
    pdoc.render.configure(docformat="google", template_directory=Path(__file__).parent)
    pdoc.pdoc(*MODULES, output_directory=folder)
    highlighting = HtmlFormatter(style="github-dark", nobackground=True).get_style_defs(".pdoc-code")
    dark = f"<style>@media(prefers-color-scheme:dark){{{_COLOURS}{highlighting}}}</style></head>"
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8").replace("</head>", dark, 1)
        page.write_text(_CODE_OR_FORMULA.sub(_with_formula, text), encoding="utf-8")


def _with_formula(found: re.Match[str]) -> str:
    """Converts a formula to MathML; leaves code as it is."""
    display, inline = found.groups()
    formula = display or inline
    return convert(html.unescape(formula), "block" if display else "inline") if formula else found[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
