"""The one model of all pages, and the HTML that is made of it."""

import base64
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from fedjax_bal.report.tables import Details, encoded, table_files

if TYPE_CHECKING:
    from fedjax_bal.report.svg import Picture

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MOST_OPEN = 6  # tables of conditions; more are folded
_FIRST = ("accuracy", "traffic", "mean-accuracy", "worst-class")
_REPEATED = (
    "Run this in an empty folder that holds the configuration below. With the same versions on the same kind of device "
    "every seed gives the same numbers."
)


class Page(NamedTuple):
    """The parts of a page, in their order.

    Attributes:
        tab: the title of the browser's tab.
        kicker: a line above the heading.
        heading: the name of what the page is about.
        warnings: why its numbers are provisional, or hard to compare; empty texts are left out, here and below.
        answers: the result in words.
        paper: a sentence on what a paper reports.
        published: tables of this.
        pictures: of these the curves stand here, and the others after the tables.
        comparisons: the tables of methods, one for each condition.
        statistics: the numbers behind them, the rows of a CSV file.
        remarks: sentences below these.
        details: further tables.
        settings: tables after the pictures.
        sections: headings, each with the HTML below it.
    """

    tab: str
    kicker: str
    heading: str
    warnings: Sequence[str]
    answers: Sequence[str]
    comparisons: Sequence[Details]
    statistics: Sequence[Mapping[str, Any]]
    pictures: Sequence["Picture"]
    sections: Sequence[tuple[str, str]]
    paper: str = ""
    published: Sequence[Details] = ()
    remarks: Sequence[str] = ()
    details: Sequence[Details] = ()
    settings: Sequence[Details] = ()

    def documents(self) -> dict[str, str]:
        """Its pictures, SVG documents by name."""
        return {own.name: own.document for own in self.pictures}

    def tables(self) -> dict[str, bytes]:
        """All of its tables as CSV and LaTeX, by the ending of their file."""
        return table_files([*self.comparisons, *self.published, *self.details, *self.settings], self.statistics)

    def html(self) -> bytes:
        """The whole page as one file, which opens without a network."""
        paragraphs = lambda texts, kind: "".join(f"<p class={kind}>{escape(text)}</p>" for text in texts if text)
        warnings = "".join(f"<p>{escape(text)}</p>" for text in self.warnings if text)
        curves = [own for own in self.pictures if own.name.rstrip("-0123456789") in _FIRST]
        others = [own for own in self.pictures if own not in curves]
        shown = [_table(own, "h3" if len(self.comparisons) > 1 else "") for own in self.comparisons]
        titles = [own.title for own in self.comparisons]
        more = [folded(*pair) for pair in zip(titles[MOST_OPEN:], shown[MOST_OPEN:], strict=True)]
        answers = (own.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}") for own in self.answers)
        body = [
            f"<p class=kicker>{escape(self.kicker)}</p>",
            f"<h1>{escape(self.heading)}</h1>",
            f'<div class=unfinished role="status">{warnings}</div>' if warnings else "",
            paragraphs(answers, "verdict"),
            f"<p>{escape(self.paper)}</p>" if self.paper else "",
            *(_table(own, "h2") for own in self.published),
            _figures("Curves", curves),
            "<h2>Comparison</h2>",
            *shown[:MOST_OPEN],
            *more,
            paragraphs(self.remarks, "note"),
            *(_table(own, "h3") for own in self.details),
            _figures("Figures", others),
            *(_table(own, "h3") for own in self.settings),
            *(f"<h2>{escape(title)}</h2>{content}" for title, content in self.sections),
        ]
        style = files("fedjax_bal.report").joinpath("page.css").read_text(encoding="utf-8")
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            f"<title>{escape(self.tab)}</title><style>{style}</style>"
        )
        text = "\n".join(filter(None, body))
        return encoded(
            f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body><main>\n{text}\n</main></body>\n</html>\n'
        )


def command(words: Sequence[str], config: Mapping[str, Any], given: Any) -> str:
    """A command that repeats a configuration, in a paragraph with what it needs, to be pasted into a shell.

    Args:
        words: its first words.
        config: whose `plugins` it needs, by name.
        given: the `command` of a summary: the files of plug-ins, and the folder of data; None where not known.

    Folders may come from elsewhere: every word is quoted, and words that a terminal could not show are left out.
    """
    given = given if isinstance(given, Mapping) else {}
    plugins = config.get("plugins")
    known = given.get("plugins")
    data = given.get("data_dir")
    named = [f"{name}.py" for name in plugins] if isinstance(plugins, Mapping) else []
    wanted = [str(name) for name in (known if isinstance(known, list) and known else named)]
    options = [word for name in wanted if name.isprintable() for word in ("--plugin", name)]
    if isinstance(data, str) and data.isprintable():
        options += ["--data-dir", data]
    needs = " The command needs its plug-ins, files of Python code: read them before you run it." if wanted else ""
    return f"<p>{escape(_REPEATED + needs)}</p><pre>{escape(shlex.join([*words, *options]))}</pre>"


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of terms, each with its text; empty without any."""
    listed = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs)
    return f"<dl>{listed}</dl>" if listed else ""


def note(text: str) -> str:
    """A remark in small letters; empty for an empty text."""
    return f"<p class=note>{escape(text)}</p>" if text else ""


def folded(title: str, content: str) -> str:
    """A part of the page that is opened by a click."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _table(own: Details, heading: str) -> str:
    """A table above its note, the marked rows set off; below its title if it is to have a heading."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in own.table.headings)
    rows = []
    for place, (first, *cells) in enumerate(own.table.rows):
        mark = " class=best" if own.marked and own.marked[place] else ""
        data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        # A long name breaks after `_` or `+` rather than within a word.
        name = escape(first).replace("_", "_<wbr>").replace("+", "+<wbr>")
        rows.append(f'<tr{mark}><th scope="row">{name}</th>{data}</tr>')
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return (
        f"<{heading}>{escape(own.title)}</{heading}>" if heading else ""
    ) + f'<div class=scroll role="region" aria-label="{escape(own.title)}" tabindex="0">{table}</div>{note(own.note)}'


def _figures(title: str, pictures: Sequence["Picture"]) -> str:
    """A section of figures with their captions; empty without any figure.

    Each is an image of its own: its identifiers can't meet those of another figure, and nothing in it can act.
    """
    if not pictures:
        return ""
    shown = [
        f'<figure><img alt="{escape(own.title)}" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(encoded(own.document)).decode()}">'
        f"<figcaption><b>{escape(own.title)}.</b> {escape(own.caption)}</figcaption></figure>"
        for own in pictures
    ]
    return "\n".join([f"<h2>{escape(title)}</h2>", "<div class=figures>", *shown, "</div>"])
