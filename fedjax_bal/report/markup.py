"""HTML of which all pages are made: the document, tables, lists of terms and figures."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fedjax_bal.report.wording import Table

if TYPE_CHECKING:
    from fedjax_bal.report.svg import Picture

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


_PLUGIN = re.compile(r"[\w .+/-]+\.py|[A-Za-z_]\w*(\.\w+)*|/[\w .+/-]+")
_REPEATED = (
    "Run this in an empty folder that holds the configuration below. With the same versions on the same kind of device "
    "every seed gives the same numbers."
)


def command(words: Sequence[str], config: Mapping[str, Any], given: Any) -> str:
    """A command that repeats a configuration, in a paragraph with what it needs, to be pasted into a shell.

    Args:
        words: its first words.
        config: whose `plugins` it needs, by name.
        given: the `command` of a summary: the files of plug-ins, and the folder of data; None where not known.

    Folders may come from elsewhere: every word is quoted, and what can't be the name of a plug-in is left out.
    """
    given = given if isinstance(given, Mapping) else {}
    plugins, files, data = config.get("plugins"), given.get("plugins"), given.get("data_dir")
    named = [f"{name}.py" for name in plugins] if isinstance(plugins, Mapping) else []
    wanted = [str(name) for name in (files if isinstance(files, list) and files else named)]
    known = [name for name in wanted if _PLUGIN.fullmatch(name)]
    options = [word for name in known for word in ("--plugin", name)]
    if isinstance(data, str) and data.isprintable():
        options += ["--data-dir", data]
    needs = " The command needs its plug-ins, files of Python code: read them before you run it." if wanted else ""
    lost = " Some plug-ins have no possible name and are left out." if len(known) < len(wanted) else ""
    return f"<p>{escape(_REPEATED + needs + lost)}</p><pre>{escape(shlex.join([*words, *options]))}</pre>"


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page, from the title of the browser's tab and the parts of its body; empty parts are left out."""
    style = files("fedjax_bal.report").joinpath("page.css").read_text(encoding="utf-8")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{style}</style>"
    )
    body = "\n".join(part for part in parts if part)
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body><main>\n{body}\n</main></body>\n</html>\n'


def encoded(page: str) -> bytes:
    """A page as UTF-8; halves of characters, which JSON and names of folders can hold, are replaced by a sign."""
    return page.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def grid(label: str, text: Table, marked: Sequence[bool] = ()) -> str:
    """A table, the marked rows set off."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in text.headings)
    rows = []
    for place, (first, *cells) in enumerate(text.rows):
        mark = " class=best" if place < len(marked) and marked[place] else ""
        data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        # A long name breaks after `_` or `+` rather than within a word.
        name = escape(first).replace("_", "_<wbr>").replace("+", "+<wbr>")
        rows.append(f'<tr{mark}><th scope="row">{name}</th>{data}</tr>')
    return (
        f'<div class=scroll role="region" aria-label="{escape(label)}" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of terms, each with its text."""
    return "<dl>" + "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs) + "</dl>"


def note(text: str) -> str:
    """A remark in small letters."""
    return f"<p class=note>{escape(text)}</p>"


def folded(title: str, content: str) -> str:
    """A part of the page that is opened by a click."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def figures(title: str, pictures: Sequence["Picture"], remark: str = "") -> str:
    """A section of figures with their captions, below a remark; empty without any figure."""
    if not pictures:
        return ""
    shown = [
        f"<figure>{own.html}<figcaption><b>{escape(own.title)}.</b> {escape(own.caption)}</figcaption></figure>"
        for own in pictures
    ]
    return "\n".join([f"<h2>{escape(title)}</h2>", *filter(None, [remark]), "<div class=figures>", *shown, "</div>"])
