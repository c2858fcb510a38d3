"""Writes the API reference from public docstrings, with formulas that need no script, and colours for the dark."""

import html
import inspect
import re
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, get_origin

import jinja2
import pdoc
from latex2mathml.converter import convert
from markupsafe import Markup
from pygments.formatters import HtmlFormatter

from fedjax_bal import annotations, models

MODULES = (
    "fedjax_bal",
    *(f"fedjax_bal.{name}" for name in ("analyses", "config", "contrib.privacy", "optim", "report", "testing")),
    *("fedjax_bal.lab.trackers", "fedjax_bal.types"),
    r"!fedjax_bal\.(config|contrib\.privacy|data\.partition|data\.sources|optim|parts|report|"
    r"selection|testing)\.",
)
_EXAMPLE = re.compile(r"(<pre.*?</pre>)", re.DOTALL)
_NOISE = re.compile(r"typing\.|(?<=\()[gl][et]=")
_format = inspect.formatannotation
_ALIASES = [(name, kind) for name, kind in vars(annotations).items() if get_origin(kind) is Annotated]
_FORMS = sorted(((_NOISE.sub("", repr(kind)), name) for name, kind in _ALIASES), key=lambda own: -len(own[0]))
_CODE_OR_FORMULA = re.compile(r"<pre.*?</pre>|<code.*?</code>|<script.*?</script>|\$\$(.+?)\$\$|\$(.+?)\$", re.DOTALL)
_COLOURS = (
    ":root{--pdoc-background:#1c2128}.pdoc{--text:#e6edf3;--muted:#a3adb8;--link:#8ab4f8;--link-hover:#aecbfa;"
    "--code:#272d36;--active:#5c5528;--accent:#2f353d;--accent2:#4a525c;--nav-hover:rgba(255,255,255,.08);"
    "--name:#79c0ff;--def:#7ee787;--annotation:#7ee787}.pdoc-button{color-scheme:dark}"
)
_FOLDED = ".pdoc .signature .param{white-space:pre-wrap;overflow-wrap:anywhere}"  # signatures stay in their box


def main(folder: Path) -> None:
    """Writes the pages into a folder."""
    # A name that is imported when it is asked for must be there already; and a module that has the name of a function
    # of its package would be listed next to it.
    models.from_nnx = models.from_nnx
    models.from_torch = models.from_torch
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Error parsing type annotation")
    pdoc.render.env.filters["linkify"] = _linkify
    inspect.formatannotation = pdoc.doc.formatannotation = _with_aliases  # pdoc uses both
    pdoc.render.configure(docformat="google", template_directory=Path(__file__).parent)
    pdoc.pdoc(*MODULES, output_directory=folder)
    highlighting = HtmlFormatter(style="github-dark", nobackground=True).get_style_defs(".pdoc-code")
    style = f"<style>{_FOLDED}@media(prefers-color-scheme:dark){{{_COLOURS}{highlighting}}}</style></head>"
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8").replace("</head>", style, 1)
        page.write_text(_CODE_OR_FORMULA.sub(_with_formula, text), encoding="utf-8")


@jinja2.pass_context
def _linkify(context: jinja2.runtime.Context, code: str, **options: Any) -> str:
    """Links names to their documentation, but not in examples, where pdoc takes `f().parts` for a relative import."""
    pieces = _EXAMPLE.split(str(code))
    pieces[::2] = [pdoc.render_helpers.linkify(context, text, **options) for text in pieces[::2]]
    return Markup("".join(pieces))


def _with_aliases(annotation: Any, **options: Any) -> str:
    """Formats an annotation with the names of the aliases that it is made of, such as `NonNegative`, longest first."""
    text = _NOISE.sub("", _format(annotation, **options))
    for form, name in _FORMS:
        text = text.replace(form, name).replace(f"{form[:-1]}, ", f"Annotated[{name}, ")
    return text


def _with_formula(found: re.Match[str]) -> str:
    """Converts a formula to MathML; leaves code as it is."""
    display, inline = found.groups()
    formula = display or inline
    return convert(html.unescape(formula), "block" if display else "inline") if formula else found[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
